// hopper_backward_block.cuh: the sizes of a backward kernel for sm_90a, the stream of a
// block, and its loads.
#ifndef RATTN_HOPPER_BACKWARD_BLOCK_CUH
#define RATTN_HOPPER_BACKWARD_BLOCK_CUH

#include <limits.h>

#include "attend.cuh"
#include "hopper_fold.cuh"
#include "small.h"
#include "store.cuh"

namespace rattn {

// Arguments of a kernel; call.tiles are the stationary ones. A launch may be of some KV heads,
// or of some tiles of query rows of one, and then keeps its weights for key_sums:
// [KV heads][tiles, made even][heads of a group][width][p, ds][64 x 64], from the first tile
// of keys on that the pair of row tiles sees.
struct HopperBackward {
  static constexpr int CLUSTER = 2;  // blocks
  Call call;
  int32_t first_kv_head, first_tile;
  int32_t width;  // tiles of keys that a pair may see
  uint8_t *weights;
  Fault *fault;
  const float *numbers;  // [tiles of query rows][heads][2][64]: lse log2 e, then delta
  // Boxes of 64 rows x 64 dims of what is stationary and what scores stream; of 16 rows x 64
  // dims x 4 of what is summed, x 1 where head_dim is not a multiple of 64.
  CUtensorMap fixed[2], scores[2], sums;
  int32_t whole;     // head_dim is a multiple of 64
  int32_t clusters;  // that a GPU runs at a time
};

// Bytes of a tile of p and one of ds.
constexpr int64_t STORED_BYTES = 2 * 8192;

// The weights kept of a tile of rows of a head; both counted from the launch's first.
DEVICE uint8_t *stored_at(const HopperBackward &a, int kv_head, int tile, int head) {
  const Call &call = a.call;
  const int group = call.heads / call.kv_heads;
  const int64_t row = ((int64_t)kv_head * ((call.tiles + 1) & ~1) + tile) * group + head;
  return a.weights + row * a.width * STORED_BYTES;
}

// The tiles of keys that the pair of row tiles that tile is one of goes over.
DEVICE int2 span_of(const Call &call, int tile) {
  const int first = tile & ~1;
  const Seen s = call.seen[first], t = call.seen[min(first + 1, (call.rows - 1) / 64)];
  const int lo = min(s.lo, t.lo), hi = max(s.hi, t.hi);
  return lo < hi ? make_int2(lo / 64, (hi + 63) / 64) : make_int2(0, 0);
}

// A kernel: how many of the 32 steps (of 16 dims) of the first stationary tensor the
// warpgroup of scores holds in registers, and the slots of the rings. Offsets and sizes in
// bytes. KEYS and TWO as in Tile; STORE: weights are kept (D_Q).
template <class T_, Kind KIND_, int HELD_, int SCORE_SLOTS_, int SUM_SLOTS_, bool STORE_ = false>
struct Hopper {
  using T = T_;
  static constexpr Kind KIND = KIND_;
  static constexpr bool KEYS = KIND != D_Q, TWO = KIND != D_V, STORE = STORE_;
  static constexpr int HELD = HELD_, SCORE_SLOTS = SCORE_SLOTS_, SUM_SLOTS = SUM_SLOTS_;
  static constexpr int ROWS = 64, STREAM = 64, DIM = 512, THREADS = 512;

  // A box is 64 rows x 64 dims. A slot is two boxes, for scores; or 16 rows x 512, for sums:
  // [8 groups of 64 dims][16][64]. The first HELD / 4 boxes pass through the ring of scores.
  static constexpr int BOX = 8192, SLOT = 2 * BOX, GROUP = 2048;
  static constexpr int BOXES = TWO ? 16 : 8, HELD_BOXES = HELD / 4;
  static constexpr int FIXED_AT = 0, SCORES_AT = (BOXES - HELD_BOXES) * BOX;
  static constexpr int SUMS_AT = SCORES_AT + SCORE_SLOTS * SLOT, WEIGHTS_AT = SUMS_AT + SUM_SLOTS * SLOT;
  static constexpr int NUMBERS_AT = WEIGHTS_AT + 2 * BOX;  // D_K: two of [2][64] floats
  static constexpr int BARRIERS_AT = NUMBERS_AT + (KIND == D_K ? 1024 : 0);
  static constexpr int BARRIERS = 2 * (SCORE_SLOTS + SUM_SLOTS) + 9;
  static constexpr int SHARED_BYTES = BARRIERS_AT + 8 * BARRIERS + 1024;  // starts on 1024

