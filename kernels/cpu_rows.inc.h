// cpu_rows.inc.h: what the bodies of kernels, cpu_tile.inc.h for f32 and
// cpu_bf16_tile.inc.h for bf16, have in common: a tile of rows and what its rows see.
#ifndef RATTN_CPU_ROWS_INC_H
#define RATTN_CPU_ROWS_INC_H

// Accumulators are in registers only if every loop over them is unrolled.
#define UNROLL _Pragma("GCC unroll 32")

typedef struct {
  int64_t row0, rows, blocks;  // rows [row0, row0 + rows) of the job, in blocks of MR
  int64_t panel;               // elements of a panel of the tile: tile_rows * NR
  int odd_q, odd_dout;         // some row holds Inf or NaN
  // The tile's rows as the products read them: q, dout (with scale or its sign taken
  // in, as a body likes), and as panels [width / NR][tile_rows][NR] the running output,
  // or dq / scale.
  void *q, *dout;
  float *acc;
  float *p, *ds;       // scores, then p; dout.v, then ds
  float *m, *l;        // forward: running maximum and sum; backward: lse (for bf16 -lse log2 e) and delta
  int32_t *lo, *hi;    // [tile_rows]: visible keys of the block of keys
  int32_t *from, *to;  // [blocks]: visible keys of the current key tile
} rattn_tile;

static float *take(float *base, int64_t *used, int64_t floats) {
  float *p = base ? base + *used : NULL;
  *used += (floats + 15) / 16 * 16;
  return p;
}

// Row m of the tile as a row (token, head) of the rank's tensors [T, heads].
INLINE int64_t tensor_row(const rattn_job *job, const rattn_tile *t, int64_t head, int64_t m) {
  int64_t i = t->row0 + m;
  int64_t token = job->rows.start + i / job->group;
  return token * job->shape.heads + (job->head0 + head) * job->group + i % job->group;
}

// Starts tile number index: finds what its rows see of the block of keys. Rows
// past the end see nothing.
static void begin_tile(const rattn_job *job, rattn_tile *t, int64_t index) {
  t->row0 = index * job->tile_rows;
  t->rows = job->row_count - t->row0 < job->tile_rows ? job->row_count - t->row0 : job->tile_rows;
  t->blocks = (t->rows + MR - 1) / MR;
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
  }
}

// What row m sees of keys [key, key + nb) of the block: keys [*lo, *hi) of those.
INLINE int row_keys(const rattn_tile *t, int64_t m, int64_t key, int64_t nb, int64_t *lo, int64_t *hi) {
  *lo = t->lo[m] > key ? t->lo[m] - key : 0;
  *hi = t->hi[m] < key + nb ? t->hi[m] - key : nb;
  return *lo < *hi;
}

// Of a row's scores of keys [from, to), at s, those that it does not see, all but [lo, hi),
// become -Inf; from is a multiple of VL.
static void mask_scores(float *s, int64_t from, int64_t to, int64_t lo, int64_t hi) {
  for (int64_t n = from; n < lo; n += VL)
    v_store(s + n, v_select(v_load(s + n), v_set1(-INFINITY), lo - n, hi - n));
  for (int64_t n = hi / VL * VL; n < to; n += VL)
    v_store(s + n, v_select(v_load(s + n), v_set1(-INFINITY), lo - n, hi - n));
}

// Finds what the blocks see of the key tile at key. Returns whether any sees any.
static int begin_keys(rattn_tile *t, int64_t key, int64_t nb) {
  int any = 0;
  for (int64_t b = 0; b < t->blocks; b++) {
    int64_t from = nb, to = 0, lo, hi;
    for (int64_t m = b * MR; m < (b + 1) * MR; m++) {
      if (!row_keys(t, m, key, nb, &lo, &hi)) continue;
      if (lo < from) from = lo;
      if (hi > to) to = hi;
    }
    t->from[b] = (int32_t)(from < to ? from : 0);
    t->to[b] = (int32_t)to;
    any |= from < to;
  }
  return any;
}

// dst[0 : n] = scale * a row of panels that lie stride apart; with add it is added.
static void add_panels(float *dst, const float *panels, int64_t stride, int64_t n, float scale, int add) {
  for (; n > 0; n -= NR, dst += NR, panels += stride)
    for (int64_t d = 0; d < (n < NR ? n : NR); d++)
      dst[d] = add ? dst[d] + scale * panels[d] : scale * panels[d];
}

// Transposes VL vectors in place: each round puts the first half of the rows between
// those of the second.
INLINE void v_transpose(vf x[VL]) {
  UNROLL for (int n = 1; n < VL; n *= 2) {
    vf y[VL];
    UNROLL for (int i = 0; i < VL / 2; i++) {
      y[2 * i] = v_zip_low(x[i], x[i + VL / 2]);
      y[2 * i + 1] = v_zip_high(x[i], x[i + VL / 2]);
    }
    UNROLL for (int i = 0; i < VL; i++) x[i] = y[i];
  }
}

#endif
