// hopper_backward_d256_block.cuh: what the kernels for head sizes up to 256 share: their
// arguments, the sizes and the stream of a block of keys, its loads, masks and results.
#ifndef RATTN_HOPPER_BACKWARD_D256_BLOCK_CUH
#define RATTN_HOPPER_BACKWARD_D256_BLOCK_CUH

#include "hopper_backward_weights.cuh"

namespace rattn {

// Arguments of a kernel. A launch is of some KV heads, of as many query heads of the group of
// each, of some tiles of query rows, call.tiles, and of the keys that seen and seers tell of.
struct HopperKept {
  Call call;
  int32_t first_kv_head, kv_heads, first_member, members, first_tile;
  int32_t group;      // query heads of a KV head
  const Kept *kept;   // [pairs of row tiles]
  int64_t head_room;  // tiles of keys of pairs that a KV head has room for
  uint8_t *ds;
  const float *numbers;       // as in HopperBackward
  CUtensorMap q, k, v, dout;  // boxes of 64 rows x 64 dims
};

// ds is kept in tiles of 64 keys x 64 rows, swizzled: of each KV head, pair of row tiles, and tile
// of keys that the pair sees, [2 row tiles][members of the group].
constexpr int KEPT_TILE_BYTES = 8192;

// Where the tiles of one row tile of a head are: those of the tiles of keys [lo, hi), `step` apart.
struct KeptRow {
  int first, step, lo, hi;
  // kv_head and member are counted from the launch's first, row_tile is not.
  DEVICE KeptRow(const HopperKept &a, int kv_head, int row_tile, int member) {
    const Kept *const pair = a.kept + row_tile / 2;
    const int64_t at = __ldg(&pair->at) - __ldg(&a.kept[a.first_tile / 2].at);
    step = 2 * a.members, lo = __ldg(&pair->lo), hi = __ldg(&pair->hi);
    first = (int)(kv_head * a.head_room + at) * step + row_tile % 2 * a.members + member;
  }
  // The number of a tile; -1 if it is not kept.
  DEVICE int tile(int key_tile) const {
    return lo <= key_tile && key_tile < hi ? first + (key_tile - lo) * step : -1;
  }
};

// The kernel of dk, dv and ds. A block owns ROWS keys of a KV head and goes over tiles of 64
// query rows of the heads of the group, a stage of the ring each: q and dout as boxes of 64 rows
// x 64 dims. Up to 128 a warpgroup has 64 keys; at 256 both have the same 64 (PAIR). KEYS and
// TWO as in Tile; STORE: f16 weights are scaled as those of p.
template <class T_, int DIM_, int STAGES_>
struct KeptKeys {
  using T = T_;
  static constexpr Kind KIND = D_KV;
  static constexpr bool KEYS = true, TWO = true, STORE = true;
  static constexpr bool PAIR = DIM_ == 256;
  static constexpr bool ROUNDED = DIM_ == 128;  // ds is of p in 16 bits: registers
  static constexpr int DIM = DIM_, STAGES = STAGES_, THREADS = 384, ROWS = PAIR ? 64 : 128;

  // Bytes. Fixed: k, then v, of 64 keys after the other. Numbers of rows: lse, delta; the first
  // row, 2 head + whether all see all keys, and where ds of each 64 keys goes.
  static constexpr int BOX = 8192, TILE = DIM / 64 * BOX, STAGE = 2 * TILE, NUMBERS = 528;
  static constexpr int FIXED_AT = 0, STAGES_AT = ROWS / 64 * 2 * TILE;
  static constexpr int DS_AT = STAGES_AT + STAGES * STAGE;  // two of each 64 keys
  static constexpr int P_AT = DS_AT + ROWS / 64 * 2 * BOX;  // PAIR: p, 64 x 64 floats
  static constexpr int NUMBERS_AT = P_AT + (PAIR ? 2 * BOX : 0);
  static constexpr int ODD_AT = NUMBERS_AT + STAGES * NUMBERS;  // of each warp, of both warpgroups
  static constexpr int FACTOR_AT = ODD_AT + 32, BARRIERS_AT = FACTOR_AT + 8;
  static constexpr int BARRIERS = 4 * STAGES + 4;
  static constexpr int SHARED_BYTES = BARRIERS_AT + 8 * BARRIERS + 1024;  // starts on 1024
  static_assert(SHARED_BYTES <= 232448, "shared memory of a block");
};

// What all warps of a block know.
template <class P>
struct KeptBlock {
  uint32_t base;
  int tile, kv_head;
  int steps;  // of the stream