  static_assert(HELD % 4 == 0 && HELD <= 32 && HELD_BOXES <= 2 * SCORE_SLOTS, "held boxes");
  static_assert(SHARED_BYTES <= 232448, "shared memory of a block");
};

// What all warps of a block know.
template <class P>
struct Block {
  uint32_t base, rank;              // of shared memory; in the pair
  int tile, head;                   // the stationary tile's first row, and its head
  int row, pace;                    // the stream's first tile, and rows to the next
  int first_head, head_end, steps;  // its heads, and its length
  int begin;                        // its least tile
  int all_lo, all_hi;               // keys, see Sight

  DEVICE uint32_t barrier(int i) const { return base + P::BARRIERS_AT + 8 * i; }
  DEVICE uint32_t score_full(int i) const { return barrier(i); }
  DEVICE uint32_t score_empty(int i) const { return barrier(P::SCORE_SLOTS + i); }
  DEVICE uint32_t sum_full(int i) const { return barrier(2 * P::SCORE_SLOTS + i); }
  DEVICE uint32_t sum_empty(int i) const { return barrier(2 * P::SCORE_SLOTS + P::SUM_SLOTS + i); }
  DEVICE uint32_t weights_full(int i) const { return barrier(P::BARRIERS - 9 + i); }
  DEVICE uint32_t weights_empty(int i) const { return barrier(P::BARRIERS - 7 + i); }
  DEVICE uint32_t numbers_full(int i) const { return barrier(P::BARRIERS - 5 + i); }
  DEVICE uint32_t numbers_empty(int i) const { return barrier(P::BARRIERS - 3 + i); }
  DEVICE uint32_t fixed_full() const { return barrier(P::BARRIERS - 1); }

  // Where box i of the stationary tensors is loaded to.
  DEVICE uint32_t box(int i) const {
    return base +
           (i < P::HELD_BOXES ? P::SCORES_AT + i * P::BOX : P::FIXED_AT + (i - P::HELD_BOXES) * P::BOX);
  }

