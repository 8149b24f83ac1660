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
  // or dq (for bf16 with the sign of scale).
  void *q, *dout;
  float *acc;
  float *p, *ds;  // scores, then p; dout.v, then ds
  // Forward: running maximum and sum. Backward: lse and delta, for bf16 -lse log2 e and -|scale| delta.
  float *m, *l;
  int32_t *lo, *hi;    // [tile_rows]: visible keys of the block of keys
  int32_t *from, *to;  // [blocks]: visible keys of the current key tile
} rattn_tile;

// What a task of the pack phase works on: heads [head, last) of the block's, keys [key, key + count)
// of its key tile number tile.
typedef struct {
  int64_t head, last, tile, key, count;
} rattn_pack;

static rattn_pack begin_pack(const rattn_job *job, int64_t task) {
  rattn_pack p = {.tile = task % job->key_tiles, .head = task / job->key_tiles * job->pack_heads};
  p.key = p.tile * job->key_tile;
  p.count = job->keys - p.key < job->key_tile ? job->keys - p.key : job->key_tile;
  p.last = p.head + job->pack_heads < job->heads ? p.head + job->pack_heads : job->heads;
  for (int64_t h = p.head; h < p.last; h++) job->odd[h * job->key_tiles + p.tile] = 0;
  return p;
}

// Offset of the elements of key n of the tile, of a head. A token has its keys of all heads, then its
// values.
INLINE int64_t key_at(const rattn_job *job, const rattn_pack *p, int64_t n, int64_t head) {
  return ((job->key0 + p->key + n) * 2 * job->shape.kv_heads + job->head0 + head) * job->shape.head_dim;
}

// Brings the task's keys [n, n + count) and their values into the caches, in the order in which they
// lie in memory. The loops that turn them ask for few lines at a time, in another order.
static void fetch_keys(const rattn_job *job, const rattn_pack *p, int64_t n, int64_t count) {
  const int64_t row = job->shape.head_dim * (job->shape.dtype == RATTN_F32 ? 4 : 2);
  const char *kv = (const char *)job->kv + key_at(job, p, n, p->head) / job->shape.head_dim * row;
  for (int64_t i = 0; i < 2 * count; i++, kv += job->shape.kv_heads * row)
    for (int64_t d = 0; d < (p->last - p->head) * row; d += 64) (void)*(const volatile char *)(kv + d);
}

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
  const vf factor = v_set1(scale);
  for (; n >= NR; n -= NR, dst += NR, panels += stride) UNROLL for (int v = 0; v < NR; v += VL) {
      vf x = v_load(panels + v) * factor;
      if (add) x = x + v_load(dst + v);
      v_store(dst + v, x);
    }
  for (int64_t d = 0; d < n; d++) dst[d] = add ? dst[d] + scale * panels[d] : scale * panels[d];
}

// The reverse, for row m of the tile's acc: scale * src[0 : head_dim], or 0 where src is NULL.
static void load_sums(const rattn_job *job, const rattn_tile *t, int64_t m, const float *src, float scale) {
  const int64_t dim = job->shape.head_dim;
  const vf factor = v_set1(scale);
  float *acc = t->acc + m * NR;
  for (int64_t d = 0; d < job->width; d += NR, acc += t->panel) {
    const int64_t n = src ? dim - d < NR ? dim - d : NR : 0;
    if (n == NR) {
      UNROLL for (int v = 0; v < NR; v += VL) v_store(acc + v, v_load(src + d + v) * factor);
      continue;
    }
    memset(acc, 0, NR * sizeof(float));
    for (int64_t i = 0; i < n; i++) acc[i] = scale * src[d + i];
  }
}

// The sums of dk and dv of key tile `at`, which begin at 0: it is cleared where it is needed,
// so that it is in the caches then.
static float *begin_grads(const rattn_job *job, int64_t at) {
  const int64_t floats = 2 * job->key_tile * job->width;
  float *grads = job->grads + at * floats;
  if (!(job->odd[at] & RATTN_SUMMED)) memset(grads, 0, (size_t)floats * sizeof(float));
  job->odd[at] |= RATTN_SUMMED;
  return grads;
}

// Where the sum of dq that begins with a key tile of a cell ends. Where the block of keys is
// the first to give these rows a gradient, sums go on from what the cell before has left.
// Later blocks and calls are added to that a narrow column at a time. Either way the bits
// do not depend on where cells end.
INLINE int64_t end_of_sum(const rattn_job *job, const rattn_cell *cell, int64_t begin) {
  const int64_t tiles = job->first && job->first_block ? job->strip_tiles : job->narrow_tiles;
  const int64_t end = (begin / tiles + 1) * tiles;
  return end < cell->end ? end : cell->end;
}

static float *dq_row(const rattn_job *job, const rattn_tile *t, int64_t head, int64_t m) {
  return job->op.backward.dq + tensor_row(job, t, head, m) * job->shape.head_dim;
}

// Begins such a sum in acc, and ends it: dq = sign * acc.
static void begin_dq(const rattn_job *job, const rattn_tile *t, const rattn_cell *cell, int64_t head,
                     float sign) {
  const int go_on = job->first && job->first_block && cell->row_before > 0;
  for (int64_t m = 0; m < t->blocks * MR; m++)
    load_sums(job, t, m, go_on && t->lo[m] < t->hi[m] ? dq_row(job, t, head, m) : NULL, sign);
}
static void end_dq(const rattn_job *job, const rattn_tile *t, const rattn_cell *cell, int64_t head,
                   float sign) {
  const int write = job->first && job->first_block;
  for (int64_t m = 0; m < t->rows; m++)
    if (t->lo[m] < t->hi[m] || (write && cell->row_before == 0))
      add_panels(dq_row(job, t, head, m), t->acc + m * NR, t->panel, job->shape.head_dim, sign, !write);
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
