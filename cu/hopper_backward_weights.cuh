// hopper_backward_weights.cuh: the warpgroup of hopper_backward.cuh that computes weights.
#ifndef RATTN_HOPPER_BACKWARD_WEIGHTS_CUH
#define RATTN_HOPPER_BACKWARD_WEIGHTS_CUH

#include "hopper_backward_block.cuh"

namespace rattn {

// The keys that query rows see, where the tile is not seen whole: of columns 2 lane and the
// next, or of this lane's two rows.
template <class P>
struct Bounds {
  int lo[2], hi[2];

  DEVICE void load(const Call &call, int tile, int stream_row, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int query = P::KEYS ? stream_row + 2 * lane + i : tile + 16 * warp + lane / 4 + 8 * i;
      const bool there = query < call.rows;
      lo[i] = there ? __ldg(call.lo + query) : 0, hi[i] = there ? __ldg(call.hi + query) : 0;
    }
  }

  // Zeroes the weights of pairs that are not seen.
  DEVICE void hide(int tile, int stream_row, int warp, int lane, float (&w)[32]) const {
    const int key = P::KEYS ? tile + 16 * warp + lane / 4 : stream_row + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        // Keys and rows of elements 4i + e and two further.
        if constexpr (P::KEYS) {
          const int from = __shfl_sync(~0u, lo[e], 4 * i + lane % 4) - key;
          const int to = __shfl_sync(~0u, hi[e], 4 * i + lane % 4) - key;
          if (0 < from || 0 >= to) w[4 * i + e] = 0;
          if (8 < from || 8 >= to) w[4 * i + e + 2] = 0;
        } else {
          const int at = key + 8 * i + e;
          if (at < lo[0] || at >= hi[0]) w[4 * i + e] = 0;
          if (at < lo[1] || at >= hi[1]) w[4 * i + e + 2] = 0;
        }
      }
  }
};

