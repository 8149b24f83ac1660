// hopper_backward_d256_rows.cuh: dq on sm_90a from the ds that hopper_backward_d256.cuh keeps:
// dq[row] += sum over keys of ds[row, key] k[key].
//
// A block owns 128 query rows of a head at a time, a warpgroup 64 of them, and goes over the keys
// that they see. Up to head_dim 128 memory, which ds comes from, is the limit.
#ifndef RATTN_HOPPER_BACKWARD_D256_ROWS_CUH
#define RATTN_HOPPER_BACKWARD_D256_ROWS_CUH

#include "hopper_backward_d256_block.cuh"

namespace rattn {

template <class T_, int DIM_, int STAGES_>
struct KeptRows {
  using T = T_;
  static constexpr Kind KIND = D_Q;
  static constexpr bool TWO = true;
  static constexpr int DIM = DIM_, STAGES = STAGES_, THREADS = 384;
  // A stage: ds of 64 keys by 2 x 64 rows, then 64 keys as boxes of 64 dims.
  static constexpr int BOX = 8192, TILE = DIM / 64 * BOX, STAGE = 2 * BOX + TILE;
  static constexpr int BARRIERS_AT = STAGES * STAGE, SHARED_BYTES = BARRIERS_AT + 16 * STAGES + 1024;
  static_assert(SHARED_BYTES <= 232448, "shared memory of a block");
};

// What all warps of a block know.
template <class P>
struct RowBlock {
  uint32_t base;
  int tile, kv_head, member;          // the first row tile; the head, of the launch's
  int first[2], last[2], begin, end;  // tiles of keys that either row tile sees, and both
  int all_lo, all_hi;                 // keys that all rows see

  DEVICE uint32_t full(int i) const { return base + P::BARRIERS_AT + 8 * i; }
  DEVICE uint32_t empty(int i) const { return base + P::BARRIERS_AT + 8 * (P::STAGES + i); }
  DEVICE uint32_t stage(int i) const { return base + i * P::STAGE; }
  DEVICE bool there(int which, int key_tile) const {
    return first[which] <= key_tile && key_tile < last[which];
  }

  // The heaviest tiles of a causal mask, the last rows, of all heads first.
  DEVICE RowBlock(const HopperKept &a, uint32_t shared, int unit) : base(shared) {
    const Call &call = a.call;
    const int heads = a.kv_heads * a.members;
    const int n = unit % heads;
    tile = a.first_tile + 2 * ((call.tiles + 1) / 2 - 1 - unit / heads);
    kv_head = a.first_kv_head + n / a.members, member = n % a.members;
    all_lo = 0, all_hi = INT_MAX;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      first[i] = last[i] = 0;
      if (tile + i >= a.first_tile + call.tiles) continue;
      const Seen s = call.seen[tile + i];
      if (s.lo < s.hi) first[i] = s.lo / 64, last[i] = (s.hi + 63) / 64;
      all_lo = max(all_lo, s.all_lo), all_hi = min(all_hi, s.all_hi);
    }
    const bool both = first[0] < last[0] && first[1] < last[1];
    begin = both ? min(first[0], first[1]) : max(first[0], first[1]), end = max(last[0], last[1]);
  }
};

template <class P>
DEVICE void load_rows(const HopperKept &a, const RowBlock<P> &b, Turn<P::STAGES> &turn) {
  const KeptRow kept(a, b.kv_head - a.first_kv_head, b.tile, b.member);
#pragma unroll 1
  for (int i = b.begin; i < b.end; i++, turn.next()) {
    const uint32_t full = b.full(turn.slot), stage = b.stage(turn.slot);
    mbarrier_wait(b.empty(turn.slot), turn.parity ^ 1);
    mbarrier_expect(full, P::TILE + (b.there(0, i) + b.there(1, i)) * P::BOX);
#pragma unroll
    for (int w = 0; w < 2; w++)
      if (b.there(w, i))
        bulk_load(stage + w * P::BOX, a.ds + (kept.tile(i) + w * a.members) * (int64_t)KEPT_TILE_BYTES,
                  P::BOX, full);
    load_tile<P>(stage + 2 * P::BOX, &a.k, b.kv_head, 64 * i, full);
  }
}

