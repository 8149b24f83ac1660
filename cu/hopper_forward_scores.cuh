// hopper_forward_scores.cuh: the warpgroup of scores: s = q k^T, the softmax, the factors of
// the result.
#ifndef RATTN_HOPPER_FORWARD_SCORES_CUH
#define RATTN_HOPPER_FORWARD_SCORES_CUH

#include "hopper_forward.cuh"

namespace rattn {
namespace {

// What a thread of the scores' warpgroup knows of a row: what it sees, and its running
// softmax. Weights are 2^(x - top), x = score * exponent, with a top that follows the
// greatest x only where it is behind by more than 8: as a rule out is not rescaled after
// the first tiles, and weights stay in f16's range.
struct Row {
  int lo, hi;
  float top, sum, before;  // before: lse so far
  bool exists;
  int64_t at;  // in lse

  DEVICE void start(const Call &c, const Unit &u, int pack_bits, int r) {
    const int token = u.token + (r >> pack_bits);
    exists = token < c.rows;
    lo = exists ? max(c.lo[token], 0) : 0, hi = exists ? min(c.hi[token], c.tokens) : 0;
    at = (int64_t)token * c.heads + u.head + (r & ((1 << pack_bits) - 1));
    top = -infinity(), sum = 0;
    before = exists && !c.first ? c.lse[at] : -infinity();
  }
  // Takes the greatest x of a thread's part of a row, of all lanes of a warp; returns what
  // sums so far are to be multiplied with. Depends on nothing but the row.
  DEVICE float follow(float most) {
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    if (!(most > top + 8)) return 1;
    const float factor = exp2_fast(top - most);
    top = most, sum *= factor;
    return factor;
  }
  DEVICE float base() const { return top == -infinity() ? 0 : top; }

