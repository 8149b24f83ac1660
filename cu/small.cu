// small.cu: the kernels around attention. All are bound by memory, or tiny.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <limits.h>
#include <math.h>

#include "../kernels/rattn.h"
#include "small.h"

namespace rattn {

enum { THREADS = 256, WARPS = THREADS / 32 };

#ifndef LAUNCH
#define LAUNCH(kernel, blocks, stream, ...) kernel<<<(unsigned)(blocks), THREADS, 0, stream>>>(__VA_ARGS__)
#endif

// A warp a tile of rows.
static __global__ void see_rows_kernel(const int32_t *lo, const int32_t *hi, int32_t rows, int32_t tokens,
                                       int32_t tile_rows, bool is_stream, Seen *seen, int32_t tiles,
                                       Fault *fault, const float *lse, int32_t heads, int32_t first,
                                       int32_t end) {
  const int64_t tile = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (tile >= tiles) return;
  Seen s = {INT_MAX, 0, 0, INT_MAX};
  for (int32_t i = threadIdx.x % 32; i < tile_rows; i += 32) {
    const int64_t r = tile * tile_rows + i;
    if (r >= rows && !is_stream) continue;
    int32_t a = r < rows ? lo[r] : 0, b = r < rows ? hi[r] : 0;
    if (a < b && (a < 0 || b > tokens)) {
      // Any such row will do; the words are whole, and read after the queue is empty.
      fault->row = (int32_t)r, fault->lo = a, fault->hi = b, fault->tokens = tokens, fault->span = 0,
      fault->tiles = 0;
      fault->set = 1;
      a = max(a, 0), b = min(b, tokens);
    }
    a = max(a, first), b = min(b, end);
    if (a >= b) {
      s.all_lo = INT_MAX, s.all_hi = INT_MIN;
    } else {
      s.lo = min(s.lo, a), s.hi = max(s.hi, b);
      s.all_lo = max(s.all_lo, a), s.all_hi = min(s.all_hi, b);
    }
  }
  if (lse) {
    const int64_t row = tile * tile_rows, last = min((int64_t)rows, row + tile_rows) * heads;
    for (int64_t i = row * heads + threadIdx.x % 32; i < last; i += 32)
      if (lse[i] == -INFINITY && lo[i / heads] < hi[i / heads]) s.all_lo = INT_MAX, s.all_hi = INT_MIN;
  }
  for (int k = 16; k > 0; k /= 2) {
    s.lo = min(s.lo, __shfl_xor_sync(~0u, s.lo, k));
    s.hi = max(s.hi, __shfl_xor_sync(~0u, s.hi, k));
    s.all_lo = max(s.all_lo, __shfl_xor_sync(~0u, s.all_lo, k));
    s.all_hi = min(s.all_hi, __shfl_xor_sync(~0u, s.all_hi, k));
  }
  if (threadIdx.x % 32 == 0) seen[tile] = s;
}

cudaError_t see_rows(cudaStream_t stream, const int32_t *lo, const int32_t *hi, int32_t rows, int32_t tokens,
                     int32_t tile_rows, bool is_stream, Seen *seen, int32_t tiles, Fault *fault,
                     const float *lse, int32_t heads, int32_t first, int32_t end) {
  LAUNCH(see_rows_kernel, ceil_div(tiles, WARPS), stream, lo, hi, rows, tokens, tile_rows, is_stream, seen,
         tiles, fault, lse, heads, first, end);
  return cudaGetLastError();
}

// One warp, in the order of the rows.
static __global__ void place_rows_kernel(Seen *seen, int32_t tiles, int32_t width, int64_t most, Kept *kept,
                                         Fault *fault) {
  if (threadIdx.x >= 32) return;
  const int32_t lane = threadIdx.x, pairs = tiles / 2 + tiles % 2;
  int64_t before = 0;
  for (int32_t start = 0; start < pairs; start += 32) {
    const int32_t pair = start + lane, end = pair < pairs ? min(2 * pair + 2, tiles) : 0;
    int32_t lo = INT_MAX, hi = 0;
    for (int32_t i = 2 * pair; i < end; i++) lo = min(lo, seen[i].lo), hi = max(hi, seen[i].hi);
    lo = hi > 0 ? lo / 64 : 0, hi = hi / 64 + (hi % 64 > 0);
    const int32_t own = min(hi - lo, width);  // no more, lest the next ones' places lie beyond the room
    int32_t sum = own;
    for (int k = 1; k < 32; k *= 2) {
      const int32_t x = __shfl_sync(~0u, sum, max(lane - k, 0));
      if (lane >= k) sum += x;
    }
    const int64_t at = before + sum - own;
    if (lo < hi && (hi - lo > width || before + sum > most)) {
      fault->row = 128 * pair, fault->lo = 64 * lo, fault->hi = 64 * hi;
      fault->span = hi - lo > width ? 64 * width : 0, fault->tiles = most, fault->set = 1;
      for (int32_t i = 2 * pair; i < end; i++) seen[i] = {INT_MAX, 0, INT_MAX, INT_MIN};
      lo = hi = 0;
    }
    if (pair < pairs) kept[pair] = {at, lo, hi};
    before += __shfl_sync(~0u, sum, 31);
  }
}

cudaError_t place_rows(cudaStream_t stream, Seen *seen, int32_t tiles, int32_t width, int64_t most,
                       Kept *kept, Fault *fault) {
  LAUNCH(place_rows_kernel, 1, stream, seen, tiles, width, most, kept, fault);
  return cudaGetLastError();
}

static __global__ void clear_seers(Seers *seers, int32_t n) {
  const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i < n) seers[i] = {INT_MAX, 0};
}

