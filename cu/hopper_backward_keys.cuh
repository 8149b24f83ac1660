// hopper_backward_keys.cuh: dk and dv on sm_90a from weights that the kernel of dq has kept.
//
//   dv[key] += sum over rows and heads of p[row, key] dout[row]
//   dk[key] += sum over rows and heads of ds[row, key] q[row]
//
// Recomputing p and ds for dk and dv costs as much as dk and dv. At head_dim 512 a tile of
// weights that is written and read once is 32 KB of traffic for 5 products that take 5120
// clocks, a third of what memory gives.
//
// A block owns 128 keys by 256 dims of dk or of dv, and a pair of blocks 256 keys: each loads
// half of the rows of dout or q and sends it to both. Two warpgroups have 64 keys each.
#ifndef RATTN_HOPPER_BACKWARD_KEYS_CUH
#define RATTN_HOPPER_BACKWARD_KEYS_CUH

#include "hopper_backward_block.cuh"

namespace rattn {

template <class T_>
struct KeySums {
  using T = T_;
  static constexpr Kind KIND = D_K;
  static constexpr bool TWO = true;
  // A stage: weights of 64 rows by 2 x 64 keys, and [4 boxes of 64 dims][64 rows][64].
  static constexpr int BOX = 8192, STAGE = 6 * BOX, STAGES = 4, THREADS = 384;
  static constexpr int BARRIERS_AT = STAGES * STAGE, SHARED_BYTES = BARRIERS_AT + 16 * STAGES + 1024;
};

// What all warps of a block know.
template <class P>
struct KeyBlock {
  uint32_t base, rank;
  int kv_head, key_tile;         // the first of two
  int value, half;               // dv; columns [256 half, 256 half + 256)
  int begin, end, first, heads;  // row tiles; query heads

  DEVICE uint32_t full(int i) const { return base + P::BARRIERS_AT + 8 * i; }
  DEVICE uint32_t empty(int i) const { return base + P::BARRIERS_AT + 8 * (P::STAGES + i); }
  DEVICE uint32_t stage(int i) const { return base + i * P::STAGE; }

  // Neighbours read the same weights, or the same rows.
  DEVICE KeyBlock(const HopperBackward &a, uint32_t shared) : base(shared), rank(cluster_rank()) {
    const Call &call = a.call;
    const int key_tiles = (call.tokens + 63) / 64, quads = (key_tiles + 3) / 4, pair = blockIdx.x / 2;
    const int quad = pair / 4 % quads;
    half = pair % 2, value = pair / 2 % 2;
    kv_head = a.first_kv_head + pair / 4 / quads;
    key_tile = 4 * quad + 2 * (int)rank;
    heads = call.heads / call.kv_heads, first = kv_head * heads;
    begin = INT_MAX, end = 0;
    for (int i = 4 * quad; i < min(4 * quad + 4, key_tiles); i++)
      begin = min(begin, call.seers[i].begin), end = max(end, call.seers[i].end);
    begin = max(begin, a.first_tile), end = min(end, a.first_tile + call.tiles);
  }
};

// What of a tile of rows there is for a block: which of its two tiles of keys have weights,
// and whether all rows see all of its keys, that is, none but sums that are wanted are made.
template <class P>
struct KeySight {
  bool there[2], all;
  int column;  // of the first tile of keys among the weights
  DEVICE KeySight(const HopperBackward &a, const KeyBlock<P> &b, int tile) {
    const Call &call = a.call;
    int2 span = span_of(call, tile);
    span.y = min(span.y, span.x + a.width);
    column = b.key_tile - span.x;
    const Seen seen = call.seen[tile];
    for (int i = 0; i < 2; i++) there[i] = span.x <= b.key_tile + i && b.key_tile + i < span.y;
    all = seen.all_lo <= 64 * b.key_tile && min(64 * b.key_tile + 128, call.tokens) <= seen.all_hi;
  }
};

// By one thread.
template <class P>
DEVICE void load_stages(const HopperBackward &a, const KeyBlock<P> &b) {
  const CUtensorMap *map = &a.fixed[b.value];  // of q, dout
  Turn<P::STAGES> turn;
#pragma unroll 1
  for (int tile = b.end - 1; tile >= b.begin; tile--) {
    const KeySight<P> sight(a, b, tile);
    const uint8_t *kept = stored_at(a, b.kv_head - a.first_kv_head, tile - a.first_tile, 0) +
                          sight.column * STORED_BYTES + (b.value ? 0 : P::BOX);
#pragma unroll 1
    for (int head = 0; head < b.heads; head++, turn.next(), kept += a.width * STORED_BYTES) {
      const uint32_t full = b.full(turn.slot), stage = b.stage(turn.slot);
      mbarrier_wait(b.empty(turn.slot), turn.parity ^ 1);
      mbarrier_expect(full, (4 + sight.there[0] + sight.there[1]) * P::BOX);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t box = 2 * b.rank + i;
        tma_load_multicast(stage + (2 + box) * P::BOX, map, 256 * b.half + 64 * box, b.first + head,
                           64 * tile, full, 3);
        if (sight.there[i]) bulk_load(stage + i * P::BOX, kept + i * STORED_BYTES, P::BOX, full);
      }
    }
  }
}

