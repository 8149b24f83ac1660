// cpu_bf16_forward.inc.h: attention of a tile of rows against a block of keys, as
// cpu_forward.inc.h, with p rounded to bf16 before its product with v; l sums the p that
// are not rounded.
//
// Exponents are of 2: p = 2^(c s - m), c = scale log2 e. m is no smaller than a row's
// largest c s less SLACK, so that what was summed is seldom scaled again; l and acc bear
// factors up to 2^SLACK.
//
// Two units are in hand: the products of the one before and the one after go on while
// the scores of a unit become p.
#ifndef RATTN_CPU_BF16_FORWARD_INC_H
#define RATTN_CPU_BF16_FORWARD_INC_H

#include "cpu_bf16_tile.inc.h"

enum { SLACK = 8 };

// Finds the largest scores of the unit's rows, and from these m and the factors that
// bring what was summed to it. What a row does not see becomes -Inf.
static void find_shift(const rattn_job *job, rattn_work *w, const rattn_unit *u) {
  float top[MR], *m = w->rows.m + u->row;
  for (int r = 0; r < MR; r++) {
    float *s = u->s + r * LD;
    int64_t lo, hi;
    if (!row_keys(&w->rows, u->row + r, u->key, job->key_tile, &lo, &hi)) lo = hi = u->to;
    for (int64_t n = u->from; n < lo; n++) s[n] = -INFINITY;
    for (int64_t n = hi; n < u->to; n++) s[n] = -INFINITY;
    vf most[NV];
    UNROLL for (int v = 0; v < NV; v++) most[v] = v_load(s + u->from + v * VL);
    for (int64_t n = u->from + NR; n < u->to; n += NR)
      UNROLL for (int v = 0; v < NV; v++) most[v] = v_max(v_load(s + n + v * VL), most[v]);
    UNROLL for (int v = 1; v < NV; v++) most[0] = v_max(most[v], most[0]);
    top[r] = v_most(most[0]);
    keep_pace(&w->runs, r + 1, 5 * MR);
  }
  w->rescale = 0;
  for (int r = 0; r < MR; r++) {
    top[r] = top[r] * w->c <= m[r] + SLACK ? m[r] : top[r] * w->c;  // NaN where that is
    w->rescale |= top[r] != m[r];
  }
  if (!w->rescale) return;
  for (int r = 0; r < MR; r += VL) v_store(w->factors + r, v_exp2(v_load(m + r) - v_load(top + r)));
  for (int r = 0; r < MR; r++) {
    if (top[r] == m[r]) w->factors[r] = 1;  // -Inf too
    float *l = w->rows.l + (u->row + r) * VL;
    v_store(l, v_load(l) * v_set1(w->factors[r]));
    m[r] = top[r];
  }
}

// Turns the unit's scores into p, and takes them into m and l.
static void softmax_unit(const rattn_job *job, rattn_work *w, const rattn_unit *u) {
  find_shift(job, w, u);
  const vf c = v_set1(w->c);
  for (int r = 0; r < MR; r++) {
    const float m = w->rows.m[u->row + r], *s = u->s + r * LD;
    float *l = w->rows.l + (u->row + r) * VL;
    uint16_t *p = u->w + r * NR;
    // Nothing, or scores of -Inf alone, so far: as if it saw nothing.
    const vf shift = v_set1(m == -INFINITY ? 0 : -m);
    vf sum[NV];
    UNROLL for (int v = 0; v < NV; v++) sum[v] = v_set1(0);
    for (int64_t n = u->from; n < u->to; n += NR) UNROLL for (int v = 0; v < NV; v += 2) {
        vf x = v_exp2(v_fma(v_load(s + n + v * VL), c, shift));
        vf y = v_exp2(v_fma(v_load(s + n + v * VL + VL), c, shift));
        sum[v] = sum[v] + x;
        sum[v + 1] = sum[v + 1] + y;
        v_store_bf16(p + n * MR + v * VL, x, y);
      }
    UNROLL for (int v = 1; v < NV; v++) sum[0] = sum[0] + sum[v];
    v_store(l, v_load(l) + sum[0]);
    keep_pace(&w->runs, MR + 4 * (r + 1), 5 * MR);
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
  float *acc = t->acc + m * NR, *l = t->l + m * VL;
  t->m[m] = -INFINITY;
  memset(l, 0, VL * sizeof(float));
  for (int64_t d = 0; d < job->width; d += NR) memset(acc + d / NR * t->panel, 0, NR * sizeof(float));
  if (m >= t->rows || (job->first && job->first_block)) return;
  const int64_t row = tensor_row(job, t, head, m);
  if (a->lse[row] == -INFINITY) return;
  const double x = a->lse[row] * LOG2_E;
  t->m[m] = (float)x;
  // 1, but for what m lost in rounding; of scores above 1e8 nothing is left to know.
  l[0] = (float)exp2(fmin(fmax(x - (double)t->m[m], -SLACK), SLACK));
  for (int64_t d = 0; d < dim; d += NR, acc += t->panel)
    for (int64_t i = 0; i < NR && d + i < dim; i++) acc[i] = l[0] * a->out[row * dim + d + i];
}

// Writes row m: out = acc / l, lse = ln 2^m l.
static void store_running(const rattn_job *job, const rattn_tile *t, int64_t head, int64_t m) {
  const rattn_forward_args *a = &job->op.forward;
  const int64_t dim = job->shape.head_dim, row = tensor_row(job, t, head, m);
  float *out = a->out + row * dim;
  const float l = t->lo[m] < t->hi[m] ? v_sum(v_load(t->l + m * VL)) : 0;
  if (l != 0) {
    add_panels(out, t->acc + m * NR, t->panel, dim, 1 / l, 0);
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
  rattn_unit u = before_first(cell, &w), before = u, after;
  if (next_unit(job, &w, cell, head, &u)) {
    products_begin();
    pack_tile(job, &w.rows, head, job->q, w.sign, w.rows.q, NULL);
    for (int64_t m = 0; m < w.rows.blocks * MR; m++) load_running(job, &w.rows, head, m);
    run_scores(job, &w, &u, w.rows.q, kt + u.at * tile, u.s);
    drain(&w.runs);
    for (int some = 1, any = 0; some; any = 1, before = u, u = after) {
      clear_runs(&w.runs);
      after = u;
      if (any) run_rows(job, &w, &before, v + before.at * tile, job->odd[before.at] & RATTN_ODD_V);
      some = next_unit(job, &w, cell, head, &after);
      if (some) run_scores(job, &w, &after, w.rows.q, kt + after.at * tile, after.s);
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
