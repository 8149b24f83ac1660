// cpu_bf16_backward.inc.h: gradients of a tile of rows against key tiles, as
// cpu_backward.inc.h, with p and ds rounded to bf16 before their products. |scale| is
// in ds, its sign in q, and in dq as it is loaded and stored: q and k stay as they are.
//
// dk and dv are summed turned, [key_tile / NR][width][NR]: so their products have rows
// of dout and q, turned once for all keys, on the left, and p and ds, which are made as
// pairs along rows, on the right.
#ifndef RATTN_CPU_BF16_BACKWARD_INC_H
#define RATTN_CPU_BF16_BACKWARD_INC_H

#include "cpu_bf16_tile.inc.h"

// p and ds of two rows, r and the next, against keys [n, n + NR) of the key tile. Where
// a row does not see all of them both are 0 for those that it does not see, of keys
// [lo[i], hi[i]) that row i sees.
INLINE void gradient_panel(const rattn_work *w, const rattn_unit *u, int64_t r, int64_t n, int edge,
                           const int64_t lo[2], const int64_t hi[2]) {
  const rattn_tile *t = &w->rows;
  const int64_t m = u->row + r, at = n / NR * t->panel + m * NR;
  const float *s = u->s + r * LD + n, *dp = u->dp + r * LD + n;
  const vf c = v_set1(w->c), scale = v_set1(w->scale);
  UNROLL for (int v = 0; v < NV; v += 2) {
    vf p[2][2], ds[2][2];
    UNROLL for (int i = 0; i < 2; i++) UNROLL for (int j = 0; j < 2; j++) {
      const int64_t x = (v + j) * VL;
      // Never above 1, whatever large scores lose in rounding.
      const vf e = v_fma(v_load(s + i * LD + x), c, v_set1(t->m[m + i]));
      p[i][j] = v_exp2(-v_max(v_set1(0), -e));
      ds[i][j] = p[i][j] * v_fma(v_load(dp + i * LD + x), scale, v_set1(t->l[m + i]));
      if (!edge) continue;
      p[i][j] = v_select(p[i][j], v_set1(0), lo[i] - n - x, hi[i] - n - x);
      ds[i][j] = v_select(ds[i][j], v_set1(0), lo[i] - n - x, hi[i] - n - x);
    }
    UNROLL for (int i = 0; i < 2; i++)
        v_store_bf16(u->w + n * MR + (r + i) * NR + v * VL, ds[i][0], ds[i][1]);
    UNROLL for (int j = 0; j < 2; j++) {
      v_store_pairs(w->p_pairs + at + 2 * (v + j) * VL, p[0][j], p[1][j]);
      v_store_pairs(w->ds_pairs + at + 2 * (v + j) * VL, ds[0][j], ds[1][j]);
    }
  }
}

// Turns the unit's scores and dout.v into p and ds.
static void gradient_unit(const rattn_job *job, rattn_work *w, const rattn_unit *u) {
  for (int64_t r = 0; r < MR; r += 2) {
    int64_t lo[2], hi[2];
    for (int64_t i = 0; i < 2; i++)
      if (!row_keys(&w->rows, u->row + r + i, u->key, job->key_tile, &lo[i], &hi[i])) lo[i] = hi[i] = 0;
    for (int64_t n = u->from; n < u->to; n += NR) {
      const int whole = lo[0] <= n && lo[1] <= n && hi[0] >= n + NR && hi[1] >= n + NR;
      if (whole)
        gradient_panel(w, u, r, n, 0, lo, hi);
      else
        gradient_panel(w, u, r, n, 1, lo, hi);
    }
    keep_pace(&w->runs, (int)r + 2, MR);
  }
}

// Finds the blocks that see any of each panel of the key tile, from the first to the
// last, and clears p and ds of those between that do not.
static void begin_pairs(const rattn_job *job, rattn_work *w) {
  const rattn_tile *t = &w->rows;
  for (int64_t n = 0; n < job->key_tile; n += NR) {
    int32_t first = 0, last = (int32_t)t->blocks;
    while (first < last && !(t->from[first] < n + NR && t->to[first] > n)) first++;
    while (first < last && !(t->from[last - 1] < n + NR && t->to[last - 1] > n)) last--;
    w->first[n / NR] = first;
    w->last[n / NR] = last;
    for (int64_t b = first; b < last; b++) {
      if (t->from[b] < n + NR && t->to[b] > n) continue;
      const int64_t at = n / NR * t->panel + b * PANEL;
      memset(w->p_pairs + at, 0, PANEL * sizeof(uint16_t));
      memset(w->ds_pairs + at, 0, PANEL * sizeof(uint16_t));
    }
  }
}

