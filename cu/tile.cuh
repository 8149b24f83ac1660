// tile.cuh: shared memory of a block of threads, and the ring that its stream comes
// through.
//
// Matrices in shared memory are row-major, rows a multiple of 128 bytes. The 16-byte
// piece c of row r stands at piece c ^ (r & 7), so that ldmatrix, which takes the same
// piece of 8 rows, meets 8 different sets of banks.
#ifndef RATTN_TILE_CUH
#define RATTN_TILE_CUH

#include "call.h"
#include "device.cuh"

namespace rattn {

// Sizes of a kernel: DIM is head_dim, padded. WM x WN warps share a stationary tile of
// 32 WM rows and a stream tile of STREAM rows: scores are [32, STREAM / WN] a warp,
// accumulators [32, DIM / WN]. The stream comes in chunks of up to a ring slot:
// [STREAM, SCORE_DIMS] for scores, [ACC_ROWS, DIM] to be accumulated.
template <class T_, Kind KIND_, int DIM_, int WM_, int WN_, int STREAM_, int SCORE_DIMS_, int ACC_ROWS_,
          int SLOTS_, int BLOCKS_>
struct Tile {
  using T = T_;
  static constexpr Kind KIND = KIND_;
  static constexpr int DIM = DIM_, WM = WM_, WN = WN_, STREAM = STREAM_;
  static constexpr int SCORE_DIMS = SCORE_DIMS_, ACC_ROWS = ACC_ROWS_, SLOTS = SLOTS_, BLOCKS = BLOCKS_;
  static constexpr int THREADS = 32 * WM * WN, ROWS = 32 * WM;

  static constexpr bool KEYS = KIND == D_V || KIND == D_K || KIND == D_KV;              // are stationary
  static constexpr bool TWO = KIND == D_Q || KIND == D_K || KIND == D_KV;               // products of scores
  static constexpr bool BOTH = KIND == D_KV;                                            // tensors accumulated
  static constexpr bool SECOND_FIRST = KIND == FORWARD || KIND == D_V || KIND == D_KV;  // v or dout first

  // 16 x 8 products of a warp across: scores, accumulators.
  static constexpr int SCORES = STREAM / WN / 8, ACCS = DIM / WN / 8;
  static constexpr int SCORE_CHUNKS = DIM / SCORE_DIMS, ACC_CHUNKS = STREAM / ACC_ROWS;
  static constexpr int ALL_SCORE_CHUNKS = SCORE_CHUNKS * (TWO ? 2 : 1);
  static constexpr int CHUNKS = ALL_SCORE_CHUNKS + ACC_CHUNKS * (BOTH ? 2 : 1);

  // Bytes of a row.
  static constexpr int STATIONARY_PITCH = 2 * DIM, SCORE_PITCH = 2 * SCORE_DIMS, ACC_PITCH = 2 * DIM,
                       WEIGHT_PITCH = 2 * STREAM;
  static constexpr int max_of(int a, int b) { return a > b ? a : b; }
  static constexpr int SLOT_BYTES = max_of(STREAM * SCORE_PITCH, ACC_ROWS *ACC_PITCH);

  // Offsets in shared memory: the stationary tensors; p and ds, where warps share them;
  // slots; numbers of rows.
  static constexpr int FIRST_AT = 0, SECOND_AT = ROWS * STATIONARY_PITCH;
  static constexpr int WEIGHTS_AT = SECOND_AT * (TWO ? 2 : 1);
  static constexpr int WEIGHT_BYTES = WN > 1 ? ROWS *WEIGHT_PITCH : 0;
  static constexpr int SLOTS_AT = WEIGHTS_AT + WEIGHT_BYTES * (BOTH ? 2 : 1);
  static constexpr int NUMBERS_AT = SLOTS_AT + SLOTS * SLOT_BYTES;
  // Numbers of stationary rows (lo, hi, lse, delta), and of the forward a maximum or sum
  // a warp; or of the stream's rows, in one or two buffers.
  static constexpr int ROW_NUMBERS = KEYS ? 0 : KIND == FORWARD ? 2 + WN : 4;
  // A tile's numbers are used until its scores are done, and are overwritten by copies
  // that start SLOTS - 1 chunks ahead.
  static constexpr int BUFFERS = CHUNKS - ALL_SCORE_CHUNKS >= SLOTS - 1 ? 1 : 2;
  static constexpr int NUMBER_BYTES = KEYS ? BUFFERS * 4 * STREAM * 4 : ROW_NUMBERS * ROWS * 4;
  // Bounds that are read once a tile, of which registers would be too many.
  static constexpr int BOUNDS_AT = NUMBERS_AT + NUMBER_BYTES;
  static constexpr int SHARED_BYTES = BOUNDS_AT + 16;

