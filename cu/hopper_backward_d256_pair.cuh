// hopper_backward_d256_pair.cuh: the warpgroups of hopper_backward_d256.cuh where one has no
// room for dk and dv of 64 keys: both have the same keys, one computes p and dv, the other dp,
// ds and dk, and is told p through shared memory.
#ifndef RATTN_HOPPER_BACKWARD_D256_PAIR_CUH
#define RATTN_HOPPER_BACKWARD_D256_PAIR_CUH

#include "hopper_backward_d256_block.cuh"

namespace rattn {

// Where a thread leaves p for the same thread of the other warpgroup: piece i of 16 bytes.
template <class P>
DEVICE uint32_t p_piece(const KeptBlock<P> &b, int i) {
  return b.base + P::P_AT + i * 2048 + threadIdx.x % 128 * 16;
}

// p and dv. The next products of scores go first, and p is computed beside those of dv.
template <class P>
DEVICE void sum_values(const HopperKept &a, const KeptBlock<P> &b, int warp, int lane) {
  using T = typename P::T;
  const Call &call = a.call;
  float dv[P::DIM / 2], p[32];
#pragma unroll
  for (int i = 0; i < P::DIM / 2; i++) dv[i] = 0;
  uint32_t weights[4][4];
  Turn<P::STAGES> turn;
  // Issues s of a step. After the last one of what is there, and of no use: a branch around
  // products would end what is under way.
  auto score = [&](bool there) {
    if (there) mbarrier_wait(b.q_full(turn.slot), turn.parity);
    multiply_scores<P>(p, descriptor(__shfl_sync(~0u, b.k(0), 0)),
                       descriptor(__shfl_sync(~0u, b.q(turn.slot), 0)));
  };
  auto weigh = [&](int j) {
    const bool all = b.all(turn.slot);
    Bounds<P> bounds;
    if (!all) bounds.load(call, b.tile, b.row_of(turn.slot), warp, lane);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float lse[2];
      load_shared(lse[0], lse[1], b.numbers(turn.slot) + 32 * i + lane % 4 * 8);
#pragma unroll
      for (int e = 0; e < 4; e++) p[4 * i + e] = exp2_fast(fmaf(p[4 * i + e], call.exponent, -lse[e % 2]));
    }
    if (!all) bounds.hide(b.tile, 0, warp, lane, p);
    mbarrier_wait(b.p_empty(), (j & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < 8; i++)
      store_shared4(p_piece(b, i), {__float_as_uint(p[4 * i]), __float_as_uint(p[4 * i + 1]),
                                    __float_as_uint(p[4 * i + 2]), __float_as_uint(p[4 * i + 3])});
    mbarrier_arrive_warp(b.p_full(), lane);
    return all;
  };
  mbarrier_wait(b.fixed_full(), 0);
  score(true);
  wgmma_wait<0>();
  keep(p);
  bool all = weigh(0);
#pragma unroll 1
  for (int j = 0; j < b.steps; j++) {
    const uint32_t slot = turn.slot;
    pack_weights<T>(p, weights);
    mbarrier_wait(b.dout_full(slot), turn.parity);
    const int row = b.row_of(slot), head = b.head_of(slot);
    const bool odd = !all && clean_stage(b, b.q(slot), 0, warp, lane);
    mbarrier_arrive_warp(b.q_empty(slot), lane);
    turn.next();
    const bool there = j + 1 < b.steps;
    score(there);
    multiply_weights<P>(dv, weights, descriptor(__shfl_sync(~0u, b.dout(slot), 0), P::BOX));
    wgmma_wait<1>();
    keep(p);
    if (there) all = weigh(j + 1);
    wgmma_wait<0>();
    keep(dv);
    mbarrier_arrive_warp(b.dout_empty(slot), lane);
    if (odd) add_odd_rows<T>(call, call.dout, row, head, b.tile + 16 * warp + lane / 4, 2 * (lane % 4), dv);
  }
  store_keys<P>(call, b, b.tile + 16 * warp + lane / 4, 1, lane, dv);
}

// dp, ds and dk, likewise.
template <class P>
DEVICE void sum_keys(const HopperKept &a, const KeptBlock<P> &b, int warp, int lane) {
  using T = typename P::T;
  const Call &call = a.call;
  float dk[P::DIM / 2], ds[32];
#pragma unroll
  for (int i = 0; i < P::DIM / 2; i++) dk[i] = 0;
  uint32_t weights[4][4];
  Turn<P::STAGES> turn;
  auto score = [&](bool there) {
    if (there) mbarrier_wait(b.dout_full(turn.slot), turn.parity);
    multiply_scores<P>(ds, descriptor(__shfl_sync(~0u, b.v(0), 0)),
                       descriptor(__shfl_sync(~0u, b.dout(turn.slot), 0)));
  };
  auto weigh = [&](int j) {
    mbarrier_wait(b.q_full(turn.slot), turn.parity);
    const bool all = b.all(turn.slot);
    mbarrier_wait(b.p_full(), j & 1);
    const float factor = b.factor();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint4 x = load_shared4(p_piece(b, i));
      const float p[4] = {__int_as_float((int)x.x), __int_as_float((int)x.y), __int_as_float((int)x.z),
                          __int_as_float((int)x.w)};
      float delta[2];
      load_shared(delta[0], delta[1], b.numbers(turn.slot) + 256 + 32 * i + lane % 4 * 8);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float &w = ds[4 * i + e];
        w = T::UNIT == F16::UNIT ? fmaf(w, factor, -delta[e % 2]) : w - delta[e % 2];
        w *= p[e];
      }
    }
    if (!all)  // dp and delta of what is not seen may be NaN
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const uint4 x = load_shared4(p_piece(b, i));
        if (x.x == 0) ds[4 * i] = 0;
        if (x.y == 0) ds[4 * i + 1] = 0;
        if (x.z == 0) ds[4 * i + 2] = 0;
        if (x.w == 0) ds[4 * i + 3] = 0;
      }
    mbarrier_arrive_warp(b.p_empty(), lane);
    return all;
  };
  mbarrier_wait(b.fixed_full(), 0);
  score(true);
  wgmma_wait<0>();
  keep(ds);
  bool all = weigh(0);
#pragma unroll 1
  for (int j = 0; j < b.steps; j++) {
    const uint32_t slot = turn.slot;
    pack_weights<T>(ds, weights);
    const int row = b.row_of(slot), head = b.head_of(slot), kept = b.kept(slot, 0);
    const bool odd = !all && clean_stage(b, b.q(slot), 1, warp, lane);
    mbarrier_arrive_warp(b.dout_empty(slot), lane);
    turn.next();
    const bool there = j + 1 < b.steps;
    score(there);
    multiply_weights<P>(dk, weights, descriptor(__shfl_sync(~0u, b.q(slot), 0), P::BOX));
    put_ds(b, j, 0, weights, warp, lane);
    wgmma_wait<1>();
    keep(ds);
    if (there) all = weigh(j + 1);
    send_ds(a, b, kept, j, 0, warp, lane);
    wgmma_wait<0>();
    keep(dk);
    mbarrier_arrive_warp(b.q_empty(slot), lane);
    if (odd) add_odd_rows<T>(call, call.q, row, head, b.tile + 16 * warp + lane / 4, 2 * (lane % 4), dk);
  }
  if (lane == 0) bulk_wait();
  store_keys<P>(call, b, b.tile + 16 * warp + lane / 4, 0, lane, dk);
}

}  // namespace rattn

#endif
