// cpu_bf16_forward.inc.h: attention of a tile of rows against a block of keys, as
// cpu_forward.inc.h, with p rounded to bf16 before its product with v. l sums the p twice:
// as they are, for lse, and as rounded, for out. So the rounding of the one key that a row
// heeds most cancels, and out . dout agrees with dout . v, from which it is subtracted in
// the backward.
//
// Exponents are of 2: p = 2^(c s - m), c = scale log2 e. m is no smaller than a row's
// largest c s less SLACK, so that what was summed is seldom scaled again; l and acc bear
// factors up to 2^SLACK. Whether m has to move is seen only when the p are there, which
// are then made again: that is rare.
//
// Two units are in hand: the products of the one before and the one after go on while
// the scores of a unit become p.
#ifndef RATTN_CPU_BF16_FORWARD_INC_H
#define RATTN_CPU_BF16_FORWARD_INC_H

#include "cpu_bf16_tile.inc.h"

enum { SLACK = 8 };

// Moves the m of row r to its largest score of the unit, and its l along. The factor is
// left for what else was summed.
static void raise_shift(rattn_work *w, const rattn_unit *u, int r) {
  const float *s = u->s + r * LD;
  float *m = w->rows.m + u->row + r, *l = w->rows.l + (u->row + r) * 2 * VL;
  vf most = v_load(s + u->from);
  for (int64_t n = u->from; n < u->to; n += VL) most = v_max(v_load(s + n), most);
  const float top = v_most(most) * w->c;
  if (!(top > *m)) return;
  // Nothing was summed before the first score.
  const float factor = *m == -INFINITY ? 1 : exp2f(*m - top);
  for (int i = 0; i < 2 * VL; i += VL) v_store(l + i, v_load(l + i) * v_set1(factor));
  *m = top;
  w->factors[r] = factor;
  w->rescale |= factor != 1;
}

// p of row r and their sums, not rounded and rounded. Returns the largest exponents.
INLINE vf exponentials(const rattn_work *w, const rattn_unit *u, int r, vf sum[2]) {
  const vf c = v_set1(w->c);
  const float m = w->rows.m[u->row + r], *s = u->s + r * LD;
  uint16_t *p = u->w + r * NR;
  // Nothing, or scores of -Inf alone, so far: as if it saw nothing.
  const vf shift = v_set1(m == -INFINITY ? 0 : -m);
  vf sums[2], most[2], rounded = v_set1(0);
  UNROLL for (int i = 0; i < 2; i++) sums[i] = v_set1(0), most[i] = v_set1(-INFINITY);
  for (int64_t n = u->from; n < u->to; n += NR) UNROLL for (int v = 0; v < NV; v += 2) {
      vf x[2];
      UNROLL for (int i = 0; i < 2; i++) {
        x[i] = v_fma(v_load(s + n + (v + i) * VL), c, shift);
        most[i] = v_max(x[i], most[i]);
        x[i] = v_exp2(x[i]);
        sums[i] = sums[i] + x[i];
      }
      v_store_bf16(p + n * MR + v * VL, x[0], x[1]);
      rounded = v_add_bf16(rounded, p + n * MR + v * VL);
    }
  sum[0] = sums[0] + sums[1];
  sum[1] = rounded;
  return v_max(most[0], most[1]);
}

// Turns the unit's scores into p, and takes them into m and l.
static void softmax_unit(const rattn_job *job, rattn_work *w, const rattn_unit *u) {
  w->rescale = 0;
  for (int r = 0; r < MR; r += VL) v_store(w->factors + r, v_set1(1));
  for (int r = 0; r < MR; r++) {
    float *l = w->rows.l + (u->row + r) * 2 * VL;
    vf sum[2];
    int64_t lo, hi;
    if (!row_keys(&w->rows, u->row + r, u->key, job->key_tile, &lo, &hi)) lo = hi = u->to;
    mask_scores(u->s + r * LD, u->from, u->to, lo, hi);
    if (w->rows.m[u->row + r] == -INFINITY) raise_shift(w, u, r);
    if (v_any_above(exponentials(w, u, r, sum), SLACK)) {
      raise_shift(w, u, r);
      exponentials(w, u, r, sum);
    }
    for (int i = 0; i < 2; i++) v_store(l + i * VL, v_load(l + i * VL) + sum[i]);
    keep_pace(&w->runs, r + 1, MR);
  }
}

