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
  const int64_t begin = t->from[b] / VL * VL, end = (t->to[b] + VL - 1) / VL * VL;
  for (int64_t m = b * MR; m < (b + 1) * MR; m++) {
    float *s = t->p + m * LD;
    int64_t lo, hi;
    if (!row_keys(t, m, key, job->key_tile, &lo, &hi)) {
      for (int64_t n = begin; n < end; n++) s[n] = 0;
      continue;
    }
    for (int64_t n = begin; n < lo; n++) s[n] = -INFINITY;
    for (int64_t n = hi; n < end; n++) s[n] = -INFINITY;
    vf most = v_load(s + begin);
    for (int64_t n = begin + VL; n < end; n += VL) most = v_max(v_load(s + n), most);
    float top = v_most(most);
    if (!(top <= t->m[m])) {
      float alpha = expf(t->m[m] - top);  // 0 for the first keys: m is -Inf
      t->m[m] = top;
      t->l[m] *= alpha;
      vf factor = v_set1(alpha);
      float *acc = t->acc + m * NR;
      for (int64_t d = 0; d < job->width; d += NR, acc += t->panel)
        for (int v = 0; v < NR; v += VL) v_store(acc + v, v_load(acc + v) * factor);
    }
    if (t->m[m] == -INFINITY) {  // scores of -Inf alone, so far: as if it saw nothing
      for (int64_t n = begin; n < end; n++) s[n] = 0;
      continue;
    }
    vf shift = v_set1(t->m[m]), sum = v_set1(0);
    for (int64_t n = begin; n < end; n += VL) {
      vf p = v_exp(v_load(s + n) - shift);
      v_store(s + n, p);
      sum = sum + p;
    }
    t->l[m] += v_sum(sum);
  }
}

// Loads what is there for row m, or an empty sum.
static void load_running(const rattn_job *job, rattn_tile *t, int64_t head, int64_t m) {
  const rattn_forward_args *a = &job->op.forward;
  const int64_t dim = job->shape.head_dim;
  float *acc = t->acc + m * NR;
  t->m[m] = -INFINITY;
  t->l[m] = 0;
  if (m < t->rows && !(job->first && job->first_block)) {
    int64_t row = tensor_row(job, t, head, m);
    if (a->lse[row] != -INFINITY) {
      t->m[m] = a->lse[row];
      t->l[m] = 1;
      load_panels(acc, t->panel, a->out, row * dim, dim, RATTN_F32, 1);
      return;
    }
  }
  for (int64_t d = 0; d < job->width; d += NR, acc += t->panel) memset(acc, 0, NR * sizeof(float));
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
    all_scores(job, &t, t.q, (float *)job->kt + at * nb * job->depth, t.p);
    for (int64_t b = 0; b < t.blocks; b++)
      if (t.from[b] < t.to[b]) softmax_block(job, &t, b, key);
    add_over_keys(job, &t, t.p, (float *)job->v + at * nb * job->width, key, job->odd[at] & RATTN_ODD_V);
  }
  for (int64_t m = 0; m < t.rows; m++) store_running(job, &t, head, m);
}

#endif