// A warp a tile of rows, a lane a tile of keys. Least and greatest do not depend on the
// order of the atomics. Most are left out: what is there already is good enough.
static __global__ void see_keys_kernel(const Seen *seen, int32_t tiles, int32_t tile_keys, Seers *seers) {
  const int64_t tile = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (tile >= tiles) return;
  const Seen s = seen[tile];
  if (s.lo >= s.hi) return;
  const int32_t last = (s.hi - 1) / tile_keys, t = (int32_t)tile;
  for (int32_t k = s.lo / tile_keys + threadIdx.x % 32; k <= last; k += 32) {
    volatile Seers *now = seers + k;
    if (t < now->begin) atomicMin(&seers[k].begin, t);
    if (t + 1 > now->end) atomicMax(&seers[k].end, t + 1);
  }
}

cudaError_t see_keys(cudaStream_t stream, const Seen *seen, int32_t tiles, int32_t tile_keys, Seers *seers,
                     int32_t key_tiles) {
  LAUNCH(clear_seers, ceil_div(key_tiles, THREADS), stream, seers, key_tiles);
  LAUNCH(see_keys_kernel, ceil_div(tiles, WARPS), stream, seen, tiles, tile_keys, seers);
  return cudaGetLastError();
}

static __device__ float to_float(float x) { return x; }
static __device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ float to_float(__half x) { return __half2float(x); }
static __device__ void from_float(float x, float *y) { *y = x; }
static __device__ void from_float(float x, __nv_bfloat16 *y) { *y = __float2bfloat16(x); }
static __device__ void from_float(float x, __half *y) { *y = __float2half(x); }

// A warp a row.
template <class T>
static __global__ void delta_kernel(const float *out, const T *dout, float *delta, int64_t rows,
                                    int32_t dim) {
  const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (r >= rows) return;
  float sum = 0;
  for (int32_t d = threadIdx.x % 32; d < dim; d += 32)
    sum = fmaf(out[r * dim + d], to_float(dout[r * dim + d]), sum);
  for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
  if (threadIdx.x % 32 == 0) delta[r] = sum;
}

cudaError_t delta_rows(cudaStream_t stream, int32_t dtype, const float *out, const void *dout, float *delta,
                       int64_t rows, int32_t dim) {
  const unsigned blocks = (unsigned)ceil_div(rows, WARPS);
  if (dtype == RATTN_F32)
    LAUNCH(delta_kernel, blocks, stream, out, (const float *)dout, delta, rows, dim);
  else if (dtype == RATTN_BF16)
    LAUNCH(delta_kernel, blocks, stream, out, (const __nv_bfloat16 *)dout, delta, rows, dim);
  else
    LAUNCH(delta_kernel, blocks, stream, out, (const __half *)dout, delta, rows, dim);
  return cudaGetLastError();
}