// Zeroes what is Inf or NaN among the keys in a stage; returns whether there was any. All threads
// of both warpgroups come here.
template <class P>
DEVICE bool clean_keys(uint32_t keys, int which) {
  bool odd = false;
#pragma unroll 1
  for (int i = threadIdx.x % 128; i < P::TILE / 2 / 16; i += 128)
    odd |= clean_piece<typename P::T>(keys + which * (P::TILE / 2) + 16 * i);
  fence_async();
  return barrier_or(1, 256, odd);
}

// Adds what clean_keys took out of 64 keys from `first` on to a thread's rows, row and row + 8.
template <class T, int N>
DEVICE void add_odd_keys(const Call &call, int first, int kv_head, int head, int row, int lane,
                         float (&sums)[N]) {
#pragma unroll 1
  for (int key = first; key < min(first + 64, call.tokens); key++) {
    const bool paired[2] = {weighs(call, row, head, key), weighs(call, row + 8, head, key)};
    add_odd_pairs<T, N / 4>((const uint16_t *)call.k + key * call.kv_token + (int64_t)kv_head * call.stride,
                            2 * (lane % 4), call.stride, paired,
                            [&](int n, int e) -> float & { return sums[4 * n + e]; });
  }
}

// A warpgroup's 64 rows.
template <class P>
DEVICE void sum_rows(const HopperKept &a, const RowBlock<P> &b, Turn<P::STAGES> &turn, int which, int warp,
                     int lane) {
  using T = typename P::T;
  const Call &call = a.call;
  float sums[P::DIM / 2];
#pragma unroll
  for (int i = 0; i < P::DIM / 2; i++) sums[i] = 0;
  const uint64_t left = descriptor(b.base + which * P::BOX), right = descriptor(b.base + 2 * P::BOX, P::BOX);
  const int row = 64 * (b.tile + which) + 16 * warp + lane / 4;  // and 8 further
  const int head = b.kv_head * a.group + a.first_member + b.member;
#pragma unroll 1
  for (int i = b.begin; i < b.end; i++, turn.next()) {
    const bool there = which ? b.there(1, i) : b.there(0, i),
               partial = 64 * i < b.all_lo || 64 * i + 64 > b.all_hi;
    mbarrier_wait(b.full(turn.slot), turn.parity);
    const bool odd = partial && clean_keys<P>(b.stage(turn.slot) + 2 * P::BOX, which);
    if (there) {
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; k++)
        wgmma_ss<T, MN_MAJOR, MN_MAJOR>(sums, left + turn.slot * steps(P::STAGE) + k * steps(2048),
                                        right + turn.slot * steps(P::STAGE) + k * steps(2048), true);
      wgmma_commit();
      wgmma_wait<0>();
      keep(sums);
    }
    mbarrier_arrive_warp(b.empty(turn.slot), lane);
    if (odd && there) add_odd_keys<T>(call, 64 * i, b.kv_head, head, row, lane, sums);
  }

  const Ranges<P> ranges(call);
  const float factor = call.gradient / ranges.ds;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int64_t r = row + 8 * i;
    if (r >= call.rows || b.tile + which >= a.first_tile + call.tiles) continue;
    float *dst = call.dq + (r * call.heads + head) * call.dim;
    store_pairs<P::DIM / 8, 4>(dst, 2 * (lane % 4), call.dim, factor, 1, !call.first,
                               [&](int n, int e) { return sums[4 * n + 2 * i + e]; });
  }
}

// Units of a part, pairs of row tiles of a head: from `first` on, each `step`th before `end`.
template <class P>
DEVICE void sum_row_units(const HopperKept &a, int first, int end, int step) {
  const uint32_t shared = tile_memory();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0),
            warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    const RowBlock<P> b(a, shared, 0);
    for (int i = 0; i < P::STAGES; i++)
      mbarrier_init(b.full(i), 1), mbarrier_init(b.empty(i), 8 * WARP_ARRIVALS);
    fence_mbarrier_init();
  }
  __syncthreads();
  Turn<P::STAGES> turn;
  if (warpgroup == 0) {
    shrink_registers<40>();
    if (warp == 0 && lane == 0)
#pragma unroll 1
      for (int unit = first; unit < end; unit += step) load_rows(a, RowBlock<P>(a, shared, unit), turn);
    __syncwarp();
  } else {
    grow_registers<232>();
#pragma unroll 1
    for (int unit = first; unit < end; unit += step) {
      const RowBlock<P> b(a, shared, unit);
      if (b.begin < b.end || a.call.first) sum_rows(a, b, turn, warpgroup - 1, warp, lane);
    }
  }
}

}  // namespace rattn

#endif