  DEVICE uint32_t barrier(int i) const { return base + P::BARRIERS_AT + 8 * i; }
  DEVICE uint32_t q_full(int i) const { return barrier(i); }
  DEVICE uint32_t q_empty(int i) const { return barrier(P::STAGES + i); }
  DEVICE uint32_t dout_full(int i) const { return barrier(2 * P::STAGES + i); }
  DEVICE uint32_t dout_empty(int i) const { return barrier(3 * P::STAGES + i); }
  DEVICE uint32_t fixed_full() const { return barrier(4 * P::STAGES); }
  DEVICE uint32_t p_full() const { return barrier(4 * P::STAGES + 1); }
  DEVICE uint32_t p_empty() const { return barrier(4 * P::STAGES + 2); }
  DEVICE uint32_t meeting() const { return barrier(4 * P::STAGES + 3); }  // of both warpgroups
  DEVICE uint32_t q(int i) const { return base + P::STAGES_AT + i * P::STAGE; }
  DEVICE uint32_t dout(int i) const { return q(i) + P::TILE; }
  DEVICE uint32_t numbers(int i) const { return base + P::NUMBERS_AT + i * P::NUMBERS; }
  // ds of 64 keys, of a step.
  DEVICE uint32_t ds(int which, int step) const {
    return base + P::DS_AT + (2 * which + (step & 1)) * P::BOX;
  }
  // k, or v, of the keys of a warpgroup.
  DEVICE uint32_t k(int which) const { return base + P::FIXED_AT + which * 2 * P::TILE; }
  DEVICE uint32_t v(int which) const { return k(which) + P::TILE; }

  // f16: from dp to ds, as weights are scaled as those of p; in shared memory, since a register
  // would be one too many.
  DEVICE void put_factor(const Call &call) const {
    const Ranges<P> ranges(call);
    store_shared(base + P::FACTOR_AT, __float_as_uint(ranges.ds / ranges.p));
  }
  DEVICE float factor() const {
    return P::T::UNIT == F16::UNIT ? __int_as_float(load_shared(base + P::FACTOR_AT)) : 1;
  }

  // The heaviest tiles of a causal mask, the first keys, of all heads first.
  DEVICE KeptBlock(const HopperKept &a, uint32_t shared, int block) : base(shared) {
    const Call &call = a.call;
    const int index = block / a.kv_heads;
    tile = index * P::ROWS, kv_head = a.first_kv_head + block % a.kv_heads;
    const Seers seers = call.seers[index];
    const int begin = max(seers.begin, a.first_tile), end = min(seers.end, a.first_tile + call.tiles);
    steps = begin < end ? (end - begin) * a.members : 0;
  }

