// cpu_bf16_tile.inc.h: a tile of rows, cut into units of work, and the products of
// a unit.
//
// What a block of rows does not see is left out as in cpu_tile.inc.h, here in whole
// panels: inside them a row that does not see a key has p = ds = 0 there, exactly. Where
// the other factor may be Inf or NaN the products are done row by row over what each
// row sees.
#ifndef RATTN_CPU_BF16_TILE_INC_H
#define RATTN_CPU_BF16_TILE_INC_H

#include "cpu_bf16_pack.inc.h"

// A block of rows against a key tile of which it sees something.
typedef struct {
  int64_t block, row;  // its number and first row in the tile
  int64_t tile, key;   // the key tile's number and first key in the block of keys
  int64_t at;          // the key tile's number among the packed ones
  int64_t from, to;    // the keys it sees, from the tile's first on, to whole panels
  float *s, *dp;       // [MR][LD]: scores; dout.v
  uint16_t *w;         // [key_tile / NR] panels of rows: p, in the backward ds
} rattn_unit;

// What a task works with. In rows, q and dout are [width / NR][blocks of tile_rows]
// panels of rows, p and ds the scores and dout.v of two units.
typedef struct {
  rattn_tile rows;
  rattn_runs runs;
  float scale;    // |scale|; its sign is in q
  float c;        // |scale| log2 e
  uint16_t sign;  // 0x8000 where scale is negative
  int turn;       // of the two units that are in hand, the next takes these buffers
  uint16_t *w;    // [2][key_tile / NR] panels: those units' w

  // Forward: rows.l is [tile_rows][2][VL], parts of the sums of p, and of p as rounded;
  // factors [MR] for what a unit's rows have summed so far.
  float *factors;
  int rescale;  // some factor is not 1

  // Backward: the rows turned, [blocks of tile_rows][width / NR] panels of rows; p and
  // ds of the tile, [key_tile / NR][blocks] panels of pairs along rows, and the
  // blocks, from the first to the last, that see any of a panel's keys.
  uint16_t *q_turned, *dout_turned, *p_pairs, *ds_pairs;
  int32_t *first, *last;
} rattn_work;

static uint16_t *take_bf16(float *base, int64_t *used, int64_t elements) {
  return (uint16_t *)take(base, used, (elements + 1) / 2);
}

// Lays out a worker's memory; without base it only counts the floats.
static int64_t lay_out(const rattn_job *job, float *base, rattn_work *w) {
  const int64_t rows = job->tile_rows, width = job->width, nb = job->key_tile;
  rattn_tile *t = &w->rows;
  int64_t used = 0;
  t->panel = rows * NR;
  t->q = take_bf16(base, &used, rows * width);
  t->acc = take(base, &used, rows * width);
  t->p = take(base, &used, 2 * MR * LD);
  t->m = take(base, &used, rows);
  t->l = take(base, &used, job->dout ? rows : rows * 2 * VL);
  t->lo = (int32_t *)take(base, &used, rows);
  t->hi = (int32_t *)take(base, &used, rows);
  t->from = (int32_t *)take(base, &used, rows / MR);
  t->to = (int32_t *)take(base, &used, rows / MR);
  w->w = take_bf16(base, &used, 2 * MR * nb);
  if (!job->dout) {
    w->factors = take(base, &used, MR);
    return used;
  }
  t->dout = take_bf16(base, &used, rows * width);
  t->ds = take(base, &used, 2 * MR * LD);
  w->q_turned = take_bf16(base, &used, rows * width);
  w->dout_turned = take_bf16(base, &used, rows * width);
  w->p_pairs = take_bf16(base, &used, rows * nb);
  w->ds_pairs = take_bf16(base, &used, rows * nb);
  w->first = (int32_t *)take(base, &used, nb / NR);
  w->last = (int32_t *)take(base, &used, nb / NR);
  return used;
}

