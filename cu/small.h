// small.h: the kernels around attention: tile lists, delta, add, padding.
//
// All enqueue on a stream and return the launch's error.
#ifndef RATTN_SMALL_H
#define RATTN_SMALL_H

#include <limits.h>

#include "call.h"

namespace rattn {

// The first row whose keys are not in the chunk, found by see_rows; in host memory that
// the device writes to.
struct Fault {
  int32_t set, row, lo, hi, tokens;
  int32_t span;   // 0, or less than what 128 rows from row see
  int64_t tiles;  // 0, or less than what rows up to row + 128 touch
};

// Finds what tiles of tile_rows query rows see: seen[tiles]. Where the rows are a stream
// those beyond the last count as rows that see nothing. No tile is seen whole that has a
// row that sees keys and whose lse [rows, heads], if that is given, is -Inf: its scores
// are all -Inf, and its weights of 0 must not meet an Inf of its own. Of the keys those in
// [first, end) count.
cudaError_t see_rows(cudaStream_t stream, const int32_t *lo, const int32_t *hi, int32_t rows, int32_t tokens,
                     int32_t tile_rows, bool is_stream, Seen *seen, int32_t tiles, Fault *fault,
                     const float *lse = nullptr, int32_t heads = 0, int32_t first = 0, int32_t end = INT_MAX);

// Finds a place for what is kept of each pair of tiles of 64 rows. A pair that touches more than
// width tiles of keys, or touches more than most with those before it, is an error of the
// queue, and counts as one that sees nothing.
cudaError_t place_rows(cudaStream_t stream, Seen *seen, int32_t tiles, int32_t width, int64_t most,
                       Kept *kept, Fault *fault);

// Finds the tiles of rows that see tiles of tile_keys keys: from the first to the last.
cudaError_t see_keys(cudaStream_t stream, const Seen *seen, int32_t tiles, int32_t tile_keys, Seers *seers,
                     int32_t key_tiles);

// delta[r] = out[r, :] . dout[r, :], rows of dim elements.
cudaError_t delta_rows(cudaStream_t stream, int32_t dtype, const float *out, const void *dout, float *delta,
                       int64_t rows, int32_t dim);

// dst += src, n elements.
cudaError_t add_floats(cudaStream_t stream, int32_t blocks, float *dst, const float *src, int64_t n);

// dst = bf16 of src, to nearest, ties to even; dst += src; n elements.
cudaError_t round_floats(cudaStream_t stream, int32_t blocks, uint16_t *dst, const float *src, int64_t n);
cudaError_t add_rounded(cudaStream_t stream, int32_t blocks, float *dst, const uint16_t *src, int64_t n);

// rattn_move_args in rattn.h.
cudaError_t move_rows(cudaStream_t stream, int32_t blocks, const rattn_move_args *a);

// Copies rows of dim elements to rows of stride, zeros behind; negated where asked for,
// and to f32 where to_f32.
cudaError_t pad_rows(cudaStream_t stream, int32_t blocks, int32_t dtype, bool to_f32, bool negate,
                     const void *src, void *dst, int64_t rows, int32_t dim, int32_t stride);

// numbers [tiles of 64 rows][heads][2][64] = lse log2 e, then delta, of a call's rows. Rows
// that see nothing, or are not there, get an lse of Inf: their weights become 0.
cudaError_t number_rows(cudaStream_t stream, const Call &call, float *numbers);

// reach[0..2] = the greatest |dout[t, h, :]|, |v[j, h, :]| and |delta| of f16 tensors,
// what is not finite left out.
cudaError_t find_reach(cudaStream_t stream, const Call &call, float *reach);

}  // namespace rattn

#endif