  DEVICE Block(const HopperBackward &a, uint32_t shared) : base(shared), rank(cluster_rank()) {
    const Call &call = a.call;
    // One KV head after the other, the heaviest tiles of a causal mask first: the first
    // keys; the last rows, all heads of the group at each.
    const int group = call.heads / call.kv_heads, pairs = (call.tiles + 1) / 2, pair = blockIdx.x / 2;
    const int per_head = P::KEYS ? pairs : pairs * group, n = pair % per_head;
    const int kv_head = a.first_kv_head + pair / per_head;
    const int first = a.first_tile + 2 * (P::KEYS ? n : pairs - 1 - n / group);
    const int other = min(first + 1, a.first_tile + call.tiles - 1);  // the second tile, if there is one
    const bool there = first + (int)rank <= other;
    tile = (first + (int)rank) * P::ROWS;
    head = P::KEYS ? kv_head : kv_head * group + n % group;
    first_head = P::KEYS ? kv_head * group : kv_head;
    head_end = P::KEYS ? first_head + group : first_head + 1;
    int end;  // of the tiles of the stream
    if constexpr (P::KEYS) {
      const Seers s = call.seers[first], t = call.seers[other];
      begin = min(s.begin, t.begin), end = max(s.end, t.end);
      // Rows of keys past the last are not stored, so nothing need be hidden from them.
      all_lo = there ? tile : INT_MAX, all_hi = there ? min(tile + P::ROWS, call.tokens) : INT_MIN;
    } else {
      const int2 span = span_of(call, first);
      begin = span.x, end = P::STORE ? min(span.y, begin + a.width) : span.y;
      if (end < span.y && threadIdx.x == 0) {
        a.fault->row = 64 * first, a.fault->lo = 64 * span.x, a.fault->hi = 64 * span.y;
        a.fault->span = call.span, a.fault->set = 1;
      }
      const Seen s = call.seen[rank ? other : first];
      all_lo = there ? s.all_lo : INT_MIN, all_hi = there ? s.all_hi : INT_MAX;
    }
    steps = begin < end ? (end - begin) * (head_end - first_head) : 0;
    // Pairs of a wave start together at the end of the stream that under a causal mask all
    // see, and stop one after the other. Those of the next wave take over as they stop and,
    // going the other way, end together. So they read the same lines at the same time.
    const bool up = (n / a.clusters + P::KEYS) % 2 == 0;
    row = up ? begin * P::STREAM : (end - 1) * P::STREAM, pace = up ? P::STREAM : -P::STREAM;
  }
};

// A step's tile of the stream: of query rows, those of all heads of a group in turn.
template <class P>
struct Step {
  int row, head;
  DEVICE Step(const Block<P> &b) : row(b.row), head(b.first_head) {}
  DEVICE void next(const Block<P> &b) {
    if (!P::KEYS || ++head == b.head_end) head = b.first_head, row += b.pace;
  }
};

// Whether a block's rows all see all of a step's tile.
template <class P>
struct Sight {
  int lo, hi;  // the keys of the step; KEYS: those that all of its rows see
  // To be called early: the answer comes from memory.
  DEVICE void look(const Call &call, const Step<P> &at) {
    if constexpr (P::KEYS) {
      const int2 keys = __ldg((const int2 *)&call.seen[max(at.row, 0) / P::STREAM].all_lo);
      lo = keys.x, hi = keys.y;
    } else {
      lo = at.row, hi = at.row + P::STREAM;
    }
  }
  DEVICE bool all(const Block<P> &b) const {
    return P::KEYS ? lo <= b.all_lo && b.all_hi <= hi : b.all_lo <= lo && hi <= b.all_hi;
  }
};

template <bool VALUE>
struct Constant {
  static constexpr bool value = VALUE;
};

// The next slot of a ring, and the parity of its phase.
template <int SLOTS>
struct Turn {
  uint32_t slot = 0, parity = 0;
  DEVICE void next() {
    if (++slot == SLOTS) slot = 0, parity ^= 1;
  }
};

// A warp has done with a slot: the producers of both blocks learn it.
DEVICE void release(uint32_t empty, int lane) {
  if (lane < 2) mbarrier_arrive_cluster(map_shared(empty, lane));
}

// lse log2 e of 64 query rows of a head, then delta.
DEVICE const float *numbers_of(const HopperBackward &a, int row, int head) {
  return a.numbers + ((int64_t)(row / 64) * a.call.heads + head) * 128;
}

// log2 of what f16 weights are multiplied with.
template <class P>
DEVICE float weight_exponent(const Call &call) {
  const Ranges<P> ranges(call);
  return (float)((int)(__float_as_uint(P::TWO && !P::STORE ? ranges.ds : ranges.p) >> 23) - 127);
}

// Whether a query row has weights for a key: it sees it, and not all its scores are -Inf.
DEVICE bool weighs(const Call &call, int row, int head, int key) {
  return row < call.rows && call.lo[row] <= key && key < call.hi[row] &&
         call.lse[(int64_t)row * call.heads + head] != -infinity();
}

// Adds the Inf and NaN of x, a row that was streamed without them, in columns column + 8 n and
// the next, n < N, below limit, to those of a thread's two rows that are paired with it. As the
// sums are lost anyway the weights, which are not 0, are left out. sum(n, e) is the sum of the
// first row (e = 0, 1) or the second (2, 3).
template <class T, int N, class Sum>
DEVICE void add_odd_pairs(const uint16_t *x, int column, int limit, const bool (&paired)[2], Sum sum) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    if (column + 8 * n >= limit) continue;
    const uint32_t pair = *(const uint32_t *)(x + column + 8 * n), odd = odd_halves<T>(pair);
    if (odd == 0) continue;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (!paired[i]) continue;
      if (odd & 0x8000) sum(n, 2 * i) += T::low(pair);
      if (odd & 0x80000000) sum(n, 2 * i + 1) += T::high(pair);
    }
  }
}

