// cpu_pack.inc.h: elements of any dtype to floats, and into the panels that the
// products read.
#ifndef RATTN_CPU_PACK_INC_H
#define RATTN_CPU_PACK_INC_H

#include "cpu_product.inc.h"

INLINE vf load_elements(const void *src, int64_t at, int dtype) {
  if (dtype == RATTN_F32) return v_load((const float *)src + at);
  const uint16_t *p = (const uint16_t *)src + at;
  return dtype == RATTN_BF16 ? v_from_bf16(p) : v_from_f16(p);
}

// dst[0 : n] = scale * elements [at, at + n) of src as floats. Returns whether any
// is Inf or NaN, which times 0 is NaN.
INLINE int load_row_as(float *dst, const void *src, int64_t at, int64_t n, int dtype, float scale) {
  vf factor = v_set1(scale), zeros = v_set1(0);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    vf x = load_elements(src, at + i, dtype) * factor;
    v_store(dst + i, x);
    zeros = v_fma(x, v_set1(0), zeros);
  }
  if (i < n) {
    float rest[VL] = {0};
    size_t size = dtype == RATTN_F32 ? 4 : 2;
    memcpy(rest, (const char *)src + (size_t)(at + i) * size, (size_t)(n - i) * size);
    vf x = load_elements(rest, 0, dtype) * factor;
    v_store(rest, x);
    memcpy(dst + i, rest, (size_t)(n - i) * sizeof(float));
    zeros = v_fma(x, v_set1(0), zeros);
  }
  return v_sum(zeros) != 0;
}

static int load_row(float *dst, const void *src, int64_t at, int64_t n, int dtype, float scale) {
  if (dtype == RATTN_F32) return load_row_as(dst, src, at, n, RATTN_F32, scale);
  if (dtype == RATTN_BF16) return load_row_as(dst, src, at, n, RATTN_BF16, scale);
  return load_row_as(dst, src, at, n, RATTN_F16, scale);
}

// Columns: rows[count][n] to panel[n][size], rows past count are 0.
static void pack_columns(float *panel, int64_t size, const float *rows, int64_t count, int64_t n) {
  for (int64_t d = 0; d < n; d++) {
    for (int64_t r = 0; r < count; r++) panel[d * size + r] = rows[r * n + d];
    for (int64_t r = count; r < size; r++) panel[d * size + r] = 0;
  }
}

// A row[n] into panels that lie stride apart, 0 past n.
static void pack_row(float *panels, int64_t stride, const float *row, int64_t n) {
  for (; n >= NR; n -= NR, row += NR, panels += stride) memcpy(panels, row, NR * sizeof(float));
  if (n > 0) {
    memset(panels, 0, NR * sizeof(float));
    memcpy(panels, row, (size_t)n * sizeof(float));
  }
}

// Task (head, key tile) of the pack phase. A backward needs keys and values in
// both forms: as columns for scores, as rows for gradients.
static void pack_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t dim = job->shape.head_dim, kv_heads = job->shape.kv_heads;
  const int64_t head = task / job->key_tiles, tile = task % job->key_tiles;
  const int64_t key = tile * NB, count = job->keys - key < NB ? job->keys - key : NB;
  const int dtype = job->shape.dtype;
  float *kt = job->kt + task * NB * dim, *v = job->v + task * NB * job->width;
  float *vt = job->vt + task * NB * dim, *k = job->k ? job->k + task * NB * job->width : NULL;
  float *rows = workspace;  // [NR][dim]
  int odd_k = 0, odd_v = 0;
  for (int64_t j = 0; j < count; j += NR) {
    int64_t some = count - j < NR ? count - j : NR;
    // Offset of the first key's elements; a token has 2 kv_heads rows of them.
    int64_t at = ((job->key0 + key + j) * 2 * kv_heads + job->head0 + head) * dim;
    for (int64_t i = 0; i < some; i++) {
      float *row = rows + i * dim;
      odd_k |= load_row(row, job->kv, at + i * 2 * kv_heads * dim, dim, dtype, 1);
      if (k) pack_row(k + (j + i) * NR, NB * NR, row, dim);
    }
    pack_columns(kt + j * dim, NR, rows, some, dim);
    at += kv_heads * dim;
    for (int64_t i = 0; i < some; i++) {
      float *row = rows + i * dim;
      odd_v |= load_row(row, job->kv, at + i * 2 * kv_heads * dim, dim, dtype, 1);
      pack_row(v + (j + i) * NR, NB * NR, row, dim);
    }
    if (k) pack_columns(vt + j * dim, NR, rows, some, dim);
  }
  job->odd[task] = (uint8_t)((odd_k ? RATTN_ODD_K : 0) | (odd_v ? RATTN_ODD_V : 0));
}

// Task of a delta call: RATTN_DELTA_TOKENS tokens.
static void delta_task(const rattn_job *job, float *workspace, int64_t task) {
  const rattn_delta_args *a = &job->op.delta;
  const int64_t dim = a->shape.head_dim, heads = a->shape.heads;
  int64_t row = task * RATTN_DELTA_TOKENS * heads, end = row + RATTN_DELTA_TOKENS * heads;
  if (end > a->tokens * heads) end = a->tokens * heads;
  for (; row < end; row++) {
    const float *out = a->out + row * dim;
    load_row(workspace, a->dout, row * dim, dim, a->shape.dtype, 1);
    vf sum = v_set1(0);
    int64_t d = 0;
    for (; d + VL <= dim; d += VL) sum = v_fma(v_load(out + d), v_load(workspace + d), sum);
    float delta = v_sum(sum);
    for (; d < dim; d++) delta += out[d] * workspace[d];
    a->delta[row] = delta;
  }
}

// Task of an add call: RATTN_ADD_FLOATS elements.
static void add_task(const rattn_job *job, float *workspace, int64_t task) {
  (void)workspace;
  int64_t i = task * RATTN_ADD_FLOATS, end = i + RATTN_ADD_FLOATS;
  if (end > job->op.add.n) end = job->op.add.n;
  float *dst = job->op.add.dst;
  const float *src = job->op.add.src;
  for (; i < end; i++) dst[i] += src[i];
}

#endif