// Zeroes what is Inf or NaN among a warpgroup's half of the rows in a stage; returns whether
// there was any in either half. The threads of both warpgroups come here.
template <class P>
DEVICE bool clean_stage(uint32_t half_stage) {
  bool odd = false;
#pragma unroll 1
  for (int i = threadIdx.x % 128; i < 2 * P::BOX / 16; i += 128)
    odd |= clean_piece<typename P::T>(half_stage + 16 * i);
  fence_async();
  return barrier_or(1, 256, odd);
}

// A warpgroup's 64 keys by 256 dims.
template <class P>
DEVICE void sum_keys(const HopperBackward &a, const KeyBlock<P> &b, int which, int warp, int lane) {
  using T = typename P::T;
  const Call &call = a.call;
  float sums[128];
#pragma unroll
  for (int i = 0; i < 128; i++) sums[i] = 0;
  const uint64_t left = descriptor(b.base + which * P::BOX), right = descriptor(b.base + 2 * P::BOX, P::BOX);
  const int key = 64 * (b.key_tile + which) + 16 * warp + lane / 4;  // and 8 further
  Turn<P::STAGES> turn;
#pragma unroll 1
  for (int tile = b.end - 1; tile >= b.begin; tile--) {
    const KeySight<P> sight(a, b, tile);
    const bool there = which ? sight.there[1] : sight.there[0],
               partial = !sight.all && (sight.there[0] || sight.there[1]);
#pragma unroll 1
    for (int head = 0; head < b.heads; head++, turn.next()) {
      mbarrier_wait(b.full(turn.slot), turn.parity);
      const bool odd = partial && clean_stage<P>(b.stage(turn.slot) + (2 + 2 * which) * P::BOX);
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
      release(b.empty(turn.slot), lane);
      if (odd && there)
        add_odd_rows<T>(call, b.value ? call.dout : call.q, 64 * tile, b.first + head, key,
                        256 * b.half + 2 * (lane % 4), sums);
    }
  }

  const Ranges<P> ranges(call);
  const float factor = b.value ? 1 / ranges.p : call.scale / ranges.ds;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int64_t row = key + 8 * i;
    if (row >= call.tokens) continue;
    float *dst = call.dkv + ((2 * row + b.value) * call.kv_heads + b.kv_head) * call.dim;
    store_pairs<32, 8>(dst, 256 * b.half + 2 * (lane % 4), call.dim, factor, 1, true,
                       [&](int n, int e) { return sums[4 * n + 2 * i + e]; });
  }
}

template <class P>
__global__ void __cluster_dims__(HopperBackward::CLUSTER, 1, 1) __launch_bounds__(P::THREADS, 1)
    key_sums(const __grid_constant__ HopperBackward a) {
  const KeyBlock<P> b(a, tile_memory());
  start_dependents();
  if (b.begin >= b.end) return;  // the same in both blocks
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0),
            warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::STAGES; i++) mbarrier_init(b.full(i), 1), mbarrier_init(b.empty(i), 16);
    fence_mbarrier_init();
  }
  __syncthreads();
  cluster_sync();
  if (warpgroup == 0) {
    shrink_registers<40>();
    if (warp == 0 && lane == 0) load_stages(a, b);
    __syncwarp();
  } else {
    grow_registers<232>();
    sum_keys(a, b, warpgroup - 1, warp, lane);
  }
  __syncwarp();
  cluster_sync();  // no block ends while the other may still send to it
}

}  // namespace rattn

#endif
