// hopper_backward_d256.cuh: dk, dv and ds on sm_90a for head sizes up to 256, and the kernel that
// computes them, beside dq of what came before.
//
//   dv[key] += sum over rows and heads of p[row, key] dout[row]
//   dk[key] += sum over rows and heads of ds[row, key] q[row]
//
// A block owns keys and goes over the rows that see them. Scores have keys as their rows,
// s^T = k q^T and dp^T = v dout^T, so that p^T and ds^T are operands as they come, from
// registers. ds is rounded to 16 bits once, for dk and for dq: it is kept in global memory, from
// where hopper_backward_d256_rows.cuh takes it. Five products for five.
//
// 0 times Inf is NaN: where a block's keys are not all seen by all of a tile's rows, what is not
// finite is set to 0 once the scores are done, and added by hand to the keys that are seen.
#ifndef RATTN_HOPPER_BACKWARD_D256_CUH
#define RATTN_HOPPER_BACKWARD_D256_CUH

#include "hopper_backward_d256_pair.cuh"
#include "hopper_backward_d256_rows.cuh"

namespace rattn {

// Barriers of the block by which the warpgroups take turns with their products, one each: one's
// exponentials run beside the other's products.
constexpr int TURN = 2;

// The first or the second.
template <bool FIRST, class A, class B>
DEVICE auto &choose(A &a, B &b) {
  if constexpr (FIRST)
    return a;
  else
    return b;
}

// A warpgroup with 64 keys of its own, up to head_dim 128.
template <class P>
DEVICE void sum_both(const HopperKept &a, const KeptBlock<P> &b, int which, int warp, int lane) {
  using T = typename P::T;
  const Call &call = a.call;
  float dk[P::DIM / 2], dv[P::DIM / 2], s[32], dp[32];
#pragma unroll
  for (int i = 0; i < P::DIM / 2; i++) dk[i] = dv[i] = 0;
  const int tile = b.tile + 64 * which;
  // p and ds in 16 bits, operands: at 128 in the same registers, as others are not there.
  uint32_t p16[4][4], more[P::ROUNDED ? 1 : 4][4];
  uint32_t(&ds16)[4][4] = choose<P::ROUNDED>(p16, more);
  bool all = true;
  Turn<P::STAGES> turn;
  // Issues s and dp of a step. After the last one of what is there, and of no use: a branch
  // around products would end what is under way. `ready`: the step's loads are known to be done.
  auto score = [&](bool there, bool ready) {
    // Anew in each step: sums of what is constant would take registers that are not there.
    const uint64_t k = descriptor(__shfl_sync(~0u, b.k(which), 0));
    const uint64_t q = descriptor(__shfl_sync(~0u, b.q(turn.slot), 0));
    if (there && !ready) mbarrier_wait(b.q_full(turn.slot), turn.parity);
    all = b.all(turn.slot) || !there;
    multiply_scores<P>(s, k, q);
    multiply_scores<P>(dp, k + steps(P::TILE), q + steps(P::TILE));
  };
  // p, when s is done.
  auto weigh = [&] {
    Bounds<P> bounds;
    if (!all) bounds.load(call, tile, b.row_of(turn.slot), warp, lane);
    float lse[8][2];
    auto load_lse = [&](int i) {
      load_shared(lse[i][0], lse[i][1], b.numbers(turn.slot) + 32 * i + lane % 4 * 8);
    };
    if constexpr (!P::ROUNDED)
#pragma unroll
      for (int i = 0; i < 8; i++) load_lse(i);
    wgmma_wait<1>();
    keep(s);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if constexpr (P::ROUNDED) load_lse(i);
#pragma unroll
      for (int e = 0; e < 4; e++) s[4 * i + e] = exp2_fast(fmaf(s[4 * i + e], call.exponent, -lse[i][e % 2]));
    }
    if (!all) bounds.hide(tile, 0, warp, lane, s);
    pack_weights<T>(s, p16);
  };
  if (which == 1) barrier_arrive(TURN, 256);
  mbarrier_wait(b.fixed_full(), 0);
  score(true, false);
  weigh();
  wgmma_wait<0>();
  keep(dp);
#pragma unroll 1
  for (int left = b.steps; left > 0; left--) {
    const uint32_t slot = turn.slot;
    const bool odd = !all && clean_stage(b, b.q(slot), which, warp, lane), partial = !all;
    const uint64_t q = descriptor(__shfl_sync(~0u, b.q(slot), 0), P::BOX);
    multiply_weights<P>(dv, p16, q + steps(P::TILE));
    const int kept = b.kept(slot, which);
    turn.next();
    const bool ready = left > 1 && mbarrier_try(b.q_full(turn.slot), turn.parity);
    const float factor = b.factor();
    auto p = [&](int i) {
      if constexpr (P::ROUNDED) {
        const uint32_t pair = p16[i / 8][i / 2 % 4];
        return i % 2 ? T::high(pair) : T::low(pair);
      } else {
        return s[i];
      }
    };
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float delta[2];
      load_shared(delta[0], delta[1], b.numbers(slot) + 256 + 32 * i + lane % 4 * 8);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float &x = dp[4 * i + e];
        x = T::UNIT == F16::UNIT ? fmaf(x, factor, -delta[e % 2]) : x - delta[e % 2];
        x *= p(4 * i + e);
      }
    }
    if (partial)  // dp and delta of what is not seen may be NaN