  static_assert(DIM % 64 == 0 && DIM % SCORE_DIMS == 0 && SCORE_DIMS % 64 == 0 && STREAM % 16 == 0, "");
  static_assert(SCORES % 2 == 0 && ACCS % 2 == 0 && ACC_ROWS % 16 == 0 && STREAM % ACC_ROWS == 0, "");
  static_assert(WN > 1 || ACC_CHUNKS == 1, "p in registers is used by one chunk");
  static_assert(BUFFERS * CHUNKS - ALL_SCORE_CHUNKS >= SLOTS - 1, "numbers would be overwritten");
};

// Starts copies of N rows of DIMS elements to shared memory. What lies beyond `rows`
// rows or `pieces` 16-byte pieces of a row becomes 0.
template <int N, int DIMS, int THREADS>
DEVICE void copy_rows(uint32_t to, const uint16_t *from, int64_t pitch, int rows, int pieces) {
  constexpr int PER_ROW = DIMS / 8, ALL = N * PER_ROW;
  if constexpr (THREADS % PER_ROW == 0 && ALL % THREADS == 0) {
    constexpr int STEP = THREADS / PER_ROW;
    const int row = threadIdx.x / PER_ROW, piece = threadIdx.x % PER_ROW;
    const uint16_t *p = from + row * pitch + piece * 8;
    const bool inside = piece < pieces;
#pragma unroll
    for (int i = 0; i < ALL / THREADS; i++) {
      const int r = row + i * STEP;
      const bool valid = inside && r < rows;
      copy16(to + r * (2 * DIMS) + ((piece ^ (r & 7)) << 4), p, valid);
      p += STEP * pitch;
    }
  } else {
#pragma unroll
    for (int i = 0; i < (ALL + THREADS - 1) / THREADS; i++) {
      const int at = threadIdx.x + i * THREADS;
      if (ALL % THREADS != 0 && at >= ALL) break;
      const int r = at / PER_ROW, piece = at % PER_ROW;
      const bool valid = piece < pieces && r < rows;
      copy16(to + r * (2 * DIMS) + ((piece ^ (r & 7)) << 4), from + r * pitch + piece * 8, valid);
    }
  }
}

// The stream of a block: its tiles in order, each as CHUNKS chunks, SLOTS - 1 chunks
// ahead of use.
template <class P>
struct Ring {
  const Call &call;
  uint32_t slots, numbers;  // addresses in shared memory
  uint32_t at;              // offset of the slot to be filled next
  // Keys are below end. Query rows are below call.rows, their tiles in [bound 0, bound 1)
  // and their heads below end. The chunk to be loaded is of row, head.
  int end, row, head, chunk, buffer;

  // Whether a tile at row, head is one of the stream's.
  DEVICE bool has(int row, int head) const { return (P::KEYS ? head : row) < end; }
  DEVICE int limit() const { return P::KEYS ? call.rows : end; }
  DEVICE int bound(int i) const { return load_shared(numbers + P::NUMBER_BYTES + 4 * i); }

  // Elements from a row to the next, and row r of the first or the second tensor.
  static DEVICE int64_t pitch(const Call &call) { return P::KEYS ? call.q_token : call.kv_token; }
  static DEVICE const uint16_t *source(const Call &call, bool second, int head, int r) {
    const void *p = P::KEYS ? (second ? call.dout : call.q) : (second ? call.v : call.k);
    return (const uint16_t *)p + r * pitch(call) + (int64_t)head * call.stride;
  }