  // out' = old out + now acc: the parts of what was before and of what is new.
  DEVICE void finish(const Call &c, float &now, float &old) {
    now = 0, old = -1;
    if (!exists || (lo >= hi && !c.first)) return;
    float lse = sum == 0 ? -infinity() : (top + log2f(sum)) * LN2;
    now = sum == 0 ? 0 : 1 / sum, old = 0;
    if (before != -infinity()) {
      const float most = fmaxf(before, lse);
      const float a = expf(before - most), b = expf(lse - most);
      lse = most + logf(a + b);
      // The greater part as 1 less the other: both together are 1 exactly.
      const float part = b < a ? b / (a + b) : 1 - a / (a + b);
      old = b < a ? 1 - part : a / (a + b);
      now *= part;
    }
    c.lse[at] = lse;
  }
};

// A warpgroup: scores and weights of all units.
template <class T>
DEVICE void score_tiles(const Params &p, uint32_t base, int rank) {
  const Call &c = p.call;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
  const uint64_t keys = descriptor(base + K_AT), queries = descriptor(base + Q_AT);
  Schedule schedule = {p, base, (uint32_t)rank};
  uint32_t key_parity = 0, unit_parity = 0, result_parity = 1, tile = 0;  // tile: of all units
  uint32_t q[REGISTER_STEPS][4];
  // The weights of tile t may be multiplied.
  const auto go = [&](uint32_t t) {
    if (lane == 0) mbarrier_arrive(base + P_GO + 8 * (t & 1));
  };
  Unit u;
  while (schedule.next<true>(u)) {
    Row upper, lower;
    upper.start(c, u, p.pack_bits, row), lower.start(c, u, p.pack_bits, row + 8);
    if (u.steps > 0) {
      mbarrier_wait(base + Q_FULL, unit_parity);
#pragma unroll
      for (int i = 0; i < STEPS / 2; i++)
        ldmatrix(q[i], fragment_address(base + Q_AT + i / 4 * BOX, warp, lane, i % 4));
      __syncwarp();
      if (lane == 0) mbarrier_arrive(base + Q_EMPTY);
      mbarrier_wait(base + Q_FULL + 8, unit_parity);
#pragma unroll
      for (int i = STEPS / 2; i < REGISTER_STEPS; i++)
        ldmatrix(q[i], fragment_address(base + Q_AT + i / 4 * BOX, warp, lane, i % 4));
    }
#pragma unroll 1
    for (int j = 0; j < u.steps; j++, tile++) {
      float s[32];
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot++) {
        mbarrier_wait(base + K_FULL + 8 * slot, key_parity);
        wgmma_fence();
#pragma unroll
        for (int i = 8 * slot; i < 8 * slot + 8; i++) {
          const uint64_t key = keys + steps(i / 4 * BOX + i % 4 * 32);
          if (i < REGISTER_STEPS)
            wgmma_rs<T, K_MAJOR>(s, q[i < REGISTER_STEPS ? i : 0], key, i > 0);
          else
            wgmma_ss<T, K_MAJOR, K_MAJOR>(s, queries + steps(i / 4 * BOX + i % 4 * 32), key, i > 0);
          if (i == STEPS - GO_STEPS - 1) wgmma_commit();  // a group to wait for, in the last slot
        }
        wgmma_commit();
        if (slot > 0) {
          if (slot < SLOTS - 1)
            wgmma_wait<1>();
          else
            wgmma_wait<2>();
          release_slot(base + K_EMPTY + 8 * (slot - 1), lane);
        }
      }
      wgmma_wait<1>();
      if (j > 0) go(tile - 1);
      wgmma_wait<0>();
      keep(s);
      release_slot(base + K_EMPTY + 8 * (SLOTS - 1), lane);
      key_parity ^= 1;
      if (j == u.steps - 1 && lane == 0) mbarrier_arrive(base + Q_EMPTY + 8);

      const int first = u.start + j * KEYS;
      if (first < u.all_lo || first + KEYS > u.all_hi) {
        const int column = first + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 32; i++) {
          const int key = column + i / 4 * 8 + i % 2;
          const Row &r = i & 2 ? lower : upper;
          if (key < r.lo || key >= r.hi) s[i] = -infinity();
        }
      }
      float most0 = s[0], most1 = s[2];
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        most0 = fmaxf(most0, fmaxf(s[i], s[i + 1]));
        most1 = fmaxf(most1, fmaxf(s[i + 2], s[i + 3]));
      }
      most0 *= c.exponent, most1 *= c.exponent;
      float factor0 = 1, factor1 = 1;
      const bool moved = __any_sync(~0u, most0 > upper.top + 8 || most1 > lower.top + 8);
      if (moved) factor0 = upper.follow(most0), factor1 = lower.follow(most1);
      const float base0 = upper.base(), base1 = lower.base();
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = exp2_fast(fmaf(s[i], c.exponent, i & 2 ? -base1 : -base0));
      // The wait keeps ptxas from using each exponential as soon as it is issued, and
      // waiting for it.
      const uint32_t buffer = tile & 1;
      mbarrier_wait(base + P_EMPTY + 8 * buffer, (tile >> 1 & 1) ^ 1);
#pragma unroll
      for (int i = 0; i < 4; i++)
        stmatrix(fragment_address(base + P_AT + buffer * BOX, warp, lane, i), T::pack(s[8 * i], s[8 * i + 1]),
                 T::pack(s[8 * i + 2], s[8 * i + 3]), T::pack(s[8 * i + 4], s[8 * i + 5]),
                 T::pack(s[8 * i + 6], s[8 * i + 7]));
      const uint32_t factors = base + FACTOR_AT + buffer * (4 * ROWS);
      if (moved && lane % 4 == 0) {
        store_shared(factors + 4 * row, __float_as_uint(factor0));
        store_shared(factors + 4 * (row + 8), __float_as_uint(factor1));
      }
      if (lane == 0) store_shared(base + MOVED_AT + 16 * buffer + 4 * warp, moved);
      float sum0[4], sum1[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        sum0[i] = (s[8 * i] + s[8 * i + 1]) + (s[8 * i + 4] + s[8 * i + 5]);
        sum1[i] = (s[8 * i + 2] + s[8 * i + 3]) + (s[8 * i + 6] + s[8 * i + 7]);
      }
      upper.sum += (sum0[0] + sum0[1]) + (sum0[2] + sum0[3]);
      lower.sum += (sum1[0] + sum1[1]) + (sum1[2] + sum1[3]);
      fence_async();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(base + P_FULL + 8 * buffer);
    }
    if (u.steps > 0) go(tile - 1);
    if (u.steps > 0) unit_parity ^= 1;

#pragma unroll
    for (int k = 1; k < 4; k *= 2) {
      upper.sum += __shfl_xor_sync(~0u, upper.sum, k);
      lower.sum += __shfl_xor_sync(~0u, lower.sum, k);
    }
    mbarrier_wait(base + RESULT_EMPTY, result_parity);
    result_parity ^= 1;
    if (lane % 4 == 0) {
      float now, old;
      upper.finish(c, now, old);
      store_shared(base + NOW_AT + 4 * row, __float_as_uint(now));
      store_shared(base + OLD_AT + 4 * row, __float_as_uint(old));
      lower.finish(c, now, old);
      store_shared(base + NOW_AT + 4 * (row + 8), __float_as_uint(now));
      store_shared(base + OLD_AT + 4 * (row + 8), __float_as_uint(old));
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(base + RESULT_FULL);
  }
}

}  // namespace
}  // namespace rattn

#endif