#pragma unroll
      for (int i = 0; i < 32; i++) dp[i] = p(i) == 0 ? 0 : dp[i];
    if (P::ROUNDED) wgmma_wait<0>();
    pack_weights<T>(dp, ds16);
    barrier(TURN + which, 256);
    multiply_weights<P>(dk, ds16, q);
    if (odd) {
      wgmma_wait<0>();
      keep(dk), keep(dv);
      const int row = b.row_of(slot), key = tile + 16 * warp + lane / 4, head = b.head_of(slot);
      add_odd_rows<T>(call, call.dout, row, head, key, 2 * (lane % 4), dv);
      add_odd_rows<T>(call, call.q, row, head, key, 2 * (lane % 4), dk);
    }
    score(left > 1, ready);
    if (left > 1 || which == 0) barrier_arrive(TURN + 1 - which, 256);
    put_ds(b, left, which, ds16, warp, lane);
    weigh();
    send_ds(a, b, kept, left, which, warp, lane);
    mbarrier_arrive_warp(b.q_empty(slot), lane);
    wgmma_wait<0>();
    keep(dp);
  }
  keep(dk), keep(dv);
  if (lane == 0) bulk_wait();
  const int key = tile + 16 * warp + lane / 4;
  store_keys<P>(call, b, key, 1, lane, dv);
  store_keys<P>(call, b, key, 0, lane, dk);
}

// A block of keys.
template <class P>
DEVICE void sum_block(const HopperKept &a, int block) {
  const KeptBlock<P> b(a, tile_memory(), block);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0),
            warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::STAGES; i++) {
      mbarrier_init(b.q_full(i), 1 + 2 * WARP_ARRIVALS), mbarrier_init(b.q_empty(i), 8 * WARP_ARRIVALS);
      mbarrier_init(b.dout_full(i), 1), mbarrier_init(b.dout_empty(i), 8 * WARP_ARRIVALS);
    }
    mbarrier_init(b.fixed_full(), 1), mbarrier_init(b.meeting(), 8 * WARP_ARRIVALS);
    mbarrier_init(b.p_full(), 4 * WARP_ARRIVALS), mbarrier_init(b.p_empty(), 4 * WARP_ARRIVALS);
    fence_mbarrier_init();
    b.put_factor(a.call);
  }
  __syncthreads();
  if (b.steps == 0) {
    wait_prerequisites();
    return;
  }
  if (warpgroup == 0) {
    shrink_registers<24>();
    if (warp == 0 && lane == 0) load_kept(a, b);
    if (warp == 1) load_numbers(a, b, lane);
    if (warp == 2) load_places(a, b, lane);
    __syncwarp();
  } else {
    grow_registers<240>();
    if constexpr (!P::PAIR)
      sum_both(a, b, warpgroup - 1, warp, lane);
    else if (warpgroup == 1)
      sum_values(a, b, warp, lane);
    else
      sum_keys(a, b, warp, lane);
  }
  // Nor may this kernel end before the one beside whose last blocks it may have begun.
  if (threadIdx.x == 0) wait_prerequisites();
}

// How the blocks of a launch share its work: first `workers` blocks, which have the first `early`
// units of dq; then one for each block of keys; then one for each other unit of dq.
struct Shares {
  int workers, early, keys;
};

// What a block of either kind has.
template <class K, class R>
struct KeptBoth {
  static constexpr int THREADS = K::THREADS,
                       SHARED_BYTES = K::SHARED_BYTES > R::SHARED_BYTES ? K::SHARED_BYTES : R::SHARED_BYTES;
  static_assert(R::THREADS == THREADS, "blocks of one launch are of one size");
};

// dk, dv and ds of a part, and dq of another one, `rows`, whose ds is there. Memory is the limit of
// dq, and a few multiprocessors draw more than their share of it.
template <class K, class R>
__global__ void __launch_bounds__(K::THREADS, 1)
    kept_both(const __grid_constant__ HopperKept keys, const __grid_constant__ HopperKept rows,
              Shares shares) {
  start_dependents();
  const int block = (int)blockIdx.x - shares.workers, unit = shares.early + block - shares.keys;
  const bool works = block < 0;
  if (!works && block < shares.keys)
    sum_block<K>(keys, block);
  else
    sum_row_units<R>(rows, works ? blockIdx.x : unit, works ? shares.early : unit + 1,
                     works ? shares.workers : 1);
}

}  // namespace rattn

#endif
