// check.h: the checks of arguments that all backends share. Each returns RATTN_OK, or
// RATTN_ERR_ARG with the text of the error in `text`. Included, not linked: a backend may
// come as an archive of its own.
#ifndef RATTN_CHECK_H
#define RATTN_CHECK_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "rattn.h"

// ring.MaxChunkTokens.
enum { RATTN_MAX_TOKENS = INT32_MAX - 1024 };

// What a backend takes, and where it wants the text of an error.
typedef struct {
  int32_t head_dim;  // the largest
  int64_t rows;      // queries of one call, at most
  int64_t tokens;    // keys of one chunk, at most
  char *text;
  size_t size;
} rattn_limits;

__attribute__((format(printf, 2, 3))) static inline int32_t rattn_refuse(const rattn_limits *l,
                                                                         const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(l->text, l->size, format, args);
  va_end(args);
  return RATTN_ERR_ARG;
}

// bytes at p and, where it is a copy, q.
static inline int32_t rattn_check_bytes(const rattn_limits *l, const void *p, const void *q, int64_t bytes) {
  if (bytes < 0) return rattn_refuse(l, "size is %lld bytes", (long long)bytes);
  if (bytes && (!p || !q)) return rattn_refuse(l, "null pointer for %lld bytes", (long long)bytes);
  return RATTN_OK;
}

static inline int32_t rattn_check_shape(const rattn_limits *l, const rattn_shape *s) {
  if (s->dtype < RATTN_F32 || s->dtype > RATTN_F16)
    return rattn_refuse(l, "dtype is %d, want 0 (f32), 1 (bf16) or 2 (f16)", s->dtype);
  if (s->heads < 1 || s->kv_heads < 1 || s->heads % s->kv_heads)
    return rattn_refuse(l, "%d heads and %d KV heads: want a multiple of at least 1", s->heads, s->kv_heads);
  if (s->head_dim < 1 || s->head_dim > l->head_dim)
    return rattn_refuse(l, "head_dim is %d, want 1 to %d", s->head_dim, l->head_dim);
  if (!isfinite(s->scale)) return rattn_refuse(l, "scale is %g", (double)s->scale);
  return RATTN_OK;
}

static inline int32_t rattn_check_null(const rattn_limits *l, const rattn_shape *s, int is_null, int64_t rows,
                                       int64_t tokens) {
  if (!is_null) return RATTN_OK;
  return rattn_refuse(l, "a tensor is null: %lld rows, %lld keys, %d/%d heads, head_dim %d", (long long)rows,
                      (long long)tokens, s->heads, s->kv_heads, s->head_dim);
}

static inline int32_t rattn_check_rows(const rattn_limits *l, const rattn_rows *r, int64_t tokens) {
  if (tokens < 0 || tokens > l->tokens)
    return rattn_refuse(l, "chunk of %lld tokens, want 0 to %lld", (long long)tokens, (long long)l->tokens);
  if (r->start < 0 || r->n < 0 || r->n > l->rows)
    return rattn_refuse(l, "%lld rows from %lld, want 0 to %lld", (long long)r->n, (long long)r->start,
                        (long long)l->rows);
  if (r->n && (!r->lo || !r->hi)) return rattn_refuse(l, "lo or hi is null for %lld rows", (long long)r->n);
  return RATTN_OK;
}

static inline int32_t rattn_check_forward(const rattn_limits *l, const rattn_forward_args *a) {
  const int32_t status = rattn_check_shape(l, &a->shape);
  if (status != RATTN_OK) return status;
  if (rattn_check_rows(l, &a->rows, a->tokens) != RATTN_OK) return RATTN_ERR_ARG;
  const int is_null = a->rows.n && (!a->q || !a->out || !a->lse || (a->tokens && !a->kv));
  return rattn_check_null(l, &a->shape, is_null, a->rows.n, a->tokens);
}

static inline int32_t rattn_check_delta(const rattn_limits *l, const rattn_delta_args *a) {
  const int32_t status = rattn_check_shape(l, &a->shape);
  if (status != RATTN_OK) return status;
  if (a->tokens < 0 || a->tokens > l->rows) return rattn_refuse(l, "%lld tokens", (long long)a->tokens);
  return rattn_check_null(l, &a->shape, a->tokens && (!a->out || !a->dout || !a->delta), a->tokens, 0);
}

static inline int32_t rattn_check_backward(const rattn_limits *l, const rattn_backward_args *a) {
  const int32_t status = rattn_check_shape(l, &a->shape);
  if (status != RATTN_OK) return status;
  if (rattn_check_rows(l, &a->rows, a->tokens) != RATTN_OK) return RATTN_ERR_ARG;
  const int is_null = a->rows.n && (!a->q || !a->dout || !a->lse || !a->delta || !a->dq ||
                                    (a->tokens && (!a->kv || !a->dkv)));
  return rattn_check_null(l, &a->shape, is_null, a->rows.n, a->tokens);
}

// n elements of dst and src, of whichever types.
static inline int32_t rattn_check_add(const rattn_limits *l, const void *dst, const void *src, int64_t n) {
  if (n < 0) return rattn_refuse(l, "%lld elements", (long long)n);
  if (n && (!dst || !src)) return rattn_refuse(l, "null pointer for %lld elements", (long long)n);
  return RATTN_OK;
}

static inline int32_t rattn_check_move(const rattn_limits *l, const rattn_move_args *a) {
  if (a->n < 0 || a->n > l->rows || a->bytes < 0)
    return rattn_refuse(l, "%lld rows of %lld bytes", (long long)a->n, (long long)a->bytes);
  if ((!a->to && a->dst_stride < a->bytes) || (!a->from && a->src_stride < a->bytes))
    return rattn_refuse(l, "rows of %lld bytes that stand %lld and %lld apart", (long long)a->bytes,
                        (long long)a->dst_stride, (long long)a->src_stride);
  if (a->add && (a->bytes % 4 || a->dst_stride % 4 || a->src_stride % 4))
    return rattn_refuse(l, "rows of %lld bytes are no floats", (long long)a->bytes);
  if (a->n && a->bytes && (!a->dst || !a->src))
    return rattn_refuse(l, "null pointer for %lld rows", (long long)a->n);
  return RATTN_OK;
}

#endif