  // Of a stage: its rows and their head; whether all rows see all keys (those past the last are
  // seen by none).
  DEVICE int row_of(int i) const { return load_shared(numbers(i) + 512); }
  DEVICE int head_of(int i) const { return load_shared(numbers(i) + 516) >> 1; }
  DEVICE bool all(int i) const { return load_shared(numbers(i) + 516) & 1; }
  // And the number of the tile of ds of a warpgroup's 64 keys; -1: it is not kept.
  DEVICE int kept(int i, int which) const { return load_shared(numbers(i) + 520 + 4 * which); }
};

// A step's tile of the stream: from the last rows to the first, all heads at each.
template <class P>
struct KeptStep {
  int tile, member;  // the tile of rows; the head, of the launch's
  DEVICE KeptStep(const HopperKept &a, const KeptBlock<P> &b) : member(a.members - 1) {
    tile = min(a.call.seers[b.tile / P::ROWS].end, a.first_tile + a.call.tiles) - 1;
  }
  DEVICE int head(const HopperKept &a, const KeptBlock<P> &b) const {
    return b.kv_head * a.group + a.first_member + member;
  }
  DEVICE void next(const HopperKept &a) {
    if (--member < 0) member = a.members - 1, tile--;
  }
};

// Loads a tile of 64 rows.
template <class P>
DEVICE void load_tile(uint32_t to, const CUtensorMap *map, int head, int row, uint32_t full) {
#pragma unroll
  for (int g = 0; g < P::DIM / 64; g++) tma_load(to + g * P::BOX, map, 64 * g, head, row, full);
}

// The stationary tiles and the stream, by one thread.
template <class P>
DEVICE void load_kept(const HopperKept &a, const KeptBlock<P> &b) {
  mbarrier_expect(b.fixed_full(), P::ROWS / 64 * 2 * P::TILE);
#pragma unroll
  for (int i = 0; i < P::ROWS / 64; i++) {
    load_tile<P>(b.k(i), &a.k, b.kv_head, b.tile + 64 * i, b.fixed_full());
    load_tile<P>(b.v(i), &a.v, b.kv_head, b.tile + 64 * i, b.fixed_full());
  }
  Turn<P::STAGES> turn;
  KeptStep<P> at(a, b);
#pragma unroll 1
  for (int j = 0; j < b.steps; j++, at.next(a), turn.next()) {
    const int head = at.head(a, b);
    mbarrier_wait(b.q_empty(turn.slot), turn.parity ^ 1);
    mbarrier_expect(b.q_full(turn.slot), P::PAIR ? P::TILE : 2 * P::TILE);
    load_tile<P>(b.q(turn.slot), &a.q, head, 64 * at.tile, b.q_full(turn.slot));
    if (P::PAIR) {
      mbarrier_wait(b.dout_empty(turn.slot), turn.parity ^ 1);
      mbarrier_expect(b.dout_full(turn.slot), P::TILE);
    }
    load_tile<P>(b.dout(turn.slot), &a.dout, head, 64 * at.tile,
                 P::PAIR ? b.dout_full(turn.slot) : b.q_full(turn.slot));
  }
}

// The numbers of the stream's rows, by a warp: with q, for the factors of f16 weights.
template <class P>
DEVICE void load_numbers(const HopperKept &a, const KeptBlock<P> &b, int lane) {
  const float less = lane < 16 ? weight_exponent<P>(a.call) : 0;
  Turn<P::STAGES> turn;
  KeptStep<P> at(a, b);
#pragma unroll 1
  for (int j = 0; j < b.steps; j++, at.next(a), turn.next()) {
    const int head = at.head(a, b);
    const float *const numbers = a.numbers + ((int64_t)at.tile * a.call.heads + head) * 128;
    const float4 x = __ldg((const float4 *)numbers + lane);
    mbarrier_wait(b.q_empty(turn.slot), turn.parity ^ 1);
    const float factor = lane < 16 ? 1 : b.factor();  // anew: there are few registers
    store_shared4(b.numbers(turn.slot) + lane * 16,
                  {__float_as_uint((x.x - less) * factor), __float_as_uint((x.y - less) * factor),
                   __float_as_uint((x.z - less) * factor), __float_as_uint((x.w - less) * factor)});
    mbarrier_arrive_warp(b.q_full(turn.slot), lane);
  }
}

// And what else there is to know of them, by another.
template <class P>
DEVICE void load_places(const HopperKept &a, const KeptBlock<P> &b, int lane) {
  Turn<P::STAGES> turn;
  KeptStep<P> at(a, b);
#pragma unroll 1
  for (int j = 0; j < b.steps; j++, at.next(a), turn.next()) {
    const int2 keys = __ldg((const int2 *)&a.call.seen[at.tile].all_lo);
    const int all = 2 * at.head(a, b) + (keys.x <= b.tile && b.tile + P::ROWS <= keys.y);
    const KeptRow row(a, b.kv_head - a.first_kv_head, at.tile, at.member);
    const int kept[] = {row.tile(b.tile / 64), row.tile(b.tile / 64 + 1)};
    mbarrier_wait(b.q_empty(turn.slot), turn.parity ^ 1);
    if (lane == 0)
      store_shared4(b.numbers(turn.slot) + 512,
                    {(uint32_t)(64 * at.tile), (uint32_t)all, (uint32_t)kept[0], (uint32_t)kept[1]});
    mbarrier_arrive_warp(b.q_full(turn.slot), lane);
  }
}

// Rounds weights to 16 bits: the A operand of four products.
template <class T>
DEVICE void pack_weights(const float (&w)[32], uint32_t (&to)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; i++) to[i / 4][i % 4] = T::pack(w[2 * i], w[2 * i + 1]);
}

