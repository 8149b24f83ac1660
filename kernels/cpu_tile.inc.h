// cpu_tile.inc.h: a tile of rows, what its rows see, and products over what they
// see.
//
// A tile's rows go in blocks of MR. A block sees the keys [from, to) of a key
// tile: the union of its rows' intervals. Products leave out what a block does not
// see, to the panel (scores) or to the key (the others). Inside [from, to) a row
// that does not see a key has p = ds = 0 there, which adds nothing unless the other
// factor is Inf or NaN; a block with such rows is ragged, and where it meets a tile
// marked odd its products are done row by row over exactly what each row sees.
#ifndef RATTN_CPU_TILE_INC_H
#define RATTN_CPU_TILE_INC_H

#include "cpu_pack.inc.h"

typedef struct {
  int64_t row0, rows, blocks;   // rows [row0, row0 + rows) of the job, in blocks of MR
  int64_t key_tile, key_tiles;  // key tiles [key_tile, key_tiles) hold all that the rows see
  int odd_q, odd_dout;          // some row holds Inf or NaN
  float *q, *dout;              // [blocks][head_dim][MR]: scale * q, and dout
  float *q_rows, *dout_rows;    // [width / NR][tile_rows][NR]: the same as panels
  float *acc;                   // [tile_rows][width]: the running output, or dq / scale
  float *p, *ds;                // [tile_rows][LD]: scores, then p; dout.v, then ds
  float *row;                   // [max(MR, NR)][head_dim]: rows being packed
  float *m, *l;                 // [tile_rows] forward: running maximum and sum; backward: lse and delta
  int32_t *lo, *hi;             // [tile_rows]: visible keys of the block of keys
  int32_t *from, *to;           // [blocks]: visible keys of the current key tile
} rattn_tile;

static float *take(float *base, int64_t *used, int64_t floats) {
  float *p = base ? base + *used : NULL;
  *used += (floats + 15) / 16 * 16;
  return p;
}

// Lays a tile out in a worker's memory; without base it only counts the floats.
static int64_t lay_out(const rattn_job *job, float *base, rattn_tile *t) {
  const int64_t dim = job->shape.head_dim, rows = job->tile_rows, width = job->width;
  int64_t used = 0;
  t->q = take(base, &used, rows * dim);
  t->acc = take(base, &used, rows * width);
  t->p = take(base, &used, rows * LD);
  t->row = take(base, &used, (MR > NR ? MR : NR) * dim);
  t->m = take(base, &used, rows);
  t->l = take(base, &used, rows);
  t->lo = (int32_t *)take(base, &used, rows);
  t->hi = (int32_t *)take(base, &used, rows);
  t->from = (int32_t *)take(base, &used, rows);
  t->to = (int32_t *)take(base, &used, rows);
  if (job->dout) {
    t->dout = take(base, &used, rows * dim);
    t->q_rows = take(base, &used, rows * width);
    t->dout_rows = take(base, &used, rows * width);
    t->ds = take(base, &used, rows * LD);
  }
  return used;
}

static int64_t workspace_floats(const rattn_job *job) {
  rattn_tile t;
  if (job->op.kind != RATTN_OP_FORWARD && job->op.kind != RATTN_OP_BACKWARD)
    return job->shape.head_dim;  // a row of delta
  int64_t tile = lay_out(job, NULL, &t), pack = NR * (int64_t)job->shape.head_dim;
  return tile > pack ? tile : pack;
}

// Row m of the tile as a row (token, head) of the rank's tensors [T, heads].
INLINE int64_t tensor_row(const rattn_job *job, const rattn_tile *t, int64_t head, int64_t m) {
  int64_t i = t->row0 + m;
  int64_t token = job->rows.start + i / job->group;
  return token * job->shape.heads + (job->head0 + head) * job->group + i % job->group;
}

// Starts tile number index: finds what its rows see of the block of keys. Rows
// past the end see nothing. Returns whether any row sees any key.
static int begin_tile(const rattn_job *job, rattn_tile *t, int64_t index) {
  t->row0 = index * job->tile_rows;
  t->rows = job->row_count - t->row0 < job->tile_rows ? job->row_count - t->row0 : job->tile_rows;
  t->blocks = (t->rows + MR - 1) / MR;
  int64_t first = INT64_MAX, last = 0;
  for (int64_t m = 0; m < t->blocks * MR; m++) {
    int64_t lo = 0, hi = 0;
    if (m < t->rows) {
      int64_t i = (t->row0 + m) / job->group;
      lo = job->rows.lo[i] - job->key0;
      hi = job->rows.hi[i] - job->key0;
      if (lo < 0) lo = 0;
      if (hi > job->keys) hi = job->keys;
    }
    if (lo >= hi) lo = hi = 0;
    t->lo[m] = (int32_t)lo;
    t->hi[m] = (int32_t)hi;
    if (lo < hi && lo < first) first = lo;
    if (hi > last) last = hi;
  }
  t->key_tile = last ? first / NB : 0;
  t->key_tiles = (last + NB - 1) / NB;
  return last > 0;
}