// Brings what the unit's rows have summed so far to their new m.
static void rescale(const rattn_job *job, rattn_work *w, const rattn_unit *u) {
  if (!w->rescale) return;
  for (int64_t r = 0; r < MR; r++) {
    if (w->factors[r] == 1) continue;
    vf factor = v_set1(w->factors[r]);
    float *acc = w->rows.acc + (u->row + r) * NR;
    for (int64_t d = 0; d < job->width; d += NR, acc += w->rows.panel)
      for (int v = 0; v < NR; v += VL) v_store(acc + v, v_load(acc + v) * factor);
  }
}

// Loads what is there for row m, or an empty sum.
static void load_running(const rattn_job *job, rattn_tile *t, int64_t head, int64_t m) {
  const rattn_forward_args *a = &job->op.forward;
  const int64_t dim = job->shape.head_dim;
  float *l = t->l + m * 2 * VL;
  t->m[m] = -INFINITY;
  memset(l, 0, 2 * VL * sizeof(float));
  const int64_t row = m < t->rows && !(job->first && job->first_block) ? tensor_row(job, t, head, m) : -1;
  if (row < 0 || a->lse[row] == -INFINITY) {
    load_sums(job, t, m, NULL, 1);
    return;
  }
  const double x = a->lse[row] * LOG2_E;
  t->m[m] = (float)x;
  // 1, but for what m lost in rounding; of scores above 1e8 nothing is left to know.
  l[0] = l[VL] = (float)exp2(fmin(fmax(x - (double)t->m[m], -SLACK), SLACK));
  load_sums(job, t, m, a->out + row * dim, l[0]);
}

// Writes row m: out = acc / l of rounded p, lse = ln 2^m l.
static void store_running(const rattn_job *job, const rattn_tile *t, int64_t head, int64_t m) {
  const rattn_forward_args *a = &job->op.forward;
  const int64_t dim = job->shape.head_dim, row = tensor_row(job, t, head, m);
  float *out = a->out + row * dim;
  const float *sums = t->l + m * 2 * VL;
  const float l = t->lo[m] < t->hi[m] ? v_sum(v_load(sums)) : 0;
  if (l != 0) {
    add_panels(out, t->acc + m * NR, t->panel, dim, 1 / v_sum(v_load(sums + VL)), 0);
    a->lse[row] = (float)((double)t->m[m] * LN_2 + log((double)l));
  } else if (job->first && job->first_block) {
    memset(out, 0, (size_t)dim * sizeof(float));
    a->lse[row] = -INFINITY;
  }
}

// Task (head, cell) of the forward.
static void forward_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t head = task / job->cell_count, tile = job->key_tile * job->width;
  const rattn_cell *cell = &job->cells[task % job->cell_count];
  const uint16_t *kt = job->kt, *v = job->v;
  rattn_work w = {0};
  begin_work(job, workspace, cell, &w);
  rattn_unit u = before_first(cell->begin, &w), before = u, after;
  if (next_unit(job, &w, cell->end, head, &u)) {
    products_begin();
    pack_tile(job, &w.rows, head, job->q, w.sign, w.rows.q, NULL);
    for (int64_t m = 0; m < w.rows.blocks * MR; m++) load_running(job, &w.rows, head, m);
    run_scores(job, &w, &u, w.rows.q, kt + u.at * tile, u.s);
    drain(&w.runs);
    for (int some = 1, any = 0; some; any = 1, before = u, u = after) {
      clear_runs(&w.runs);
      after = u;
      if (any) run_rows(job, &w, &before, v + before.at * tile, job->odd[before.at] & RATTN_ODD_V);
      some = next_unit(job, &w, cell->end, head, &after);
      if (some) run_scores(job, &w, &after, w.rows.q, kt + after.at * tile, after.s);
      prefetch_tile(job, &w, &u, 2, (const uint16_t *[]){kt, v});
      softmax_unit(job, &w, &u);
      drain(&w.runs);
      rescale(job, &w, &u);
    }
    clear_runs(&w.runs);
    run_rows(job, &w, &before, v + before.at * tile, job->odd[before.at] & RATTN_ODD_V);
    drain(&w.runs);
    products_end();
  }
  for (int64_t m = 0; m < w.rows.rows; m++) store_running(job, &w.rows, head, m);
}

#endif