// Likewise of x (q or dout of a head), 64 query rows from `first` on, to the keys key and key + 8.
template <class T, int N>
DEVICE void add_odd_rows(const Call &call, const void *x, int first, int head, int key, int column,
                         float (&sums)[N]) {
#pragma unroll 1
  for (int row = first; row < min(first + 64, call.rows); row++) {
    const bool paired[2] = {weighs(call, row, head, key), weighs(call, row, head, key + 8)};
    add_odd_pairs<T, N / 4>((const uint16_t *)x + row * call.q_token + (int64_t)head * call.stride, column,
                            call.stride, paired, [&](int n, int e) -> float & { return sums[4 * n + e]; });
  }
}

// The stationary tile, by one thread.
template <class P>
DEVICE void load_fixed(const HopperBackward &a, const Block<P> &b) {
  mbarrier_expect(b.fixed_full(), P::BOXES * P::BOX);
#pragma unroll 1
  for (int i = 0; i < P::BOXES; i++)
    tma_load(b.box(i), &a.fixed[i / 8], 64 * (i % 8), b.head, b.tile, b.fixed_full());
}

// The stream of scores, by one thread: this block's half of each slot, to both blocks.
template <class P>
DEVICE void load_scores(const HopperBackward &a, const Block<P> &b) {
  Turn<P::SCORE_SLOTS> turn;
  Step<P> at(b);
#pragma unroll 1
  for (int j = 0; j < b.steps; j++, at.next(b))
#pragma unroll 1
    for (int i = 0; i < P::BOXES / 2; i++, turn.next()) {
      const uint32_t full = b.score_full(turn.slot);
      mbarrier_wait(b.score_empty(turn.slot), turn.parity ^ 1);
      mbarrier_expect(full, P::SLOT);
      tma_load_multicast(b.base + P::SCORES_AT + turn.slot * P::SLOT + b.rank * P::BOX, &a.scores[i / 4],
                         64 * (2 * (i & 3) + b.rank), at.head, at.row, full, 3);
    }
}

// The stream of sums, likewise.
template <class P>
DEVICE void load_sums(const HopperBackward &a, const Block<P> &b) {
  Turn<P::SUM_SLOTS> turn;
  Step<P> at(b);
  const int group = 4 * b.rank;  // the first of this block's half
#pragma unroll 1
  for (int j = 0; j < b.steps; j++, at.next(b))
#pragma unroll 1
    for (int i = 0; i < 4; i++, turn.next()) {
      const uint32_t full = b.sum_full(turn.slot), to = b.base + P::SUMS_AT + turn.slot * P::SLOT;
      mbarrier_wait(b.sum_empty(turn.slot), turn.parity ^ 1);
      mbarrier_expect(full, P::SLOT);
      if (a.whole) {
        tma_load_multicast(to + group * P::GROUP, &a.sums, 0, at.row + 16 * i, group, at.head, full, 3);
      } else {
#pragma unroll 1
        for (int g = group; g < group + 4; g++)
          tma_load_multicast(to + g * P::GROUP, &a.sums, 64 * g, at.row + 16 * i, 0, at.head, full, 3);
      }
    }
}

// D_K: the numbers of a step, by a warp. (TMA would put them behind the tiles.)
template <class P>
DEVICE void load_numbers(const HopperBackward &a, const Block<P> &b, int lane) {
  const float exponent = lane < 16 ? weight_exponent<P>(a.call) : 0;
  Step<P> at(b);
#pragma unroll 1
  for (int j = 0; j < b.steps; j++, at.next(b)) {
    const float4 x = __ldg((const float4 *)numbers_of(a, at.row, at.head) + lane);
    mbarrier_wait(b.numbers_empty(j & 1), (j >> 1 & 1) ^ 1);
    store_shared4(b.base + P::NUMBERS_AT + (j & 1) * 512 + lane * 16,
                  {__float_as_uint(x.x - exponent), __float_as_uint(x.y - exponent),
                   __float_as_uint(x.z - exponent), __float_as_uint(x.w - exponent)});
    mbarrier_arrive_warp(b.numbers_full(j & 1), lane);
  }
}

}  // namespace rattn

#endif