// Loads the tile's rows, with their lse and delta.
static void load_tile(const rattn_job *job, rattn_work *w, int64_t head) {
  const rattn_backward_args *a = &job->op.backward;
  rattn_tile *t = &w->rows;
  t->odd_q = pack_tile(job, t, head, job->q, w->sign, t->q, w->q_turned);
  t->odd_dout = pack_tile(job, t, head, job->dout, 0, t->dout, w->dout_turned);
  for (int64_t m = 0; m < t->blocks * MR; m++) {
    const int64_t row = m < t->rows ? tensor_row(job, t, head, m) : 0;
    const float lse = m < t->rows ? a->lse[row] : -INFINITY;
    t->m[m] = (float)(lse * -LOG2_E);
    t->l[m] = m < t->rows ? a->delta[row] * -w->scale : 0;
    // A row that saw nothing has no gradient, whatever is said of it here.
    if (lse == -INFINITY) t->lo[m] = t->hi[m] = 0;
  }
}

// Adds key tiles [begin, end) of a cell to dq of the tile's rows and to dk, dv.
static void add_gradients(const rattn_job *job, rattn_work *w, const rattn_cell *cell, int64_t head,
                          int64_t begin, int64_t end) {
  const int64_t tile = job->key_tile * job->width;
  const float sign = job->shape.scale < 0 ? -1 : 1;
  const uint16_t *kt = job->kt, *vt = job->vt, *k = job->k;
  rattn_tile *t = &w->rows;
  begin_dq(job, t, cell, head, sign);
  rattn_unit u = before_first(begin, w), before = u, after;
  if (next_unit(job, w, end, head, &u)) {
    run_scores(job, w, &u, t->q, kt + u.at * tile, u.s);
    run_scores(job, w, &u, t->dout, vt + u.at * tile, u.dp);
    drain(&w->runs);
    for (int some = 1, any = 0; some; any = 1, before = u, u = after) {
      clear_runs(&w->runs);
      if (any) run_rows(job, w, &before, k + before.at * tile, job->odd[before.at] & RATTN_ODD_K);
      if (!any || before.tile != u.tile) begin_pairs(job, w);
      after = u;
      some = next_unit(job, w, end, head, &after);
      if (some) {
        run_scores(job, w, &after, t->q, kt + after.at * tile, after.s);
        run_scores(job, w, &after, t->dout, vt + after.at * tile, after.dp);
      }
      prefetch_tile(job, w, &u, 3, (const uint16_t *[]){kt, vt, k});
      gradient_unit(job, w, &u);
      if (!some || after.tile != u.tile) {  // p and ds of the key tile are complete
        float *dk = begin_grads(job, u.at), *dv = dk + tile;
        run_keys(job, w, u.key, w->p_pairs, t->dout, w->dout_turned, dv, t->odd_dout);
        run_keys(job, w, u.key, w->ds_pairs, t->q, w->q_turned, dk, t->odd_q);
      }
      drain(&w->runs);
    }
    clear_runs(&w->runs);
    run_rows(job, w, &before, k + before.at * tile, job->odd[before.at] & RATTN_ODD_K);
    drain(&w->runs);
    clear_runs(&w->runs);
  }
  end_dq(job, t, cell, head, sign);
}

// Task (cell, head) of the backward.
static void backward_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t head = task % job->heads;
  const rattn_cell *cell = &job->cells[task / job->heads];
  rattn_work w = {0};
  begin_work(job, workspace, cell, &w);
  if (cell->begin < cell->end) load_tile(job, &w, head);
  products_begin();
  int64_t begin = cell->begin;
  do {
    const int64_t end = end_of_sum(job, cell, begin);
    add_gradients(job, &w, cell, head, begin, end);
    begin = end;
  } while (begin < cell->end);
  products_end();
}

// Task (head, key tile) of the store phase: adds dk and dv to dkv.
static void store_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t head = task / job->key_tiles, key = task % job->key_tiles * job->key_tile;
  const int64_t dim = job->shape.head_dim, width = job->width, tile = job->key_tile * width;
  const int64_t count = job->keys - key < job->key_tile ? job->keys - key : job->key_tile;
  if (!(job->odd[task] & RATTN_SUMMED)) return;
  for (int64_t which = 0; which < 2; which++) {  // dk, dv
    const float *sums = job->grads + (2 * task + which) * tile;
    for (int64_t n = 0; n < count; n++) {
      if (n % NR == 0)
        for (int64_t d = 0; d < width; d += NR)
          transpose(workspace + d * NR, NR, sums + n * width + d * NR, NR, NR, NR);
      int64_t row = ((job->key0 + key + n) * 2 + which) * job->shape.kv_heads + job->head0 + head;
      add_panels(job->op.backward.dkv + row * dim, workspace + n % NR * NR, NR * NR, dim, 1, 1);
    }
  }
}

#endif
