// hopper_forward_scores.cuh: the warpgroup of scores: s = q k^T, the softmax, the factors of
// the result.
#ifndef RATTN_HOPPER_FORWARD_SCORES_CUH
#define RATTN_HOPPER_FORWARD_SCORES_CUH

#include "hopper_forward.cuh"

namespace rattn {
namespace {

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
  const auto go = [&](uint32_t t) { mbarrier_arrive_warp(base + P_GO + 8 * (t & 1), lane); };
  Unit u;
  while (schedule.next<true>(u)) {
    Row upper, lower;
    const auto token_of = [&](int r) { return u.token + (r >> p.pack_bits); };
    const auto at = [&](int r) {  // in lse
      return (int64_t)token_of(r) * c.heads + u.head + (r & ((1 << p.pack_bits) - 1));
    };
    upper.start(c, token_of(row)), lower.start(c, token_of(row + 8));
    const float before0 = upper.before(c, at(row)), before1 = lower.before(c, at(row + 8));
    if (u.steps > 0) {
      mbarrier_wait(base + Q_FULL, unit_parity);
#pragma unroll
      for (int i = 0; i < STEPS / 2; i++)
        ldmatrix(q[i], fragment_address(base + Q_AT + i / 4 * BOX, warp, lane, i % 4));
      mbarrier_arrive_warp(base + Q_EMPTY, lane);
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
      if (j == u.steps - 1) mbarrier_arrive_warp(base + Q_EMPTY + 8, lane);

      const int first = u.start + j * KEYS;
      if (first < u.all_lo || first + KEYS > u.all_hi) hide(s, first, upper, lower);
      float factor0, factor1;
      const bool moved = weigh(s, c.exponent, upper, lower, factor0, factor1);
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
      add_weights(s, upper, lower);
      fence_async();
      mbarrier_arrive_warp(base + P_FULL + 8 * buffer, lane);
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
      const auto finish = [&](const Row &r, int index, float before) {
        float now, old;
        const float lse = r.finish(c, before, now, old);
        if (!(old < 0)) c.lse[at(index)] = lse;
        store_shared(base + NOW_AT + 4 * index, __float_as_uint(now));
        store_shared(base + OLD_AT + 4 * index, __float_as_uint(old));
      };
      finish(upper, row, before0), finish(lower, row + 8, before1);
    }
    mbarrier_arrive_warp(base + RESULT_FULL, lane);
  }
}

}  // namespace
}  // namespace rattn

#endif