static __global__ void add_kernel(float *dst, const float *src, int64_t n, bool aligned) {
  const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, step = (int64_t)gridDim.x * THREADS;
  const int64_t fours = aligned ? n / 4 : 0;
  for (int64_t i = first; i < fours; i += step) {
    const float4 y = ((const float4 *)src)[i];
    float4 x = ((float4 *)dst)[i];
    x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
    ((float4 *)dst)[i] = x;
  }
  for (int64_t i = fours * 4 + first; i < n; i += step) dst[i] += src[i];
}

cudaError_t add_floats(cudaStream_t stream, int32_t blocks, float *dst, const float *src, int64_t n) {
  const bool aligned = ((uintptr_t)dst | (uintptr_t)src) % 16 == 0;
  const int64_t need = ceil_div(n, 4 * THREADS);
  LAUNCH(add_kernel, need < blocks ? need : blocks, stream, dst, src, n, aligned);
  return cudaGetLastError();
}

static __global__ void round_kernel(__nv_bfloat16 *dst, const float *src, int64_t n) {
  const int64_t step = (int64_t)gridDim.x * THREADS;
  for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
    dst[i] = __float2bfloat16(src[i]);
}

cudaError_t round_floats(cudaStream_t stream, int32_t blocks, uint16_t *dst, const float *src, int64_t n) {
  const int64_t need = ceil_div(n, THREADS);
  LAUNCH(round_kernel, need < blocks ? need : blocks, stream, (__nv_bfloat16 *)dst, src, n);
  return cudaGetLastError();
}

static __global__ void add_rounded_kernel(float *dst, const __nv_bfloat16 *src, int64_t n) {
  const int64_t step = (int64_t)gridDim.x * THREADS;
  for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) dst[i] += to_float(src[i]);
}

cudaError_t add_rounded(cudaStream_t stream, int32_t blocks, float *dst, const uint16_t *src, int64_t n) {
  const int64_t need = ceil_div(n, THREADS);
  LAUNCH(add_rounded_kernel, need < blocks ? need : blocks, stream, dst, (const __nv_bfloat16 *)src, n);
  return cudaGetLastError();
}

static __device__ void put(uint4 *dst, uint4 x) { *dst = x; }
static __device__ void put(uint32_t *dst, uint32_t x) { *dst = x; }
static __device__ void put(uint8_t *dst, uint8_t x) { *dst = x; }
static __device__ void put(float *dst, float x) { *dst += x; }

// A row is width units of T; strides are in units too.
template <class T>
static __global__ void move_kernel(T *dst, const T *src, int64_t n, int64_t width, int64_t dst_stride,
                                   int64_t src_stride, const int32_t *to, const int32_t *from) {
  const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, step = (int64_t)gridDim.x * THREADS;
  const int64_t rows = step / width, units = step % width;
  int64_t row = first / width, unit = first % width;
  while (row < n) {
    put(dst + (to ? to[row] : row) * dst_stride + unit, src[(from ? from[row] : row) * src_stride + unit]);
    row += rows, unit += units;
    if (unit >= width) row++, unit -= width;
  }
}

template <class T>
static void launch_move(cudaStream_t stream, int32_t blocks, const rattn_move_args *a) {
  const int64_t unit = sizeof(T), need = ceil_div(a->n * (a->bytes / unit), THREADS);
  LAUNCH(move_kernel, need < blocks ? need : blocks, stream, (T *)a->dst, (const T *)a->src, a->n,
         a->bytes / unit, a->dst_stride / unit, a->src_stride / unit, a->to, a->from);
}

cudaError_t move_rows(cudaStream_t stream, int32_t blocks, const rattn_move_args *a) {
  const uintptr_t all = (uintptr_t)a->dst | (uintptr_t)a->src | (uintptr_t)a->bytes |
                        (uintptr_t)a->dst_stride | (uintptr_t)a->src_stride;
  if (a->add)
    launch_move<float>(stream, blocks, a);
  else if (all % 16 == 0)
    launch_move<uint4>(stream, blocks, a);
  else if (all % 4 == 0)
    launch_move<uint32_t>(stream, blocks, a);
  else
    launch_move<uint8_t>(stream, blocks, a);
  return cudaGetLastError();
}

