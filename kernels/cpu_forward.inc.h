// cpu_forward.inc.h: attention of a tile of rows against a block of keys, by the
// online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1).
//
// A row carries its running maximum m, l = sum exp(s - m) and acc = sum exp(s - m)
// v. Folding into what is there needs no merge: a row with a result starts from
// m = lse, l = 1, acc = out. No exponent is ever positive, so nothing overflows.
#ifndef RATTN_CPU_FORWARD_INC_H
#define RATTN_CPU_FORWARD_INC_H

#include "cpu_tile.inc.h"

// Turns the scores of block b into p = exp(s - m), over the vectors that cover
// what the block sees, and takes them into m and l; p is 0 where a row sees nothing.
static void softmax_block(const rattn_job *job, rattn_tile *t, int64_t b, int64_t key) {
  _Static_assert(MR <= VL, "a vector has a number for each row of a block");
  const int64_t begin = t->from[b] / VL * VL, end = (t->to[b] + VL - 1) / VL * VL;
  float top[VL], m[VL], alpha[VL];
  for (int r = 0; r < VL; r++) top[r] = m[r] = -INFINITY;
  memcpy(m, t->m + b * MR, MR * sizeof(float));
  for (int r = 0; r < MR; r++) {
    float *s = t->p + (b * MR + r) * LD;
    int64_t lo, hi;
    if (!row_keys(t, b * MR + r, key, job->key_tile, &lo, &hi)) lo = hi = end;
    mask_scores(s, begin, end, lo, hi);
    vf most = v_load(s + begin);
    for (int64_t n = begin + VL; n < end; n += VL) most = v_max(v_load(s + n), most);
    top[r] = v_most(most);
  }
  vf now = v_max(v_load(m), v_load(top));
  v_store(alpha, v_exp(v_load(m) - now));  // 0 for a row's first keys: m is -Inf
  v_store(top, now);
  for (int r = 0; r < MR; r++) {
    float *s = t->p + (b * MR + r) * LD, *acc = t->acc + (b * MR + r) * NR;
    if (top[r] == m[r]) alpha[r] = 1;  // -Inf too
    // Nothing, or scores of -Inf and NaN alone, so far: p is 0, or NaN.
    vf shift = v_set1(top[r] == -INFINITY ? 0 : top[r]), sum = v_set1(0), factor = v_set1(alpha[r]);
    for (int64_t n = begin; n < end; n += VL) {
      vf p = v_exp(v_load(s + n) - shift);
      v_store(s + n, p);
      sum = sum + p;
    }
    t->l[b * MR + r] = t->l[b * MR + r] * alpha[r] + v_sum(sum);
    if (top[r] == m[r]) continue;
    for (int64_t d = 0; d < job->width; d += NR, acc += t->panel)
      for (int v = 0; v < NR; v += VL) v_store(acc + v, v_load(acc + v) * factor);
  }
  memcpy(t->m + b * MR, top, MR * sizeof(float));
}

// Loads what is there for row m, or an empty sum.
static void load_running(const rattn_job *job, rattn_tile *t, int64_t head, int64_t m) {
  const rattn_forward_args *a = &job->op.forward;
  const int64_t dim = job->shape.head_dim;
  const float *out = NULL;
  t->m[m] = -INFINITY;
  t->l[m] = 0;
  if (m < t->rows && !(job->first && job->first_block)) {
    int64_t row = tensor_row(job, t, head, m);
    if (a->lse[row] != -INFINITY) {
      t->m[m] = a->lse[row];
      t->l[m] = 1;
      out = a->out + row * dim;
    }
  }
  load_sums(job, t, m, out, 1);
}

// Writes row m: out = acc / l, lse = m + ln l.
static void store_running(const rattn_job *job, const rattn_tile *t, int64_t head, int64_t m) {
  const rattn_forward_args *a = &job->op.forward;
  const int64_t dim = job->shape.head_dim, row = tensor_row(job, t, head, m);
  float *out = a->out + row * dim;
  if (t->lo[m] < t->hi[m] && t->l[m] != 0) {
    add_panels(out, t->acc + m * NR, t->panel, dim, 1 / t->l[m], 0);
    a->lse[row] = t->m[m] + logf(t->l[m]);
  } else if (job->first && job->first_block) {
    memset(out, 0, (size_t)dim * sizeof(float));
    a->lse[row] = -INFINITY;
  }
}

// Task (head, cell) of the forward.
static void forward_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t head = task / job->cell_count, nb = job->key_tile;
  const rattn_cell *cell = &job->cells[task % job->cell_count];
  rattn_tile t = {0};
  lay_out(job, workspace, &t);
  begin_tile(job, &t, cell->tile);
  if (cell->begin < cell->end) {
    pack_tile(job, &t, head, job->q, job->shape.scale, t.q);
    for (int64_t m = 0; m < t.blocks * MR; m++) load_running(job, &t, head, m);
  }
  for (int64_t j = cell->begin; j < cell->end; j++) {
    const int64_t key = j * nb, at = head * job->key_tiles + j;
    if (!begin_keys(&t, key, nb)) continue;
    const float *kt = (float *)job->kt + at * nb * job->depth, *v = (float *)job->v + at * nb * job->width;
    all_scores(job, &t, t.q, kt, t.p, v);
    for (int64_t b = 0; b < t.blocks; b++)
      if (t.from[b] < t.to[b]) softmax_block(job, &t, b, key);
    add_over_keys(job, &t, t.p, v, key, job->odd[at] & RATTN_ODD_V, kt + nb * job->depth);
  }
  for (int64_t m = 0; m < t.rows; m++) store_running(job, &t, head, m);
}

#endif
