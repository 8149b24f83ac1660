// attend.cuh: attention, forward and backward, of bf16 and f16 on tensor cores.
//
// One block of threads owns a stationary tile for the whole call, goes over its stream
// in order and stores once: no atomics, and nothing depends on which block runs when.
#ifndef RATTN_ATTEND_CUH
#define RATTN_ATTEND_CUH

#include "fold.cuh"
#include "product.cuh"

namespace rattn {

// Powers of 2 that f16 weights are multiplied with, so that neither a normalised p of
// a long row (1e-6) nor a ds of small gradients falls among f16's subnormals, nor a
// large ds beyond its range: |ds| <= |dout| |v| + |delta|.
template <class P>
struct Ranges {
  float p, ds;
  DEVICE Ranges(const Call &call) {
    p = ds = 1;
    if constexpr (P::KIND == FORWARD || P::T::UNIT != F16::UNIT) return;
    p = 16384;
    if (!P::TWO) return;
    const float most = call.reach[0] * call.reach[1] + call.reach[2];
    int exponent = 0;
    if (most > 0 && most < infinity()) frexpf(most, &exponent);
    ds = exp2f((float)min(max(14 - exponent, -100), 100));
  }
};

// Puts `hidden` where a row of the warp does not see a key, for the stream tile at row.
// Loads bounds as they are needed, so that they do not take registers.
template <class P>
DEVICE void hide(const Place &w, const int32_t *numbers, int tile, int row, float (&s)[2][P::SCORES][4],
                 float hidden) {
  if constexpr (P::KEYS) {
    const int first = tile + w.row(0, 0);
#pragma unroll
    for (int n = 0; n < P::SCORES; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int32_t *at = numbers + 2 * P::STREAM + score_column<P>(w, n, e);
        const int32_t lo = load_shared(shared_address(at)) - first,
                      hi = load_shared(shared_address(at + P::STREAM)) - first;
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (8 * i < lo || 8 * i >= hi) s[i / 2][n][i % 2 * 2 + e] = hidden;
      }
  } else {
    const int first = row + score_column<P>(w, 0, 0);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int32_t *at = numbers + w.row(i / 2, i % 2);
      const int32_t lo = load_shared(shared_address(at)) - first,
                    hi = load_shared(shared_address(at + P::ROWS)) - first;
#pragma unroll
      for (int n = 0; n < P::SCORES; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (8 * n + e < lo || 8 * n + e >= hi) s[i / 2][n][i % 2 * 2 + e] = hidden;
    }
  }
}

// Adds what clean() took out of a chunk to the rows that see it, and to no others: 0
// times Inf is NaN, so a product with weights of 0 would spread it over the tile. As
// the sum is lost anyway the weight, which is not 0, is left out.
template <class P>
DEVICE void add_odd(const Call &call, const Place &w, float (&acc)[2][P::ACCS][4], const int32_t *lo_hi,
                    int tile, int row, int limit, bool second, int head) {
  using T = typename P::T;
#pragma unroll 1
  for (int k = row; k < min(row + P::ACC_ROWS, limit); k++) {
    bool see[2][2];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int r = w.row(m, half);
        see[m][half] = P::KEYS ? tile + r >= call.lo[k] && tile + r < call.hi[k]
                               : k >= lo_hi[r] && k < lo_hi[P::ROWS + r];
        if (P::KIND == FORWARD) continue;
        const float lse =
            P::KEYS ? call.lse[(int64_t)k * call.heads + head] : __int_as_float(lo_hi[2 * P::ROWS + r]);
        if (lse == -infinity()) see[m][half] = false;  // its weights are 0
      }
    const uint16_t *x = Ring<P>::source(call, second, head, k);
#pragma unroll
    for (int n = 0; n < P::ACCS; n++) {
      const int column = acc_column<P>(w, n);
      if (column >= call.stride) continue;
      const uint32_t pair = *(const uint32_t *)(x + column), odd = odd_halves<T>(pair);
      if (odd == 0) continue;
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          if (!see[m][half]) continue;
          if (odd & 0x8000) acc[m][n][2 * half] += T::low(pair);
          if (odd & 0x80000000) acc[m][n][2 * half + 1] += T::high(pair);
        }
    }
  }
}