// Issues d += a b, of k = DIM, both K-major tiles of 64 rows; or of k = 64, b MN-major.
template <class P>
DEVICE void multiply_scores(float (&d)[32], uint64_t a, uint64_t b) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < P::DIM / 16; k++) {
    const uint64_t step = k / 4 * steps(P::BOX) + k % 4 * steps(32);
    wgmma_ss<typename P::T, K_MAJOR, K_MAJOR>(d, a + step, b + step, k > 0);
  }
  wgmma_commit();
}
template <class P>
DEVICE void multiply_weights(float (&d)[P::DIM / 2], const uint32_t (&a)[4][4], uint64_t b) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; k++) wgmma_rs<typename P::T, MN_MAJOR>(d, a[k], b + k * steps(2048), true);
  wgmma_commit();
}

// Zeroes what is Inf or NaN in a stage, when both warpgroups have done with its scores; returns
// whether there was any. All threads of both come here: to a barrier in memory, since they may
// come from different instructions.
template <class P>
DEVICE bool clean_stage(const KeptBlock<P> &b, uint32_t stage, int which, int warp, int lane) {
  mbarrier_arrive_warp(b.meeting(), lane);
  mbarrier_wait(b.meeting(), 0);
  bool odd = false;
#pragma unroll 1
  for (int i = threadIdx.x % 128; i < P::TILE / 16; i += 128)
    odd |= clean_piece<typename P::T>(stage + which * P::TILE + 16 * i);
  fence_async();
  odd = __any_sync(~0u, odd);
  if (lane == 0) store_shared(b.base + P::ODD_AT + 4 * (4 * which + warp), odd);
  mbarrier_arrive_warp(b.meeting(), lane);
  mbarrier_wait(b.meeting(), 1);
  const uint4 x = load_shared4(b.base + P::ODD_AT), y = load_shared4(b.base + P::ODD_AT + 16);
  return x.x | x.y | x.z | x.w | y.x | y.y | y.z | y.w;
}

// Adds a warpgroup's sums to dk (value = 0) or dv (1) of its keys.
template <class P>
DEVICE void store_keys(const Call &call, const KeptBlock<P> &b, int key, int value, int lane,
                       const float (&sums)[P::DIM / 2]) {
  const float range = P::T::UNIT == F16::UNIT ? 16384 : 1;  // of p, see Ranges
  const float factor = value ? 1 / range : call.scale / (range * b.factor());
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int64_t row = key + 8 * i;
    if (row >= call.tokens) continue;
    float *dst = call.dkv + ((2 * row + value) * call.kv_heads + b.kv_head) * call.dim;
    store_pairs<P::DIM / 8, 4>(dst, 2 * (lane % 4), call.dim, factor, 1, true,
                               [&](int n, int e) { return sums[4 * n + 2 * i + e]; });
  }
}

// A warp's 16 keys of a tile of ds go to global memory by way of shared memory, where steps take
// turns in two buffers. First they are put there,
template <class P>
DEVICE void put_ds(const KeptBlock<P> &b, int step, int which, const uint32_t (&ds)[4][4], int warp,
                   int lane) {
  if (lane == 0) bulk_wait_read<1>();
  __syncwarp();
  const uint32_t at = fragment_address(b.ds(which, step), warp, lane, 0);
#pragma unroll
  for (int g = 0; g < 4; g++) stmatrix(at ^ 32 * g, ds[g][0], ds[g][1], ds[g][2], ds[g][3]);
}
// and later, as that takes its time, sent to the tile `kept`, if there is one.
template <class P>
DEVICE void send_ds(const HopperKept &a, const KeptBlock<P> &b, int kept, int step, int which, int warp,
                    int lane) {
  fence_async();
  __syncwarp();
  if (lane != 0) return;
  if (kept >= 0)
    bulk_store(a.ds + kept * (int64_t)KEPT_TILE_BYTES + 2048 * warp, b.ds(which, step) + 2048 * warp, 2048);
  else
    bulk_store_none();
}

}  // namespace rattn

#endif
