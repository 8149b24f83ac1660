// call.h: what host code and kernels agree on.
#ifndef RATTN_CALL_H
#define RATTN_CALL_H

#include <cuda_runtime.h>
#include <stdint.h>

namespace rattn {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a kernel computes. A block of threads owns a stationary tile (query rows, or
// keys) and goes over a stream (keys, or the query rows of all heads of the group):
//
//   kind     stationary  scores             stream, accumulated
//   FORWARD  q           s = q k^T          out += p v
//   D_Q      q, dout     s, dp = dout v^T   dq  += ds k
//   D_V      k           s^T = k q^T        dv  += p^T dout
//   D_K      k, v        s^T, dp^T          dk  += ds^T q
//   D_KV     k, v        s^T, dp^T          dv  += p^T dout, dk += ds^T q
enum Kind { FORWARD, D_Q, D_V, D_K, D_KV };

// What a tile of query rows sees: keys from the least lo to the greatest hi of rows that
// see any; all rows see the keys from the greatest lo to the least hi.
struct __align__(16) Seen {
  int32_t lo, hi, all_lo, all_hi;
};

// Query row tiles [begin, end) see a tile of keys.
struct Seers {
  int32_t begin, end;
};

// What is kept of two neighbouring tiles of 64 query rows, for the tiles of keys [lo, hi) that
// either sees, begins behind what is kept for `at` tiles of keys of the pairs before.
struct __align__(16) Kept {
  int64_t at;
  int32_t lo, hi;
};

// Arguments of a kernel, of rows query rows against tokens keys. Strides and offsets
// are in elements; pointers to query rows are to the first row of the call. dim is
// head_dim, stride that of q, k, v and dout: dim rounded up so that rows start on 16
// bytes, with zeros behind dim.
struct Call {
  const void *q, *k, *v, *dout;  // rows: token * q_token + head * stride; keys alike
  float *out, *dq, *dkv;         // as in rattn.h
  float *lse;                    // [rows, heads]
  const float *delta;            // [rows, heads]
  const int32_t *lo, *hi;        // [rows]
  const Seen *seen;              // [tiles of query rows]
  const Seers *seers;            // [tiles of keys], where keys are stationary
  const float *reach;            // f16: greatest |dout|, |v| and delta of a row
  int64_t q_token, kv_token;     // elements from a token to the next
  int32_t rows, tokens, tiles;   // tiles: stationary ones
  int32_t span;                  // of rattn_rows, at most tokens
  int64_t touched;               // tiles of rattn_rows, or what it is at most
  int32_t heads, kv_heads, dim, stride;
  float scale;     // of q.k
  float exponent;  // |scale| log2 e, > 0: scores to powers of 2
  float gradient;  // of dq: scale, or its negative where q was negated
  int32_t first;
};

// A kernel and the tiles that it works in.
struct Kernel {
  Kind kind;
  int32_t dtype, dim;          // head_dim up to dim
  int32_t stationary, stream;  // rows of a tile
  int32_t threads, shared_bytes;
  const void *entry;
  const char *name;
};

// Kernels of one dtype for head sizes up to one, in no order; count is set.
typedef const Kernel *Kernels(int *count);
Kernels kernels_f32, kernels_bf16_64, kernels_bf16_128, kernels_bf16_256, kernels_bf16_512, kernels_bf16_576,
    kernels_bf16_0, kernels_f16_64, kernels_f16_128, kernels_f16_256, kernels_f16_512, kernels_f16_576,
    kernels_f16_0;

}  // namespace rattn

#endif