// What row m sees of the key tile at key: keys [*lo, *hi) of the tile.
INLINE int row_keys(const rattn_tile *t, int64_t m, int64_t key, int64_t *lo, int64_t *hi) {
  *lo = t->lo[m] > key ? t->lo[m] - key : 0;
  *hi = t->hi[m] < key + NB ? t->hi[m] - key : NB;
  return *lo < *hi;
}

// Finds what the blocks see of the key tile at key. Returns whether any sees any.
static int begin_keys(rattn_tile *t, int64_t key) {
  int any = 0;
  for (int64_t b = 0; b < t->blocks; b++) {
    int64_t from = NB, to = 0, lo, hi;
    for (int64_t m = b * MR; m < (b + 1) * MR; m++) {
      if (!row_keys(t, m, key, &lo, &hi)) continue;
      if (lo < from) from = lo;
      if (hi > to) to = hi;
    }
    t->from[b] = (int32_t)(from < to ? from : 0);
    t->to[b] = (int32_t)to;
    any |= from < to;
  }
  return any;
}

// Packs the tile's rows of src [T, heads, head_dim], times scale, as columns and,
// with panels, as rows. Returns whether any element is Inf or NaN.
static int pack_tile(const rattn_job *job, rattn_tile *t, int64_t head, const void *src, float scale,
                     float *columns, float *panels) {
  const int64_t dim = job->shape.head_dim;
  int odd = 0;
  for (int64_t m = 0; m < t->blocks * MR; m += MR) {
    int64_t some = t->rows - m < MR ? t->rows - m : MR;
    for (int64_t r = 0; r < some; r++) {
      int64_t at = tensor_row(job, t, head, m + r) * dim;
      odd |= load_row(t->row + r * dim, src, at, dim, job->shape.dtype, scale);
    }
    if (some < MR) memset(t->row + some * dim, 0, (size_t)((MR - some) * dim) * sizeof(float));
    pack_columns(columns + m * dim, MR, t->row, MR, dim);
    for (int64_t r = 0; panels && r < MR; r++)
      pack_row(panels + (m + r) * NR, job->tile_rows * NR, t->row + r * dim, dim);
  }
  return odd;
}

// s[rows][LD] = A B over what the blocks see, to whole panels: scores of the
// tile's columns a against a key tile's columns b.
static void all_scores(const rattn_tile *t, const float *a, const float *b, int64_t dim, float *s) {
  for (int64_t n = 0; n < NB; n += NR)
    for (int64_t i = 0; i < t->blocks; i++)
      if (t->from[i] < n + NR && t->to[i] > n)
        product_scores(dim, a + i * MR * dim, b + n * dim, s + i * MR * LD + n);
}

// acc[rows][width] += w b: w a score tile, b a key tile's rows in panels.
static void add_over_keys(rattn_tile *t, const float *w, const float *b, int64_t key, int64_t width,
                          int odd) {
  for (int64_t d = 0; d < width && !odd; d += NR)
    for (int64_t i = 0; i < t->blocks; i++)
      if (t->from[i] < t->to[i])
        product_rows(t->to[i] - t->from[i], w + i * MR * LD + t->from[i], b + d * NB + t->from[i] * NR,
                     t->acc + i * MR * width + d, width);
  for (int64_t m = 0; m < t->rows && odd; m++) {
    int64_t lo, hi;
    if (!row_keys(t, m, key, &lo, &hi)) continue;
    for (int64_t n = lo; n < hi; n++) add_row(w[m * LD + n], b + n * NR, NB * NR, t->acc + m * width, width);
  }
}

// grad[NB][width] += w^T b: w a score tile, b the tile's rows in panels. For MR keys
// at a time it takes the blocks from the first to the last that see any of them;
// w is 0 where a row sees nothing.
static void add_over_rows(const rattn_job *job, const rattn_tile *t, const float *w, const float *b,
                          int64_t key, float *grad, int odd) {
  const int64_t width = job->width;
  for (int64_t m = 0; m < t->rows && odd; m++) {
    int64_t lo, hi;
    if (!row_keys(t, m, key, &lo, &hi)) continue;
    for (int64_t n = lo; n < hi; n++)
      add_row(w[m * LD + n], b + m * NR, job->tile_rows * NR, grad + n * width, width);
  }
  if (odd) return;
  for (int64_t n = 0; n < NB; n += MR) {
    int64_t first = 0, last = t->blocks;
    while (first < last && !(t->from[first] < n + MR && t->to[first] > n)) first++;
    while (first < last && !(t->from[last - 1] < n + MR && t->to[last - 1] > n)) last--;
    if (first == last) continue;
    for (int64_t d = 0; d < width; d += NR)
      product_keys((last - first) * MR, w + first * MR * LD + n, b + d * job->tile_rows + first * MR * NR,
                   grad + n * width + d, width);
  }
}

#endif