template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) attend(const __grid_constant__ Call call) {
  using T = typename P::T;
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t base = shared_address(memory);
  float *const numbers = (float *)(memory + P::NUMBERS_AT);
  const Place w = {(int)threadIdx.x % 32, (int)threadIdx.x / 32 / P::WN, (int)threadIdx.x / 32 % P::WN};

  // The heaviest tiles of a causal mask first: the first keys, the last rows.
  const int head = blockIdx.x / call.tiles, group = call.heads / call.kv_heads;
  const int index = P::KEYS ? blockIdx.x % call.tiles : call.tiles - 1 - blockIdx.x % call.tiles;
  const int kv_head = P::KEYS ? head : head / group;
  const int tile = index * P::ROWS;  // the first stationary row

  Ring<P> ring = {call, base + P::SLOTS_AT, base + P::NUMBERS_AT};
  int32_t *const bounds = (int32_t *)(memory + P::BOUNDS_AT);  // of tiles, or of the keys that all rows see
  if constexpr (P::KEYS) {
    const Seers seers = call.seers[index];
    if (seers.begin >= seers.end) return;
    ring.row = seers.begin * P::STREAM;
    ring.head = kv_head * group;
    ring.end = ring.head + group;
    if (threadIdx.x == 0) bounds[0] = ring.row, bounds[1] = seers.end * P::STREAM;
  } else {
    const Seen seen = call.seen[index];
    if (seen.lo >= seen.hi && !call.first) return;
    ring.row = min(seen.lo, seen.hi);
    ring.head = kv_head;
    ring.end = seen.hi;
    if (threadIdx.x == 0) bounds[0] = seen.all_lo, bounds[1] = seen.all_hi;
  }
  __syncthreads();
  int row = ring.row, head_of_row = ring.head;  // of the tile in work

  // The stationary tile, and what its rows see.
  {
    const int64_t pitch = P::KEYS ? call.kv_token : call.q_token;
    const int64_t at = tile * pitch + (int64_t)head * call.stride;
    const int rows = (P::KEYS ? call.tokens : call.rows) - tile, pieces = call.stride / 8;
    copy_rows<P::ROWS, P::DIM, P::THREADS>(
        base + P::FIRST_AT, (const uint16_t *)(P::KEYS ? call.k : call.q) + at, pitch, rows, pieces);
    if (P::TWO)
      copy_rows<P::ROWS, P::DIM, P::THREADS>(
          base + P::SECOND_AT, (const uint16_t *)(P::KEYS ? call.v : call.dout) + at, pitch, rows, pieces);
    if (!P::KEYS) load_rows<P>(call, numbers, tile, head);
  }
#pragma unroll
  for (int i = 0; i < P::SLOTS - 1; i++) ring.load(i % P::CHUNKS);

  const Ranges<P> ranges(call);
  // Where chunks are few their loops are unrolled, and their numbers in the tile constants.
  constexpr bool FEW = P::CHUNKS <= 4;
  constexpr int UNROLL = FEW ? 8 : 1;
  auto next = [&](int at) { return ring.next(FEW ? (at + P::SLOTS - 1) % P::CHUNKS : ring.chunk); };

  float acc[2][P::ACCS][4] = {}, more[P::BOTH ? 2 : 1][P::ACCS][4] = {};
  Softmax<P> softmax;
  const uint32_t a1 = left_address(w, base + P::FIRST_AT, P::STATIONARY_PITCH);
  const uint32_t a2 = left_address(w, base + P::SECOND_AT, P::STATIONARY_PITCH);
  int buffer = 0;
#pragma unroll 1
  while (ring.has(row, head_of_row)) {
    bool all;
    if constexpr (P::KEYS) {
      const Seen seen = call.seen[row / P::STREAM];
      all = seen.all_lo <= tile && tile + P::ROWS <= seen.all_hi;
    } else {
      all = ring.bound(0) <= row && row + P::STREAM <= ring.bound(1);
    }
    const float *stream_numbers = P::KEYS ? numbers + buffer * (4 * P::STREAM) : numbers;
    if (P::BUFFERS == 2) buffer ^= 1;
    Weights<P> p, ds;

    float s[2][P::SCORES][4] = {};
#pragma unroll UNROLL
    for (int i = 0; i < P::SCORE_CHUNKS; i++) add_scores<P>(w, s, a1 + i * 2 * P::SCORE_DIMS, next(i));
    // Pairs that are not seen: before the maximum, or after an exponential that may be
    // NaN where a row sees nothing.
    if (P::KIND != FORWARD) normalise<P>(call, w, stream_numbers, s);
    if (!all)
      hide<P>(w, (const int32_t *)stream_numbers, tile, row, s, P::KIND == FORWARD ? -infinity() : 0.0f);
    if constexpr (P::KIND == FORWARD) softmax.weigh(call, w, numbers, s, acc);
    if constexpr (P::KIND == FORWARD || P::KIND == D_V || P::BOTH) {
      if (ranges.p != 1) {
        float scaled[2][P::SCORES][4];
        for_each<P>([&](int m, int n, int e) { scaled[m][n][e] = s[m][n][e] * ranges.p; });
        put_weights<P>(w, p, base + P::WEIGHTS_AT, scaled);
      } else {
        put_weights<P>(w, p, base + P::WEIGHTS_AT, s);
      }
    }

    if constexpr (P::TWO) {
      float dp[2][P::SCORES][4];  // dout . v - delta, then ds
      start_from_delta<P>(w, stream_numbers, dp);
#pragma unroll UNROLL
      for (int i = 0; i < P::SCORE_CHUNKS; i++)
        add_scores<P>(w, dp, a2 + i * 2 * P::SCORE_DIMS, next(P::SCORE_CHUNKS + i));
      for_each<P>([&](int m, int n, int e) { dp[m][n][e] *= s[m][n][e] * ranges.ds; });
      if (!all)  // p = 0 where a row does not see, and dp may be NaN
        for_each<P>([&](int m, int n, int e) { dp[m][n][e] = s[m][n][e] == 0 ? 0 : dp[m][n][e]; });
      put_weights<P>(w, P::BOTH ? ds : p, base + P::WEIGHTS_AT + (P::BOTH ? P::WEIGHT_BYTES : 0), dp);
    }

    // What is not seen must not get into the sums by way of 0 times Inf.
    auto accumulate = [&](auto &sum, const Weights<P> &weights, uint32_t at, bool of_second, int chunk) {
#pragma unroll UNROLL
      for (int i = 0; i < P::ACC_CHUNKS; i++) {
        const uint32_t slot = next(chunk + i);
        const bool odd = !all && clean<P>(slot);
        add_weighted<P>(w, sum, weights, at, i * P::ACC_ROWS, slot);
        if (odd)
          add_odd<P>(call, w, sum, (const int32_t *)numbers, tile, row + i * P::ACC_ROWS, ring.limit(),
                     of_second, head_of_row);
      }
    };
    accumulate(acc, p, base + P::WEIGHTS_AT, P::SECOND_FIRST, P::ALL_SCORE_CHUNKS);
    if constexpr (P::BOTH)
      accumulate(more, ds, base + P::WEIGHTS_AT + P::WEIGHT_BYTES, false,
                 P::ALL_SCORE_CHUNKS + P::ACC_CHUNKS);
    ring.step(row, head_of_row);
  }
  wait_copies<0>();
  __syncthreads();

  if constexpr (P::KIND == FORWARD) {
    softmax.store(call, w, numbers, acc, tile, head);
  } else if constexpr (P::KIND == D_Q) {
    store_dq<P>(call, w, numbers, acc, tile, head, call.gradient / ranges.ds);
  } else if constexpr (P::BOTH) {
    store_dkv<P>(call, w, acc, tile, head, 1, 1 / ranges.p);
    store_dkv<P>(call, w, more, tile, head, 0, call.scale / ranges.ds);
  } else if constexpr (P::KIND == D_V) {
    store_dkv<P>(call, w, acc, tile, head, 1, 1 / ranges.p);
  } else {
    store_dkv<P>(call, w, acc, tile, head, 0, call.scale / ranges.ds);
  }
}

}  // namespace rattn

#endif
