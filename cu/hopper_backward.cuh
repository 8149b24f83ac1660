// hopper_backward.cuh: gradients on sm_90a for head sizes up to 512, a kernel a tensor.
//
// A pair of blocks (a cluster) owns two neighbouring stationary tiles of 64 rows of a head,
// and both go over the stream tiles that either sees, in the same order: each loads half of
// every slot of the stream and sends it to both. Scores have the rows of the result, so that
// p or ds, the weights, are stored once and read as they lie.
//
//   kind  stationary  scores                      accumulated      streams: scores; sums
//   D_V   k           s^T = k q^T                 dv += p^T dout   q; dout
//   D_K   k, v        s^T, dp^T = v dout^T        dk += ds^T q     q, dout; q
//   D_Q   q, dout     s = q k^T, dp = dout v^T    dq += ds k       k, v; k
//
// Four warpgroups: one loads, one computes weights, two accumulate [64, 256] each. Tensor
// cores starve products of 64 columns while wider ones wait, so the weights of a step are
// handed on only when all products of the next step's scores have been issued.
//
// 0 times Inf is NaN: where a block's rows do not all see all of a tile, the slots to be
// accumulated are searched for what is not finite; it is set to 0 and added by hand to the
// rows that see it.
#ifndef RATTN_HOPPER_BACKWARD_CUH
#define RATTN_HOPPER_BACKWARD_CUH

#include "hopper_backward_weights.cuh"

namespace rattn {

// The tensor that is summed: rows of a head from `row` on.
template <class P>
DEVICE const uint16_t *summed(const Call &call, int row, int head) {
  const void *x = P::KIND == D_V ? call.dout : P::KIND == D_K ? call.q : call.k;
  return (const uint16_t *)x + row * (P::KEYS ? call.q_token : call.kv_token) + (int64_t)head * call.stride;
}

// Zeroes what is Inf or NaN in a warpgroup's half of a slot; returns whether there was any.
// All its threads come here, and the slot may be multiplied afterwards.
template <class P>
DEVICE bool clean_half(uint32_t half_slot, int half) {
  bool odd = false;
#pragma unroll 1
  for (int i = threadIdx.x % 128; i < P::SLOT / 2 / 16; i += 128)
    odd |= clean_piece<typename P::T>(half_slot + 16 * i);
  fence_async();
  return barrier_or(1 + half, 128, odd);
}

// Adds what clean_half took out of 16 rows of the stream to the rows that it is paired with.
template <class P>
DEVICE void add_odd(const Call &call, const Block<P> &b, const Step<P> &at, int stream_row, int half,
                    int warp, int lane, float (&sums)[2][64]) {
  const int end = min(stream_row + 16, P::KEYS ? call.rows : call.tokens);
#pragma unroll 1
  for (int k = stream_row; k < end; k++) {
    bool paired[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = b.tile + 16 * warp + lane / 4 + 8 * i;
      paired[i] = P::KEYS ? weighs(call, k, at.head, row) : weighs(call, row, b.head, k);
    }
    add_odd_pairs<typename P::T, 32>(summed<P>(call, k, at.head), 256 * half + 2 * (lane % 4), call.stride,
                                     paired,
                                     [&](int n, int e) -> float & { return sums[n / 16][n % 16 * 4 + e]; });
  }
}

// Adds, or writes, a warpgroup's half of the columns of the stationary tile's gradient.
template <class P>
DEVICE void store_sums(const Call &call, const Block<P> &b, int half, int warp, int lane,
                       const float (&sums)[2][64]) {
  const Ranges<P> ranges(call);
  const float factor = P::KIND == D_V   ? 1 / ranges.p
                       : P::KIND == D_K ? call.scale / ranges.ds
                                        : call.gradient / ranges.ds;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int64_t row = b.tile + 16 * warp + lane / 4 + 8 * i;
    if (row >= (P::KEYS ? call.tokens : call.rows)) continue;
    float *dst = P::KEYS ? call.dkv + ((2 * row + (P::KIND == D_V)) * call.kv_heads + b.head) * call.dim
                         : call.dq + (row * call.heads + b.head) * call.dim;
    store_pairs<32, 8>(dst, 256 * half + 2 * (lane % 4), call.dim, factor, 1, P::KEYS || !call.first,
                       [&](int n, int e) { return sums[n / 16][n % 16 * 4 + 2 * i + e]; });
  }
}