  // Starts copies of the next chunk, if there is one, which is number w of its tile.
  DEVICE void load(const int w) {
    if (has(row, head)) {
      const uint32_t slot = slots + at;
      const int pieces = call.stride / 8;
      if (w < P::ALL_SCORE_CHUNKS) {
        const bool two = P::TWO && w >= P::SCORE_CHUNKS;
        const int dim = (two ? w - P::SCORE_CHUNKS : w) * P::SCORE_DIMS;
        copy_rows<P::STREAM, P::SCORE_DIMS, P::THREADS>(slot, source(call, two, head, row) + dim, pitch(call),
                                                        limit() - row, pieces - dim / 8);
        if (P::KEYS && w == 0) load_numbers();
      } else {
        const int i = w - P::ALL_SCORE_CHUNKS;
        const bool two = P::BOTH && i >= P::ACC_CHUNKS;
        const int r = row + (two ? i - P::ACC_CHUNKS : i) * P::ACC_ROWS;
        copy_rows<P::ACC_ROWS, P::DIM, P::THREADS>(slot, source(call, P::SECOND_FIRST != two, head, r),
                                                   pitch(call), limit() - r, pieces);
      }
      if (w == P::CHUNKS - 1) step(row, head);
    }
    end_copies();
    chunk = w == P::CHUNKS - 1 ? 0 : w + 1;
    at = at == (P::SLOTS - 1) * P::SLOT_BYTES ? 0 : at + P::SLOT_BYTES;
  }

  // Moves row to the next tile, which for query rows may be the first of the next head.
  DEVICE void step(int &row, int &head) const {
    row += P::STREAM;
    if (P::KEYS && row >= bound(1)) row = bound(0), head++;
  }

  // lse, delta, lo and hi of a tile of query rows; rows that are not there see nothing.
  DEVICE void load_numbers() {
    const uint32_t to = numbers + buffer * (16 * P::STREAM);
    for (int i = threadIdx.x; i < P::STREAM; i += P::THREADS) {
      const bool valid = row + i < limit();
      const int64_t r = valid ? row + i : 0;
      copy4(to + 4 * i, call.lse + r * call.heads + head, valid);
      if (P::TWO) copy4(to + 4 * (P::STREAM + i), call.delta + r * call.heads + head, valid);
      copy4(to + 4 * (2 * P::STREAM + i), call.lo + r, valid);
      copy4(to + 4 * (3 * P::STREAM + i), call.hi + r, valid);
    }
    if (P::BUFFERS == 2) buffer ^= 1;
  }

  // Waits for the next chunk, starts another, and returns the address of the chunk. All
  // threads call it; after it all have done with the chunk before, whose slot is filled
  // anew. w is the number of the chunk that is started.
  DEVICE uint32_t next(const int w) {
    wait_copies<P::SLOTS - 2>();
    __syncthreads();
    load(w);
    return slots + at;
  }
};

// Zeros what is Inf or NaN in a chunk to be accumulated. All threads call it; returns
// whether there was any.
template <class P>
DEVICE bool clean(uint32_t slot) {
  bool odd = false;
  for (int i = threadIdx.x; i < P::ACC_ROWS * P::ACC_PITCH / 16; i += P::THREADS) {
    uint4 *piece = (uint4 *)__cvta_shared_to_generic(slot + i * 16);
    uint4 w = *piece;
    const uint32_t x = odd_halves<typename P::T>(w.x), y = odd_halves<typename P::T>(w.y),
                   z = odd_halves<typename P::T>(w.z), u = odd_halves<typename P::T>(w.w);
    if ((x | y | z | u) == 0) continue;
    odd = true;
    w.x &= ~((x >> 15) * 0xffff);
    w.y &= ~((y >> 15) * 0xffff);
    w.z &= ~((z >> 15) * 0xffff);
    w.w &= ~((u >> 15) * 0xffff);
    *piece = w;
  }
  return __syncthreads_or(odd);
}

}  // namespace rattn

#endif
