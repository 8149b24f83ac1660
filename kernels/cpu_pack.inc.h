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

// The same into panels of NR that lie stride apart, 0 past n.
INLINE int load_panels_as(float *panels, int64_t stride, const void *src, int64_t at, int64_t n, int dtype,
                          float scale) {
  vf factor = v_set1(scale), zeros = v_set1(0);
  int64_t d = 0;
  for (; d + NR <= n; d += NR, panels += stride) UNROLL for (int v = 0; v < NR; v += VL) {
      vf x = load_elements(src, at + d + v, dtype) * factor;
      v_store(panels + v, x);
      zeros = v_fma(x, v_set1(0), zeros);
    }
  int odd = v_sum(zeros) != 0;
  if (d == n) return odd;
  memset(panels, 0, NR * sizeof(float));
  return odd | load_row_as(panels, src, at + d, n - d, dtype, scale);
}

static int load_panels(float *panels, int64_t stride, const void *src, int64_t at, int64_t n, int dtype,
                       float scale) {
  if (dtype == RATTN_F32) return load_panels_as(panels, stride, src, at, n, RATTN_F32, scale);
  if (dtype == RATTN_BF16) return load_panels_as(panels, stride, src, at, n, RATTN_BF16, scale);
  return load_panels_as(panels, stride, src, at, n, RATTN_F16, scale);
}

// Packs count <= NR rows of n elements, which start at `at` and lie stride apart, as
// columns [n][NR], 0 past count. Returns whether any element is Inf or NaN.
INLINE int load_columns_as(float *panel, const void *src, int64_t at, int64_t stride, int64_t count,
                           int64_t n, int dtype) {
  vf zeros = v_set1(0);
  int64_t d = 0;
  for (; d + VL <= n; d += VL)
    for (int64_t j = 0; j < NR; j += VL) {
      vf x[VL];
      if (j + VL <= count)
        UNROLL for (int i = 0; i < VL; i++) x[i] = load_elements(src, at + (j + i) * stride + d, dtype);
      else
        UNROLL for (int i = 0; i < VL; i++) x[i] =
            j + i < count ? load_elements(src, at + (j + i) * stride + d, dtype) : v_set1(0);
      UNROLL for (int i = 0; i < VL; i++) zeros = v_fma(x[i], v_set1(0), zeros);
      v_transpose(x);
      UNROLL for (int i = 0; i < VL; i++) v_store(panel + (d + i) * NR + j, x[i]);
    }
  int odd = v_sum(zeros) != 0;
  if (d == n) return odd;
  memset(panel + d * NR, 0, (size_t)((n - d) * NR) * sizeof(float));
  for (int64_t j = 0; j < count; j++) {
    float rest[VL];
    odd |= load_row_as(rest, src, at + j * stride + d, n - d, dtype, 1);
    for (int64_t i = d; i < n; i++) panel[i * NR + j] = rest[i - d];
  }
  return odd;
}

static int load_columns(float *panel, const void *src, int64_t at, int64_t stride, int64_t count, int64_t n,
                        int dtype) {
  if (dtype == RATTN_F32) return load_columns_as(panel, src, at, stride, count, n, RATTN_F32);
  if (dtype == RATTN_BF16) return load_columns_as(panel, src, at, stride, count, n, RATTN_BF16);
  return load_columns_as(panel, src, at, stride, count, n, RATTN_F16);
}

// Packs keys [n, n + count) of key tile `tile` of a head and their values, whose elements start at k
// and v. Scores need keys as columns, and values where dout meets them; sums need values, in
// the backward keys, as rows.
static void pack_panel(const rattn_job *job, int64_t tile, int64_t n, int64_t count, int64_t k, int64_t v) {
  const int64_t dim = job->shape.head_dim, token = 2 * job->shape.kv_heads * dim, nb = job->key_tile;
  const int64_t columns = (tile * nb + n) * dim, rows = tile * nb * job->width + n * NR;
  const int dtype = job->shape.dtype;
  int odd_k = load_columns((float *)job->kt + columns, job->kv, k, token, count, dim, dtype), odd_v = 0;
  if (job->dout) odd_v = load_columns((float *)job->vt + columns, job->kv, v, token, count, dim, dtype);
  for (int64_t i = 0; i < count; i++) {
    if (job->dout)
      load_panels((float *)job->k + rows + i * NR, nb * NR, job->kv, k + i * token, dim, dtype,
                  job->shape.scale);
    else
      odd_v |= load_panels((float *)job->v + rows + i * NR, nb * NR, job->kv, v + i * token, dim, dtype, 1);
  }
  job->odd[tile] |= (uint8_t)((odd_k ? RATTN_ODD_K : 0) | (odd_v ? RATTN_ODD_V : 0));
}

// Task (heads, key tile) of the pack phase.
static void pack_task(const rattn_job *job, float *workspace, int64_t task) {
  (void)workspace;
  const rattn_pack p = begin_pack(job, task);
  for (int64_t n = 0; n < p.count; n += NR) {
    const int64_t some = p.count - n < NR ? p.count - n : NR;
    fetch_keys(job, &p, n, some);
    for (int64_t h = p.head; h < p.last; h++) {
      const int64_t k = key_at(job, &p, n, h), v = k + job->shape.kv_heads * job->shape.head_dim;
      pack_panel(job, h * job->key_tiles + p.tile, n, some, k, v);
    }
  }
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
