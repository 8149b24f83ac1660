// rattn.h: the C ABI between the Go program and its attention kernels.
//
// A backend is a table of functions. rattn_cpu() returns the CPU's table;
// a GPU's comes with its own, rattn_cuda().
//
// Rules: integers have fixed width; offsets, counts and sizes in memory are
// int64_t; arrays are passed as flat pointers into the backend's memory; the
// callee keeps no pointer of the caller's after the work that was enqueued with
// it has run; every call returns a status, and error() gives the text of the
// last failure of a context. All calls on one context come from one thread.
#ifndef RATTN_H
#define RATTN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RATTN_ABI_VERSION 5

enum rattn_status { RATTN_OK = 0, RATTN_ERR_ARG = 1, RATTN_ERR_MEMORY = 2, RATTN_ERR_DEVICE = 3 };
enum rattn_dtype { RATTN_F32 = 0, RATTN_BF16 = 1, RATTN_F16 = 2 };

typedef struct rattn_ctx rattn_ctx;

// Shape of a job. heads is a multiple of kv_heads; query head h reads KV head
// h / (heads / kv_heads).
typedef struct {
  int32_t dtype;  // enum rattn_dtype: q, kv and dout
  int32_t heads, kv_heads, head_dim;
  float scale;
} rattn_shape;

// Queries [start, start + n) of the rank; query start + t sees keys
// [lo[t], hi[t]) of the chunk, nothing where lo[t] >= hi[t]. Of 128 rows in a row,
// t in [128 i, 128 i + 128), the keys that any of them sees lie within span keys and
// touch c_i of the tiles [64 j, 64 j + 64) of keys, those between them counted; tiles is
// the sum of all c_i. 0 says of either that it is not known.
typedef struct {
  int64_t start, n;
  const int32_t *lo, *hi;
  int64_t span, tiles;
} rattn_rows;

// Forward of rows against a chunk of keys; folds into out and lse.
//   q   [T, heads, head_dim]          dtype
//   kv  [tokens, 2, kv_heads, head_dim] dtype, keys then values of a token
//   out [T, heads, head_dim]          float, running output
//   lse [T, heads]                    float, natural logarithm
// first != 0: out and lse of the rows are written without being read.
typedef struct {
  rattn_shape shape;
  rattn_rows rows;
  int64_t tokens;
  const void *q, *kv;
  float *out, *lse;
  int32_t first;
} rattn_forward_args;

// delta[t, h] = out[t, h, :] . dout[t, h, :] for t in [0, tokens).
typedef struct {
  rattn_shape shape;
  int64_t tokens;
  const float *out;
  const void *dout;
  float *delta;
} rattn_delta_args;

// Backward of rows against a chunk of keys, from global lse and delta.
//   dq  [T, heads, head_dim]            float; written where first != 0, else added to
//   dkv [tokens, 2, kv_heads, head_dim] float; added to
typedef struct {
  rattn_shape shape;
  rattn_rows rows;
  int64_t tokens;
  const void *q, *kv, *dout;
  const float *lse, *delta;
  float *dq, *dkv;
  int32_t first;
} rattn_backward_args;

// Copies n rows of bytes bytes: row to[i] of dst, or row i where to is NULL, becomes row
// from[i] or i of src. Rows begin a stride apart. add != 0: their floats are added to
// those of dst. No row of dst is written twice, and dst and src do not overlap.
typedef struct {
  void *dst;
  const void *src;
  int64_t n, bytes;
  int64_t dst_stride, src_stride;  // bytes
  const int32_t *to, *from;
  int32_t add;
} rattn_move_args;

// A backend. forward, delta, backward, add, round, add_rounded, move and zero enqueue and
// return; the queue runs in order. record returns a mark of the queue's end, query tells
// whether the queue has passed a mark, sync empties it; both return the first
// error of what was enqueued. write and read copy from and to host memory after
// everything enqueued before, and return when the copy is complete.
//
// The last five are NULL in a table whose memory is the host's own. copy_out and copy_in
// start copies that run beside what is enqueued, each way in a queue of its own, and wait
// for nothing: the source must be complete, and nothing may use the destination until
// copied says that the copy is done, after which its mark (> 0) may be another's.
typedef struct {
  uint32_t version;  // RATTN_ABI_VERSION
  uint32_t size;     // sizeof(rattn_backend)
  // device: the GPU's index, ignored by the CPU. threads: CPU worker threads.
  // isa: NULL or "" for the best there is, else "amx", "avx512bf16", "avx512", "avx2",
  // "portable", "portable-bf16".
  int32_t (*open)(int32_t device, int32_t threads, const char *isa, rattn_ctx **ctx);
  void (*close)(rattn_ctx *ctx);
  // what computes, and the last error; ctx may be NULL for error (of open).
  const char *(*name)(rattn_ctx *ctx);
  const char *(*error)(rattn_ctx *ctx);
  int32_t (*alloc)(rattn_ctx *ctx, int64_t bytes, void **p);
  void (*free)(rattn_ctx *ctx, void *p);
  int32_t (*write)(rattn_ctx *ctx, void *dst, const void *src, int64_t bytes);
  int32_t (*read)(rattn_ctx *ctx, void *dst, const void *src, int64_t bytes);
  int32_t (*zero)(rattn_ctx *ctx, void *p, int64_t bytes);
  int32_t (*forward)(rattn_ctx *ctx, const rattn_forward_args *args);
  int32_t (*delta)(rattn_ctx *ctx, const rattn_delta_args *args);
  int32_t (*backward)(rattn_ctx *ctx, const rattn_backward_args *args);
  int32_t (*add)(rattn_ctx *ctx, float *dst, const float *src, int64_t n);
  // dst[i] = bf16 of src[i], to nearest, ties to even, NaN stays NaN; dst[i] += src[i].
  int32_t (*round)(rattn_ctx *ctx, uint16_t *dst, const float *src, int64_t n);
  int32_t (*add_rounded)(rattn_ctx *ctx, float *dst, const uint16_t *src, int64_t n);
  int32_t (*move)(rattn_ctx *ctx, const rattn_move_args *args);
  int32_t (*record)(rattn_ctx *ctx, int64_t *event);
  int32_t (*query)(rattn_ctx *ctx, int64_t event, int32_t *done);
  int32_t (*sync)(rattn_ctx *ctx);
  // Host memory that copies are fastest from and to.
  int32_t (*host_alloc)(rattn_ctx *ctx, int64_t bytes, void **p);
  void (*host_free)(rattn_ctx *ctx, void *p);
  int32_t (*copy_out)(rattn_ctx *ctx, void *host, const void *src, int64_t bytes, int64_t *copy);
  int32_t (*copy_in)(rattn_ctx *ctx, void *dst, const void *host, int64_t bytes, int64_t *copy);
  int32_t (*copied)(rattn_ctx *ctx, int64_t copy, int32_t *done);
} rattn_backend;

const rattn_backend *rattn_cpu(void);
// In cu/'s archive, which a build without it lacks.
const rattn_backend *rattn_cuda(void);

#ifdef __cplusplus
}
#endif
#endif