static int64_t workspace_floats(const rattn_job *job) {
  rattn_work w;
  // A task of pack or store works on a panel of keys of all columns.
  int64_t tile = lay_out(job, NULL, &w), panels = NR * job->width;
  return tile > panels ? tile : panels;
}

static void begin_work(const rattn_job *job, float *workspace, const rattn_cell *cell, rattn_work *w) {
  lay_out(job, workspace, w);
  begin_tile(job, &w->rows, cell->tile);
  clear_runs(&w->runs);
  // Not 0, or a score of -Inf, which stands for what is not seen, would be NaN.
  w->c = fmaxf((float)(fabs((double)job->shape.scale) * LOG2_E), 0x1p-126f);
  w->scale = fabsf(job->shape.scale);
  w->sign = job->shape.scale < 0 ? 0x8000 : 0;
  w->turn = 0;
}

// Packs the tile's rows of src [T, heads, head_dim], and turned if that is not NULL.
// Returns whether any element is Inf or NaN.
static int pack_tile(const rattn_job *job, const rattn_tile *t, int64_t head, const void *src, uint16_t sign,
                     uint16_t *rows, uint16_t *turned) {
  const int64_t dim = job->shape.head_dim, width = job->width, end = t->blocks * MR;
  uint16_t most[NR] = {0};
  for (int64_t m = 0; m < t->rows; m++) {
    const uint16_t *row = (const uint16_t *)src + tensor_row(job, t, head, m) * dim;
    take_exponents(most, row, dim);
    load_row(rows + m * NR, t->panel, row, dim, sign);
  }
  for (int64_t d = 0; d < width; d += NR) {
    uint16_t *panel = rows + d / NR * t->panel;
    memset(panel + t->rows * NR, 0, (size_t)((end - t->rows) * NR) * sizeof *panel);
    for (int64_t b = 0; b < t->blocks && turned; b++)
      turn_rows(turned + b * MR * width + d * MR, panel + b * PANEL);
  }
  return any_odd(most);
}

// Moves to the next unit before key tile end: the blocks of a key tile in turn, then
// those of the next. Returns whether there is one. To begin, tile is that before the
// first and block is past the last.
static int next_unit(const rattn_job *job, rattn_work *w, int64_t end, int64_t head, rattn_unit *u) {
  rattn_tile *t = &w->rows;
  do {
    if (++u->block < t->blocks) continue;
    do {
      if (++u->tile >= end) return 0;
      u->key = u->tile * job->key_tile;
    } while (!begin_keys(t, u->key, job->key_tile));
    u->block = 0;
  } while (t->from[u->block] >= t->to[u->block]);
  u->row = u->block * MR;
  u->at = head * job->key_tiles + u->tile;
  u->from = t->from[u->block] / NR * NR;
  u->to = (t->to[u->block] + NR - 1) / NR * NR;
  u->s = t->p + w->turn * MR * LD;
  u->dp = job->dout ? t->ds + w->turn * MR * LD : NULL;
  u->w = w->w + w->turn * MR * job->key_tile;
  w->turn ^= 1;
  return 1;
}

static rattn_unit before_first(int64_t begin, const rattn_work *w) {
  return (rattn_unit){.tile = begin - 1, .block = w->rows.blocks};
}

// c = A B: a unit's scores, of the tile's rows a and a key tile's columns b.
static void run_scores(const rattn_job *job, rattn_work *w, const rattn_unit *u, const uint16_t *a,
                       const uint16_t *b, float *c) {
  const int64_t width = job->width;
  add_run(&w->runs, (rattn_run){
                        .count = (u->to - u->from) / NR,
                        .steps = width / NR,
                        .a = a + u->block * PANEL,
                        .a_step = w->rows.panel,
                        .b = b + u->from * width,
                        .b_block = NR * width,
                        .c = c + u->from,
                        .c_row = LD,
                        .c_block = NR,
                    });
}

