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
static void softmax_block(rattn_tile *t, int64_t b, int64_t key, int64_t width) {
  const int64_t begin = t->from[b] / VL * VL, end = (t->to[b] + VL - 1) / VL * VL;
  for (int64_t m = b * MR; m < (b + 1) * MR; m++) {
    float *s = t->p + m * LD, *acc = t->acc + m * width;
    int64_t lo, hi;
    if (!row_keys(t, m, key, &lo, &hi)) {
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
      for (int64_t d = 0; d < width; d += VL) v_store(acc + d, v_load(acc + d) * factor);
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
  const int64_t dim = job->shape.head_dim, width = job->width;
  float *acc = t->acc + m * width;
  t->m[m] = -INFINITY;
  t->l[m] = 0;
  memset(acc, 0, (size_t)width * sizeof(float));
  if (m >= t->rows || (job->first && job->first_block)) return;
  int64_t row = tensor_row(job, t, head, m);
  if (a->lse[row] == -INFINITY) return;
  t->m[m] = a->lse[row];
  t->l[m] = 1;
  memcpy(acc, a->out + row * dim, (size_t)dim * sizeof(float));
}

// Writes row m: out = acc / l, lse = m + ln l.
static void store_running(const rattn_job *job, const rattn_tile *t, int64_t head, int64_t m) {
  const rattn_forward_args *a = &job->op.forward;
  const int64_t dim = job->shape.head_dim, row = tensor_row(job, t, head, m);
  float *out = a->out + row * dim;
  if (t->lo[m] < t->hi[m] && t->l[m] != 0) {
    const float *acc = t->acc + m * job->width, scale = 1 / t->l[m];
    for (int64_t d = 0; d < dim; d++) out[d] = acc[d] * scale;
    a->lse[row] = t->m[m] + logf(t->l[m]);
  } else if (job->first && job->first_block) {
    memset(out, 0, (size_t)dim * sizeof(float));
    a->lse[row] = -INFINITY;
  }
}

// Task (head, row tile) of the forward; the last tiles first, which under a causal
// mask have the most to do.
static void forward_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t head = task / job->tiles, index = job->tiles - 1 - task % job->tiles;
  const int64_t dim = job->shape.head_dim, width = job->width;
  rattn_tile t = {0};
  lay_out(job, workspace, &t);
  if (begin_tile(job, &t, index)) {
    pack_tile(job, &t, head, job->q, job->shape.scale, t.q, NULL);
    for (int64_t m = 0; m < t.blocks * MR; m++) load_running(job, &t, head, m);
    for (int64_t j = t.key_tile; j < t.key_tiles; j++) {
      const int64_t key = j * NB, at = head * job->key_tiles + j;
      if (!begin_keys(&t, key)) continue;
      all_scores(&t, t.q, job->kt + at * NB * dim, dim, t.p);
      for (int64_t b = 0; b < t.blocks; b++)
        if (t.from[b] < t.to[b]) softmax_block(&t, b, key, width);
      add_over_keys(&t, t.p, job->v + at * NB * width, key, width, job->odd[at] & RATTN_ODD_V);
    }
  }
  for (int64_t m = 0; m < t.rows; m++) store_running(job, &t, head, m);
}

#endif
