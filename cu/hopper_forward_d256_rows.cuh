// hopper_forward_d256_rows.cuh: a warpgroup's 64 rows: scores, softmax, sums, results.
#ifndef RATTN_HOPPER_FORWARD_D256_ROWS_CUH
#define RATTN_HOPPER_FORWARD_D256_ROWS_CUH

#include "hopper_forward_d256.cuh"

namespace rattn {
namespace {

// Issues s = q k^T of 64 rows and a tile of keys; descriptors of both.
template <class S>
DEVICE void issue_scores(float (&s)[S::KEYS / 2], uint64_t q, uint64_t k) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::DIM / 16; i++)
    wgmma_ss<typename S::T, K_MAJOR, K_MAJOR>(s, q + steps(i / 4 * S::Q_BOX + i % 4 * 32),
                                              k + steps(i / 4 * S::KEY_BOX + i % 4 * 32), i > 0);
  wgmma_commit();
}

// Issues acc += p v.
template <class S>
DEVICE void issue_sums(float (&acc)[S::DIM / 2], const uint32_t (&p)[S::KEYS / 16][4], uint64_t v) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::KEYS / 16; i++)
    wgmma_rs<typename S::T, MN_MAJOR>(acc, p[i], v + steps(i * 2048), true);
  wgmma_commit();
}

// Weights as the left factor of sums.
template <class S>
DEVICE void pack_weights(uint32_t (&p)[S::KEYS / 16][4], const float (&s)[S::KEYS / 2]) {
#pragma unroll
  for (int i = 0; i < S::KEYS / 4; i++) p[i / 4][i % 4] = S::T::pack(s[2 * i], s[2 * i + 1]);
}

// The upper (0) or the lower (2) of a thread's rows.
template <int N>
struct Half {
  static constexpr int value = N;
};

// Warpgroup `group` of those that compute: its rows of all units.
template <class S>
DEVICE void attend_units(const Params &params, uint32_t base, int group) {
  const Call &c = params.call;
  const int lane = threadIdx.x % 32, row = 64 * group + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const uint64_t queries = descriptor(base + S::Q_AT + group * 64 * 128),
                 key_tiles = descriptor(base + S::K_AT), value_tiles = descriptor(base + S::V_AT, S::KEY_BOX);
  // Products are issued between begin and end.
  const auto begin_turn = [&] { barrier(1 + group, 256); };
  const auto end_turn = [&] { barrier_arrive(1 + (group + 1) % S::GROUPS, 256); };
  const auto release = [&](uint32_t barriers, uint32_t slot) {
    mbarrier_arrive_warp(base + barriers + 8 * slot, lane);
  };
  if (group == S::GROUPS - 1) end_turn();       // it is the first one's turn
  uint32_t keys = 0, values = 0, q_parity = 0;  // tiles so far
  for (uint32_t count = 0;; count++) {
    const Unit u = wait_unit<S>(base, count);
    if (u.steps < 0) break;
    const auto token_of = [&](int r) { return u.token + (r >> params.pack_bits); };
    Row upper, lower;
    upper.start(c, token_of(row)), lower.start(c, token_of(row + 8));
    float acc[S::DIM / 2];
#pragma unroll
    for (int i = 0; i < S::DIM / 2; i++) acc[i] = 0;
    if (u.steps > 0) {
      float s[S::KEYS / 2], factor0, factor1;
      uint32_t p[S::KEYS / 16][4];
      const auto wait_keys = [&] { mbarrier_wait(base + S::K_FULL + 8 * slot_of(keys), parity_of(keys)); };
      const auto scores = [&] { issue_scores<S>(s, queries, key_tiles + steps(slot_of(keys) * S::SLOT)); };
      const auto sums = [&] {
        mbarrier_wait(base + S::V_CLEAN + 8 * slot_of(values), parity_of(values));
        issue_sums<S>(acc, p, value_tiles + steps(slot_of(values) * S::SLOT));
      };
      // The scores of tile j, which are there, become weights. Returns whether a row moved.
      const auto weights = [&](int j) {
        keep(s);
        release(S::K_EMPTY, slot_of(keys));
        keys++;
        if (j == u.steps - 1) release(S::Q_EMPTY, 0);
        if (u.partial<S>(j)) hide(s, u.start + j * S::KEYS, upper, lower);
        const bool moved = weigh(s, c.exponent, upper, lower, factor0, factor1);
        add_weights(s, upper, lower);
        return moved;
      };
      const auto wait_sums = [&] {
        wgmma_wait<0>();
        keep(acc);
        release(S::V_EMPTY, slot_of(values));
        values++;
      };

      mbarrier_wait(base + S::Q_FULL, q_parity);
      q_parity ^= 1;
      wait_keys();
      begin_turn();
      scores();
      end_turn();
      wgmma_wait<0>();
      weights(0);
      pack_weights<S>(p, s);
#pragma unroll 1
      for (int j = 1; j < u.steps; j++) {
        wait_keys();
        begin_turn();
        scores();
        sums();
        end_turn();
        wgmma_wait<1>();
        const bool moved = weights(j);
        wait_sums();
        pack_weights<S>(p, s);
        if (moved) {
#pragma unroll
          for (int i = 0; i < S::DIM / 2; i++) acc[i] *= i & 2 ? factor1 : factor0;
        }
      }
      begin_turn();
      sums();
      end_turn();
      wait_sums();
    }

    const auto at = [&](int r) {
      return (int64_t)token_of(r) * c.heads + u.head + (r & ((1 << params.pack_bits) - 1));
    };
    const int from = load_shared(odd_at<S>(base, count)), to = load_shared(odd_at<S>(base, count) + 4);
    // Read by all four lanes of a row before one of them writes.
    const float before0 = upper.before(c, at(row)), before1 = lower.before(c, at(row + 8));
#pragma unroll
    for (int k = 1; k < 4; k *= 2) {
      upper.sum += __shfl_xor_sync(~0u, upper.sum, k);
      lower.sum += __shfl_xor_sync(~0u, lower.sum, k);
    }
    end_unit<S>(base, count);
    const auto store = [&](auto half, const Row &r, int index, float before) {
      float now, old;
      const float lse = r.finish(c, before, now, old);
      // Not (old >= 0): an lse that was NaN makes old NaN, and has to get through.
      if (old < 0) return;
      if (lane % 4 == 0) c.lse[at(index)] = lse;
      float *dst = c.out + at(index) * c.dim;
      store_row<decltype(half)::value>(c, dst, lane % 4 * 2, acc, now, old);
      if (from < to)
        add_odd<typename S::T, S::DIM>(c, u.head / params.group, token_of(index), dst, lane % 4 * 2, from,
                                       to);
    };
    store(Half<0>(), upper, row, before0);
    store(Half<2>(), lower, row + 8, before1);
  }
}

}  // namespace
}  // namespace rattn

#endif