template <class T, class U>
static __global__ void pad_kernel(const T *src, U *dst, int64_t n, int32_t dim, int32_t stride, float sign) {
  const int64_t step = (int64_t)gridDim.x * THREADS;
  for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
    const int64_t r = i / stride;
    const int32_t d = (int32_t)(i - r * stride);
    from_float(d < dim ? sign * to_float(src[r * dim + d]) : 0.0f, dst + i);
  }
}

cudaError_t pad_rows(cudaStream_t stream, int32_t blocks, int32_t dtype, bool to_f32, bool negate,
                     const void *src, void *dst, int64_t rows, int32_t dim, int32_t stride) {
  const int64_t n = rows * stride, need = ceil_div(n, THREADS);
  const unsigned grid = (unsigned)(need < blocks ? need : blocks);
  const float sign = negate ? -1.0f : 1.0f;
  if (dtype == RATTN_F32)
    LAUNCH(pad_kernel, grid, stream, (const float *)src, (float *)dst, n, dim, stride, sign);
  else if (dtype == RATTN_BF16 && to_f32)
    LAUNCH(pad_kernel, grid, stream, (const __nv_bfloat16 *)src, (float *)dst, n, dim, stride, sign);
  else if (dtype == RATTN_BF16)
    LAUNCH(pad_kernel, grid, stream, (const __nv_bfloat16 *)src, (__nv_bfloat16 *)dst, n, dim, stride, sign);
  else if (to_f32)
    LAUNCH(pad_kernel, grid, stream, (const __half *)src, (float *)dst, n, dim, stride, sign);
  else
    LAUNCH(pad_kernel, grid, stream, (const __half *)src, (__half *)dst, n, dim, stride, sign);
  return cudaGetLastError();
}

static __global__ void number_kernel(const Call call, float *numbers) {
  const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / call.heads;
  if (row >= ((int64_t)call.rows + 63) / 64 * 64) return;
  const int32_t head = (int32_t)(i - row * call.heads);
  const bool there = row < call.rows;
  const float infinity = __int_as_float(0x7f800000), lse = there ? call.lse[i] : -infinity;
  float *to = numbers + (row / 64 * call.heads + head) * 128 + row % 64;
  to[0] = lse == -infinity ? infinity : lse * 1.4426950408889634f;
  to[64] = there ? call.delta[i] : 0;
}

cudaError_t number_rows(cudaStream_t stream, const Call &call, float *numbers) {
  const int64_t rows = ceil_div(call.rows, 64) * 64;
  LAUNCH(number_kernel, ceil_div(rows * call.heads, THREADS), stream, call, numbers);
  return cudaGetLastError();
}

// Raises *to to x, both >= 0: their bits are ordered as they are.
static __device__ void raise(float *to, float x) {
  if (x <= 3e38f && x > *(volatile float *)to) atomicMax((int *)to, __float_as_int(x));
}

// A warp a row: the rows of dout, with delta, and those of v.
static __global__ void reach_kernel(const Call call, float *reach) {
  const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, queries = (int64_t)call.rows * call.heads;
  if (r >= queries + (int64_t)call.tokens * call.kv_heads) return;
  const int64_t key = (r - queries) / call.kv_heads;
  const __half *x = r < queries ? (const __half *)call.dout + r * call.stride
                                : (const __half *)call.v + key * call.kv_token +
                                      (r - queries - key * call.kv_heads) * call.stride;
  float sum = 0;
  for (int32_t d = threadIdx.x % 32; d < call.dim; d += 32) {
    const float y = __half2float(x[d]);
    if (fabsf(y) <= 65504) sum = fmaf(y, y, sum);
  }
  for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
  if (threadIdx.x % 32) return;
  raise(reach + (r < queries ? 0 : 1), sqrtf(sum));
  if (r < queries) raise(reach + 2, fabsf(call.delta[r]));
}

cudaError_t find_reach(cudaStream_t stream, const Call &call, float *reach) {
  cudaError_t status = cudaMemsetAsync(reach, 0, 3 * sizeof(float), stream);
  if (status != cudaSuccess) return status;
  const int64_t rows = (int64_t)call.rows * call.heads + (int64_t)call.tokens * call.kv_heads;
  LAUNCH(reach_kernel, ceil_div(rows, WARPS), stream, call, reach);
  return cudaGetLastError();
}

}  // namespace rattn
