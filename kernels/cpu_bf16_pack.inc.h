// cpu_bf16_pack.inc.h: bf16 elements into panels, and from one form of them to another.
#ifndef RATTN_CPU_BF16_PACK_INC_H
#define RATTN_CPU_BF16_PACK_INC_H

#include "cpu_bf16_product.inc.h"

enum { EXPONENT = 0x7f80 };  // all ones in Inf and NaN

// Rows [rows][cols] of 4 bytes each to [cols][rows].
INLINE void transpose(float *dst, int64_t dst_row, const float *src, int64_t src_row, int rows, int cols) {
  for (int i = 0; i < rows; i += VL)
    for (int j = 0; j < cols; j += VL) {
      vf x[VL];
      UNROLL for (int k = 0; k < VL; k++) x[k] = v_load(src + (i + k) * src_row + j);
      v_transpose(x);
      UNROLL for (int k = 0; k < VL; k++) v_store(dst + (j + k) * dst_row + i, x[k]);
    }
}

// Rows of a panel, stride elements apart, to a panel of pairs.
static void pair_rows(uint16_t *restrict pairs, const uint16_t *restrict rows, int64_t stride) {
  for (int i = 0; i < NR; i += 2)
    for (int j = 0; j < NR; j++) {
      pairs[i * NR + 2 * j] = rows[i * stride + j];
      pairs[i * NR + 2 * j + 1] = rows[(i + 1) * stride + j];
    }
}

// Rows of a panel to its transpose, as pairs or as rows: two elements that are side by
// side stay so.
static void turn_to_pairs(uint16_t *pairs, const uint16_t *rows, int64_t stride) {
  transpose((float *)pairs, NR, (const float *)rows, stride / 2, NR, NR / 2);
}
static void turn_rows(uint16_t *turned, const uint16_t *rows) {
  uint16_t pairs[PANEL];
  pair_rows(pairs, rows, NR);
  transpose((float *)turned, NR / 2, (const float *)pairs, NR, NR / 2, NR);
}

// Takes the exponents of n elements into the largest so far, NR of them side by side.
static void take_exponents(uint16_t *restrict most, const uint16_t *restrict x, int64_t n) {
  for (; n > 0; n -= NR, x += NR) {
    if (n >= NR)
      for (int i = 0; i < NR; i++) most[i] = (x[i] & EXPONENT) > most[i] ? x[i] & EXPONENT : most[i];
    else
      for (int i = 0; i < n; i++) most[i] = (x[i] & EXPONENT) > most[i] ? x[i] & EXPONENT : most[i];
  }
}

// Whether any of them was that of an Inf or NaN.
static int any_odd(const uint16_t *most) {
  int odd = 0;
  for (int i = 0; i < NR; i++) odd |= most[i] == EXPONENT;
  return odd;
}

// Copies a row of n elements to panels that lie stride apart, 0 past n, each with sign
// turned over if sign is 0x8000.
static void load_row(uint16_t *restrict panels, int64_t stride, const uint16_t *restrict src, int64_t n,
                     uint16_t sign) {
  for (; n >= NR; n -= NR, src += NR, panels += stride)
    for (int d = 0; d < NR; d++) panels[d] = src[d] ^ sign;
  if (n == 0) return;
  memset(panels, 0, NR * sizeof *panels);
  for (int64_t d = 0; d < n; d++) panels[d] = src[d] ^ sign;
}

// Packs count <= NR keys or values, whose elements start at `at`: as columns [width / NR]
// panels of pairs along a row, as rows [width / NR] of pairs along keys, a key tile's panels
// apart. Returns whether any is Inf or NaN.
static int pack_keys(const rattn_job *job, uint16_t *workspace, int64_t at, int64_t count, uint16_t *columns,
                     uint16_t *rows) {
  const int64_t dim = job->shape.head_dim, token = 2 * job->shape.kv_heads * dim, width = job->width;
  const uint16_t *panels = (const uint16_t *)job->kv + at;
  int64_t stride = token;
  uint16_t most[NR] = {0};
  for (int64_t i = 0; i < count; i++) take_exponents(most, panels + i * token, dim);
  if (count < NR || dim < width) {  // with zeros around
    memset(workspace, 0, (size_t)(NR * width) * sizeof *workspace);
    for (int64_t i = 0; i < count; i++)
      memcpy(workspace + i * width, panels + i * token, (size_t)dim * sizeof *workspace);
    panels = workspace;
    stride = width;
  }
  for (int64_t d = 0; d < width; d += NR) {
    if (columns) turn_to_pairs(columns + d * NR, panels + d, stride);
    if (rows) pair_rows(rows + d * job->key_tile, panels + d, stride);
  }
  return any_odd(most);
}

// Task (heads, key tile) of the pack phase. Scores need keys as columns, and values
// where dout meets them; sums need values, in the backward keys, as rows.
static void pack_task(const rattn_job *job, float *workspace, int64_t task) {
  const rattn_pack p = begin_pack(job, task);
  const int backward = job->dout != NULL;
  uint16_t *space = (uint16_t *)workspace, *kt = job->kt, *vt = job->vt, *k = job->k, *v = job->v;
  for (int64_t n = 0; n < p.count; n += NR) {
    const int64_t some = p.count - n < NR ? p.count - n : NR;
    fetch_keys(job, &p, n, some);
    for (int64_t h = p.head; h < p.last; h++) {
      const int64_t tile = h * job->key_tiles + p.tile, at = key_at(job, &p, n, h);
      const int64_t columns = (tile * job->key_tile + n) * job->width;
      const int64_t rows = tile * job->key_tile * job->width + n * NR;
      int odd_k = pack_keys(job, space, at, some, kt + columns, backward ? k + rows : NULL);
      int odd_v = pack_keys(job, space, at + job->shape.kv_heads * job->shape.head_dim, some,
                            backward ? vt + columns : NULL, backward ? NULL : v + rows);
      job->odd[tile] |= (uint8_t)((odd_k ? RATTN_ODD_K : 0) | (odd_v ? RATTN_ODD_V : 0));
    }
  }
}

#endif