// A warpgroup that accumulates columns [256 half, 256 half + 256).
template <class P>
DEVICE void accumulate(const HopperBackward &a, const Block<P> &b, int half, int warp, int lane) {
  using T = typename P::T;
  Step<P> at(b);
  Sight<P> sight;
  sight.look(a.call, at);
  cluster_sync();
  float sums[2][64];
#pragma unroll
  for (int i = 0; i < 128; i++) sums[i / 64][i % 64] = 0;
  const uint32_t slots = b.base + P::SUMS_AT + half * (P::SLOT / 2);
  const uint64_t ring = descriptor(slots, P::GROUP), left = descriptor(b.base + P::WEIGHTS_AT);
  Turn<P::SUM_SLOTS> turn;
  auto multiply = [&](int buffer, int i) {
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < 2; n++)
      wgmma_ss<T, K_MAJOR, MN_MAJOR>(sums[n], left + buffer * steps(P::BOX) + i * steps(32),
                                     ring + turn.slot * steps(P::SLOT) + n * steps(4 * P::GROUP / 2), true);
    wgmma_commit();
  };
#pragma unroll 1
  for (int j = 0; j < b.steps; j++) {
    const int buffer = j & 1;
    const bool all = sight.all(b);
    const Step<P> now = at;
    at.next(b);
    if (j + 1 < b.steps) sight.look(a.call, at);
    mbarrier_wait(b.weights_full(buffer), j >> 1 & 1);
    uint32_t before = 0;
    int odd = 0;  // of the four slots
#pragma unroll
    for (int i = 0; i < 4; i++) {
      mbarrier_wait(b.sum_full(turn.slot), turn.parity);
      if (!all && clean_half<P>(slots + turn.slot * P::SLOT, half)) odd |= 1 << i;
      multiply(buffer, i);
      if (i > 0) {
        wgmma_wait<1>();
        release(b.sum_empty(before), lane);
      }
      before = turn.slot;
      turn.next();
    }
    wgmma_wait<0>();
    keep(sums[0]), keep(sums[1]);
    release(b.sum_empty(before), lane);
    if (odd)
      for (int i = 0; i < 4; i++)
        if (odd >> i & 1) add_odd<P>(a.call, b, now, now.row + 16 * i, half, warp, lane, sums);
    mbarrier_arrive_warp(b.weights_empty(buffer), lane);
  }
  store_sums<P>(a.call, b, half, warp, lane, sums);
}

template <class P>
__global__ void __cluster_dims__(HopperBackward::CLUSTER, 1, 1) __launch_bounds__(P::THREADS, 1)
    hopper_backward(const __grid_constant__ HopperBackward a) {
  const Block<P> b(a, tile_memory());
  start_dependents();
  if (b.steps == 0 && (P::KEYS || !a.call.first)) {  // the same in both blocks
    wait_prerequisites();
    return;
  }
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0),
            warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::SCORE_SLOTS; i++)
      mbarrier_init(b.score_full(i), 1), mbarrier_init(b.score_empty(i), 8);
    for (int i = 0; i < P::SUM_SLOTS; i++) mbarrier_init(b.sum_full(i), 1), mbarrier_init(b.sum_empty(i), 16);
    for (int i = 0; i < 2; i++) {
      mbarrier_init(b.weights_full(i), 4 * WARP_ARRIVALS),
          mbarrier_init(b.weights_empty(i), 8 * WARP_ARRIVALS);
      mbarrier_init(b.numbers_full(i), WARP_ARRIVALS), mbarrier_init(b.numbers_empty(i), 4 * WARP_ARRIVALS);
    }
    mbarrier_init(b.fixed_full(), 1);
    fence_mbarrier_init();
    load_fixed(a, b);
  }
  __syncthreads();
  if (warpgroup == 0) {
    shrink_registers<24>();
    cluster_sync();
    if (warp == 0 && lane == 0) load_scores(a, b);
    if (warp == 1 && lane == 0) load_sums(a, b);
    if (P::KIND == D_K && warp == 2) load_numbers(a, b, lane);
    __syncwarp();
  } else if (warpgroup == 1) {
    grow_registers<168>();
    weigh(a, b, warp, lane);
  } else {
    grow_registers<160>();
    accumulate(a, b, warpgroup - 2, warp, lane);
  }
  __syncwarp();
  cluster_sync();  // no block ends while the other may still send to it
  // Nor before the kernel before, beside whose last blocks this one may have begun.
  if (threadIdx.x == 0) wait_prerequisites();
}

}  // namespace rattn

#endif
