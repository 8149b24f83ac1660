// cpu_tile.inc.h: a tile of rows, what its rows see, and products over what they
// see.
//
// A tile's rows go in blocks of MR. A block sees the keys [from, to) of a key
// tile: the union of its rows' intervals. Products leave out what a block does not
// see, to the panel (scores) or to the key (the others). Inside [from, to) a row
// that does not see a key has p = ds = 0 there, which adds nothing unless the other
// factor is Inf or NaN: where rows or a key tile are marked odd, products are done row by
// row over exactly what each row sees.
#ifndef RATTN_CPU_TILE_INC_H
#define RATTN_CPU_TILE_INC_H

#include "cpu_pack.inc.h"

// Lays a tile out in a worker's memory; without base it only counts the floats.
static int64_t lay_out(const rattn_job *job, float *base, rattn_tile *t) {
  const int64_t rows = job->tile_rows, width = job->width;
  int64_t used = 0;
  t->panel = rows * NR;
  t->q = take(base, &used, rows * width);
  t->acc = take(base, &used, rows * width);
  t->p = take(base, &used, rows * LD);
  t->m = take(base, &used, rows);
  t->l = take(base, &used, rows);
  t->lo = (int32_t *)take(base, &used, rows);
  t->hi = (int32_t *)take(base, &used, rows);
  t->from = (int32_t *)take(base, &used, rows);
  t->to = (int32_t *)take(base, &used, rows);
  if (job->dout) {
    t->dout = take(base, &used, rows * width);
    t->ds = take(base, &used, rows * LD);
  }
  return used;
}

static int64_t workspace_floats(const rattn_job *job) {
  rattn_tile t;
  if (job->op.kind != RATTN_OP_FORWARD && job->op.kind != RATTN_OP_BACKWARD)
    return job->shape.head_dim;  // a row of delta
  return lay_out(job, NULL, &t);
}

// Packs the tile's rows of src [T, heads, head_dim], times scale, as panels. Returns
// whether any element is Inf or NaN.
static int pack_tile(const rattn_job *job, rattn_tile *t, int64_t head, const void *src, float scale,
                     float *panels) {
  const int64_t dim = job->shape.head_dim, end = t->blocks * MR;
  int odd = 0;
  for (int64_t m = 0; m < t->rows; m++)
    odd |= load_panels(panels + m * NR, t->panel, src, tensor_row(job, t, head, m) * dim, dim,
                       job->shape.dtype, scale);
  for (int64_t d = 0; d < job->width; d += NR, panels += t->panel)
    memset(panels + t->rows * NR, 0, (size_t)((end - t->rows) * NR) * sizeof(float));
  return odd;
}

// s[rows][LD] = A B over what the blocks see, to whole or half panels: scores of the
// tile's rows a against a key tile's columns b. Long rows go in pieces, so that a
// panel of b stays in the first-level cache for all blocks. after is what is read next.
static void all_scores(const rattn_job *job, const rattn_tile *t, const float *a, const float *b, float *s,
                       const float *after) {
  const int64_t dim = job->shape.head_dim;
  for (int64_t d = 0; d < dim; d += DEPTH) {
    const int64_t depth = dim - d < DEPTH ? dim - d : DEPTH;
    for (int64_t n = 0; n < job->key_tile; n += NR) {
      const float *next = after;
      if (n + NR < job->key_tile)
        next = b + (n + NR) * dim + d * NR;
      else if (d + DEPTH < dim)
        next = b + (d + DEPTH) * NR;
      for (int64_t i = 0; i < t->blocks; i++, next += depth / NR * LINES * 16) {
        if (t->from[i] >= n + NR || t->to[i] <= n) continue;
        const float *ai = a + d / NR * t->panel + i * MR * NR, *bi = b + n * dim + d * NR;
        float *si = s + i * MR * LD + n;
        if (t->to[i] <= n + NR / 2)
          product_scores_half(depth, ai, t->panel, bi, si, d > 0, next);
        else if (t->from[i] >= n + NR / 2)
          product_scores_half(depth, ai, t->panel, bi + NR / 2, si + NR / 2, d > 0, next);
        else
          product_scores(depth, ai, t->panel, bi, si, d > 0, next);
      }
    }
  }
}

// acc += w b: w a score tile, b a key tile's rows in panels. after is what is read next.
static void add_over_keys(const rattn_job *job, rattn_tile *t, const float *w, const float *b, int64_t key,
                          int odd, const float *after) {
  const int64_t nb = job->key_tile, width = job->width;
  for (int64_t m = 0; m < t->rows && odd; m++) {
    int64_t lo, hi;
    if (!row_keys(t, m, key, nb, &lo, &hi)) continue;
    for (int64_t n = lo; n < hi; n++)
      add_row(w[m * LD + n], b + n * NR, nb * NR, t->acc + m * NR, t->panel, width);
  }
  if (odd) return;
  float *acc = t->acc;
  for (int64_t d = 0; d < width; d += NR, b += nb * NR, acc += t->panel) {
    const float *next = d + NR < width ? b + nb * NR : after;
    for (int64_t i = 0; i < t->blocks; i++, next += nb / NR * LINES * 16)
      if (t->from[i] < t->to[i])
        product_rows(t->to[i] - t->from[i], w + i * MR * LD + t->from[i], b + t->from[i] * NR,
                     acc + i * MR * NR, next);
  }
}

// grad += w^T b: w a score tile, b the tile's rows and grad a key tile's, in panels.
// For MR keys at a time it takes the blocks from the first to the last that see any
// of them; w is 0 where a row sees nothing. Keys go in groups whose columns of w
// stay in the first-level cache for all panels.
ALIGNED static void add_over_rows(const rattn_job *job, const rattn_tile *t, const float *w, const float *b,
                                  int64_t key, float *grad, int odd) {
  enum { GROUP = 48 / MR * MR };
  const int64_t nb = job->key_tile, width = job->width;
  for (int64_t m = 0; m < t->rows && odd; m++) {
    int64_t lo, hi;
    if (!row_keys(t, m, key, nb, &lo, &hi)) continue;
    for (int64_t n = lo; n < hi; n++)
      add_row(w[m * LD + n], b + m * NR, t->panel, grad + n * NR, nb * NR, width);
  }
  if (odd) return;
  for (int64_t g = 0; g < nb; g += GROUP) {
    int64_t first[GROUP / MR], last[GROUP / MR];
    for (int64_t i = 0; i < GROUP / MR; i++) {
      const int64_t n = g + i * MR;
      first[i] = 0, last[i] = t->blocks;
      while (first[i] < last[i] && !(t->from[first[i]] < n + MR && t->to[first[i]] > n)) first[i]++;
      while (first[i] < last[i] && !(t->from[last[i] - 1] < n + MR && t->to[last[i] - 1] > n)) last[i]--;
    }
    for (int64_t d = 0; d < width; d += NR)
      for (int64_t i = 0; i < GROUP / MR; i++)
        if (first[i] < last[i])
          product_keys((last[i] - first[i]) * MR, w + first[i] * MR * LD + g + i * MR,
                       b + d / NR * t->panel + first[i] * MR * NR, grad + d * nb + (g + i * MR) * NR);
  }
}

#endif
