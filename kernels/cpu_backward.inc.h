// cpu_backward.inc.h: gradients of a set of row tiles against a block of keys,
// five products a pair of tiles:
//
//   p = exp(q k^T - lse)      ds = p (dout v^T - delta)
//   dq += ds k      dv += p^T dout      dk += ds^T q
//
// (q times scale throughout, and k in dq). A cell adds to the sums of its rows, dq, and
// to those of its keys, dk and dv; the order in which cells do so is cpu_plan.c's.
#ifndef RATTN_CPU_BACKWARD_INC_H
#define RATTN_CPU_BACKWARD_INC_H

#include "cpu_tile.inc.h"

// Turns scores and dout.v of block b into p and ds, 0 where a row does not see a key.
static void gradient_block(const rattn_job *job, rattn_tile *t, int64_t b, int64_t key) {
  const int64_t nb = job->key_tile;
  const vf zero = v_set1(0);
  for (int64_t m = b * MR; m < (b + 1) * MR; m++) {
    float *p = t->p + m * LD, *ds = t->ds + m * LD;
    int64_t lo, hi;
    if (!row_keys(t, m, key, nb, &lo, &hi)) lo = hi = nb;
    const int64_t first = lo / VL * VL, last = (hi + VL - 1) / VL * VL;
    for (int64_t n = 0; n < first; n += VL) v_store(p + n, zero), v_store(ds + n, zero);
    for (int64_t n = last; n < nb; n += VL) v_store(p + n, zero), v_store(ds + n, zero);
    if (lo == hi) continue;
    vf lse = v_set1(t->m[m]), delta = v_set1(t->l[m]);
    for (int64_t n = first; n < last; n += VL) {
      vf e = v_exp(v_load(p + n) - lse);
      v_store(p + n, e);
      v_store(ds + n, e * (v_load(ds + n) - delta));
    }
    if (first == lo && last == hi) continue;
    const int64_t ends[2] = {first, last - VL};
    for (int i = 0; i < 2; i++) {
      float *pn = p + ends[i], *dsn = ds + ends[i];
      v_store(pn, v_select(v_load(pn), zero, lo - ends[i], hi - ends[i]));
      v_store(dsn, v_select(v_load(dsn), zero, lo - ends[i], hi - ends[i]));
    }
  }
}

// Adds key tiles [begin, end) of a cell to dq of the tile's rows and to dk, dv.
static void add_gradients(const rattn_job *job, rattn_tile *t, const rattn_cell *cell, int64_t head,
                          int64_t begin, int64_t end) {
  const int64_t nb = job->key_tile;
  begin_dq(job, t, cell, head, 1);
  for (int64_t j = begin; j < end; j++) {
    const int64_t key = j * nb, at = head * job->key_tiles + j, rows = at * nb * job->width;
    const float *kt = (float *)job->kt + at * nb * job->depth, *vt = (float *)job->vt + at * nb * job->depth;
    const float *k = (float *)job->k + rows;
    if (!begin_keys(t, key, nb)) continue;
    float *dk = begin_grads(job, at), *dv = dk + nb * job->width;
    all_scores(job, t, t->q, kt, t->p, vt);
    all_scores(job, t, t->dout, vt, t->ds, k);
    for (int64_t b = 0; b < t->blocks; b++) gradient_block(job, t, b, key);
    add_over_rows(job, t, t->p, t->dout, key, dv, t->odd_dout);
    add_over_rows(job, t, t->ds, t->q, key, dk, t->odd_q);
    add_over_keys(job, t, t->ds, k, key, job->odd[at] & RATTN_ODD_K, kt + nb * job->depth);
  }
  end_dq(job, t, cell, head, 1);
}

// Task (cell, head) of the backward.
static void backward_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t head = task % job->heads;
  const rattn_cell *cell = &job->cells[task / job->heads];
  const rattn_backward_args *a = &job->op.backward;
  rattn_tile t = {0};
  lay_out(job, workspace, &t);
  begin_tile(job, &t, cell->tile);
  if (cell->begin < cell->end) {
    t.odd_q = pack_tile(job, &t, head, job->q, job->shape.scale, t.q);
    t.odd_dout = pack_tile(job, &t, head, job->dout, 1, t.dout);
    for (int64_t m = 0; m < t.rows; m++) {
      int64_t row = tensor_row(job, &t, head, m);
      t.m[m] = a->lse[row];
      t.l[m] = a->delta[row];
      // A row that saw nothing has no gradient, whatever is said of it here.
      if (t.m[m] == -INFINITY) t.lo[m] = t.hi[m] = 0;
    }
  }
  int64_t begin = cell->begin;
  do {
    const int64_t end = end_of_sum(job, cell, begin);
    add_gradients(job, &t, cell, head, begin, end);
    begin = end;
  } while (begin < cell->end);
}

// Task (head, key tile) of the store phase: adds dk and dv to dkv.
static void store_task(const rattn_job *job, float *workspace, int64_t task) {
  (void)workspace;
  const int64_t head = task / job->key_tiles, key = task % job->key_tiles * job->key_tile;
  const int64_t dim = job->shape.head_dim, nb = job->key_tile;
  const int64_t count = job->keys - key < nb ? job->keys - key : nb;
  if (!(job->odd[task] & RATTN_SUMMED)) return;
  for (int64_t which = 0; which < 2; which++) {  // dk, dv
    const float *sums = job->grads + (2 * task + which) * nb * job->width;
    for (int64_t n = 0; n < count; n++) {
      int64_t row = ((job->key0 + key + n) * 2 + which) * job->shape.kv_heads + job->head0 + head;
      add_panels(job->op.backward.dkv + row * dim, sums + n * NR, nb * NR, dim, 1, 1);
    }
  }
}

#endif