// The warpgroup that computes weights.
template <class P>
DEVICE void weigh(const HopperBackward &a, const Block<P> &b, int warp, int lane) {
  using T = typename P::T;
  const Call &call = a.call;
  uint32_t held[P::HELD][4];
  mbarrier_wait(b.fixed_full(), 0);
#pragma unroll
  for (int k = 0; k < P::HELD; k++) ldmatrix(held[k], fragment_address(b.box(k / 4), warp, lane, k % 4));

  // lse log2 e less log2 of the weights' factor, and delta, of the scores. D_Q: of this
  // lane's two rows. D_V: lse of columns 2 lane and the next, of this step and the next one.
  float lse[2], delta[2], next[2];
  const float exponent = P::KIND == D_K ? 0 : weight_exponent<P>(call);
  float factor = 1;  // from dp to ds, where weights of f16 are scaled as those of p
  Step<P> at(b);
  if constexpr (P::KIND == D_Q) {
    const float *x = numbers_of(a, b.tile, b.head) + 16 * warp + lane / 4;
    const bool there = b.tile < call.rows;
    lse[0] = there ? x[0] - exponent : 0, lse[1] = there ? x[8] - exponent : 0;
    delta[0] = there ? x[64] : 0, delta[1] = there ? x[72] : 0;
    if (P::STORE && T::UNIT == F16::UNIT) {
      const Ranges<P> ranges(call);
      factor = ranges.ds / ranges.p;
      delta[0] *= factor, delta[1] *= factor;
    }
  }
  if constexpr (P::KIND == D_V) {
    const float2 x = __ldg((const float2 *)numbers_of(a, at.row, at.head) + lane);
    next[0] = x.x, next[1] = x.y;
  }
  Sight<P> sight;
  sight.look(call, at);
  cluster_sync();  // the ring of scores is free

  const uint64_t ring = descriptor(b.base + P::SCORES_AT), fixed = descriptor(b.base + P::FIXED_AT);
  Turn<P::SCORE_SLOTS> turn, done;
  // Issues a quarter of a product with the first or the second stationary tensor.
  auto multiply = [&](float(&d)[32], int quarter, auto second) {
    mbarrier_wait(b.score_full(turn.slot), turn.parity);
    const uint64_t slot = ring + turn.slot * steps(P::SLOT);
    wgmma_fence();
#pragma unroll
    for (int u = 0; u < 8; u++) {
      const int k = 8 * quarter + u;
      const uint64_t right = slot + u / 4 * steps(P::BOX) + u % 4 * steps(32);
      if (!second.value && k < P::HELD)
        wgmma_rs<T, K_MAJOR>(d, held[k < P::HELD ? k : 0], right, k > 0);
      else
        wgmma_ss<T, K_MAJOR, K_MAJOR>(
            d, fixed + (k / 4 + (second.value ? 8 : 0) - P::HELD_BOXES) * steps(P::BOX) + k % 4 * steps(32),
            right, k > 0);
    }
    wgmma_commit();
    turn.next();
  };
  // Waits for all but the last quarter, or for all, and gives a slot back.
  auto finish = [&](auto last) {
    wgmma_wait<last.value ? 0 : 1>();
    release(b.score_empty(done.slot), lane);
    done.next();
  };
  constexpr Constant<false> FIRST, MORE;
  constexpr Constant<true> SECOND, LAST;

  // Where this warp's rows of the tile of keys at `row` are kept.
  uint8_t *const rows_kept = P::STORE
                                 ? stored_at(a, b.first_head - a.first_kv_head, b.tile / 64 - a.first_tile,
                                             b.head % (call.heads / call.kv_heads)) +
                                       2048 * warp
                                 : nullptr;
  auto kept = [&](int row) { return rows_kept + (row / 64 - b.begin) * STORED_BYTES; };

#pragma unroll 1
  for (int j = 0; j < b.steps; j++) {
    const int buffer = j & 1;
    const bool all = sight.all(b);
    const int row = at.row;
    if constexpr (P::KIND == D_V) lse[0] = next[0] - exponent, lse[1] = next[1] - exponent;
    at.next(b);
    if (j + 1 < b.steps) {
      sight.look(call, at);
      if constexpr (P::KIND == D_V) {
        const float2 x = __ldg((const float2 *)numbers_of(a, at.row, at.head) + lane);
        next[0] = x.x, next[1] = x.y;
      }
    }
    Bounds<P> bounds;
    if (!all) bounds.load(call, b.tile, row, warp, lane);
    float p[32], ds[P::TWO ? 32 : 1];
    const uint32_t weights = b.base + P::WEIGHTS_AT + buffer * P::BOX;
    // Rounds p to 16 bits, into shared memory.
    auto put = [&] {
#pragma unroll
      for (int g = 0; g < 4; g++)
        stmatrix(fragment_address(weights, warp, lane, g), T::pack(p[8 * g], p[8 * g + 1]),
                 T::pack(p[8 * g + 2], p[8 * g + 3]), T::pack(p[8 * g + 4], p[8 * g + 5]),
                 T::pack(p[8 * g + 6], p[8 * g + 7]));
      fence_async();
      __syncwarp();
    };
    auto hand_on = [&] {
      if (j > 0) mbarrier_arrive_warp(b.weights_full(buffer ^ 1), lane);
    };

    float columns[P::KIND == D_K ? 16 : 1];  // lse, then delta, of the columns of this lane
    const uint32_t numbers = b.base + P::NUMBERS_AT + buffer * 512 + lane % 4 * 8;
    auto load_columns = [&](int offset) {
#pragma unroll
      for (int i = 0; i < 8; i++) load_shared(columns[2 * i], columns[2 * i + 1], numbers + offset + 32 * i);
    };
#pragma unroll
    for (int i = 0; i < 4; i++) {
      multiply(p, i, FIRST);
      if (P::KIND == D_V && i == 3) hand_on();
      if (i > 0) finish(MORE);
      if constexpr (P::KIND == D_K)
        if (i == 2) {
          mbarrier_wait(b.numbers_full(buffer), j >> 1 & 1);
          load_columns(0);
        }
    }
    // p = exp(scale s - lse), for fragments [from, to) of 8 columns.
    auto normalise = [&](int from, int to) {
#pragma unroll
      for (int i = from; i < to; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float x;
          if constexpr (P::KIND == D_Q) x = lse[e / 2];
          if constexpr (P::KIND == D_K) x = columns[2 * i + e % 2];
          if constexpr (P::KIND == D_V) x = __shfl_sync(~0u, lse[e % 2], 4 * i + lane % 4);
          p[4 * i + e] = exp2_fast(fmaf(p[4 * i + e], call.exponent, -x));
        }
    };
    if constexpr (!P::TWO) {
      finish(LAST);
      keep(p);
      normalise(0, 8);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        multiply(ds, i, SECOND);
        if (i == 3) hand_on();
        finish(MORE);
        if (i == 0) keep(p);
        if constexpr (!P::STORE) {
          normalise(2 * i, 2 * i + 2);
        } else if (i < 2) {
          normalise(4 * i, 4 * i + 4);
          if (i == 1) {
            // p stays in the buffer of ds until it has been sent off.
            if (!all) bounds.hide(b.tile, row, warp, lane, p);
            mbarrier_wait(b.weights_empty(buffer), (j >> 1 & 1) ^ 1);
            put();  // what was in the buffer was sent off before the last ds was stored
            if (lane == 0) bulk_store(kept(row), weights + 2048 * warp, 2048);
          }
        }
      }
      finish(LAST);
      keep(ds);
      if constexpr (P::KIND == D_K) load_columns(256);
#pragma unroll
      for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float x =
              P::KIND == D_Q ? delta[e / 2] : columns[(2 * i + e % 2) % (P::KIND == D_K ? 16 : 1)];
          float &w = ds[4 * i + e];
          w = P::STORE && T::UNIT == F16::UNIT ? fmaf(w, factor, -x) : w - x;
        }
      if (!all)  // dp and delta of rows that weigh nothing may be NaN
#pragma unroll
        for (int i = 0; i < 32; i++) ds[i] = p[i] == 0 ? 0 : ds[i];
#pragma unroll
      for (int i = 0; i < 32; i++) p[i] *= ds[i];
    }
    if (!all) bounds.hide(b.tile, row, warp, lane, p);

    if constexpr (P::STORE) {
      if (lane == 0) bulk_wait_read<0>();
      __syncwarp();
    } else {
      mbarrier_wait(b.weights_empty(buffer), (j >> 1 & 1) ^ 1);
    }
    put();
    if (P::STORE && lane == 0) bulk_store(kept(row) + P::BOX, weights + 2048 * warp, 2048);
    if (j == b.steps - 1) mbarrier_arrive_warp(b.weights_full(buffer), lane);
    if (P::KIND == D_K) mbarrier_arrive_warp(b.numbers_empty(buffer), lane);
  }
  if (P::STORE && lane == 0) bulk_wait();
}

}  // namespace rattn

#endif