// As the unit's runs go on, prefetches what its block's share is of the next key tile, of
// that many forms; a unit has as many steps for each form.
static void prefetch_tile(const rattn_job *job, rattn_work *w, const rattn_unit *u, int forms,
                          const uint16_t *const tiles[]) {
  const int64_t lines = job->key_tile * job->width * (int64_t)sizeof(uint16_t) / LINE;
  const int64_t each = PANEL * (int64_t)sizeof(uint16_t) / LINE;  // lines of a step's panel
  const int64_t blocks = w->rows.blocks;
  for (int i = 0; i < forms; i++)
    w->runs.streams[i] = (rattn_stream){
        .at = (const char *)(tiles[i] + (u->at + 1) * job->key_tile * job->width) +
              u->block * lines / blocks * LINE,
        .lines = (each + forms * blocks - 1) / (forms * blocks),
        .left = lines / blocks,
    };
}

static float from_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float y;
  memcpy(&y, &bits, sizeof y);
  return y;
}

// acc += w b: a unit's p or ds, and a key tile's rows b.
static void run_rows(const rattn_job *job, rattn_work *w, const rattn_unit *u, const uint16_t *b, int odd) {
  const int64_t width = job->width, nb = job->key_tile;
  float *acc = w->rows.acc + u->block * PANEL;
  if (!odd) {
    add_run(&w->runs, (rattn_run){
                          .count = width / NR,
                          .steps = (u->to - u->from) / NR,
                          .a = u->w + u->from * MR,
                          .a_step = PANEL,
                          .b = b + u->from * NR,
                          .b_block = nb * NR,
                          .c = acc,
                          .c_row = NR,
                          .c_block = w->rows.panel,
                          .add = 1,
                          .far = job->dout != NULL,
                      });
    return;
  }
  for (int64_t r = 0; r < MR; r++) {
    int64_t lo, hi;
    if (!row_keys(&w->rows, u->row + r, u->key, nb, &lo, &hi)) continue;
    for (int64_t n = lo; n < hi; n++) {
      const float x = from_bf16(u->w[n / NR * PANEL + r * NR + n % NR]);
      for (int64_t d = 0; d < width; d++)
        acc[d / NR * w->rows.panel + r * NR + d % NR] +=
            x * from_bf16(b[d / NR * nb * NR + n / 2 * 2 * NR + d % NR * 2 + n % 2]);
    }
  }
}

// grad += b^T w for the key tile at key, turned, [key_tile / NR][width][NR]: w are pairs
// of p or ds, b the tile's rows, turned in b_turned. For a panel of keys it takes the
// blocks from the first to the last that see any of them.
static void run_keys(const rattn_job *job, rattn_work *w, int64_t key, const uint16_t *pairs,
                     const uint16_t *b, const uint16_t *b_turned, float *grad, int odd) {
  const int64_t width = job->width, nb = job->key_tile, panel = w->rows.panel;
  for (int64_t n = 0; n < nb / NR && !odd; n++) {
    const int64_t first = w->first[n], last = w->last[n];
    if (first < last)
      add_run(&w->runs, (rattn_run){
                            .count = width / NR,
                            .steps = last - first,
                            .a = b_turned + first * MR * width,
                            .a_step = MR * width,
                            .a_block = PANEL,
                            .b = pairs + n * panel + first * PANEL,
                            .c = grad + n * NR * width,
                            .c_row = NR,
                            .c_block = PANEL,
                            .add = 1,
                            .far = 1,
                        });
  }
  for (int64_t m = 0; m < w->rows.rows && odd; m++) {
    int64_t lo, hi;
    if (!row_keys(&w->rows, m, key, nb, &lo, &hi)) continue;
    for (int64_t n = lo; n < hi; n++) {
      const float x = from_bf16(pairs[n / NR * panel + m / 2 * 2 * NR + n % NR * 2 + m % 2]);
      for (int64_t d = 0; d < width; d++)
        grad[n / NR * NR * width + d * NR + n % NR] += x * from_bf16(b[d / NR * panel + m * NR + d % NR]);
    }
  }
}

#endif
