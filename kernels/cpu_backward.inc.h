// cpu_backward.inc.h: gradients of a set of row tiles against a block of keys,
// five products a pair of tiles:
//
//   p = exp(q k^T - lse)      ds = p (dout v^T - delta)
//   dq += ds k      dv += p^T dout      dk += ds^T q       (q times scale throughout)
//
// A row tile's dq is its own. dk and dv are sums over row tiles: task part of a head
// takes the tiles part, part + parts, ... (which evens out a causal mask) into its
// own partial sums, and the reduce phase adds the partials in order. The number of
// parts follows from the shape, so the result does not depend on who ran what.
#ifndef RATTN_CPU_BACKWARD_INC_H
#define RATTN_CPU_BACKWARD_INC_H

#include "cpu_tile.inc.h"

// Turns scores and dout.v of block b into p and ds, 0 where a row does not see a key.
static void gradient_block(rattn_tile *t, int64_t b, int64_t key) {
  const int64_t begin = t->from[b] / VL * VL, end = (t->to[b] + VL - 1) / VL * VL;
  for (int64_t m = b * MR; m < (b + 1) * MR; m++) {
    float *p = t->p + m * LD, *ds = t->ds + m * LD;
    int64_t lo, hi;
    // A row that saw nothing has no gradient, whatever is said of it here.
    if (!row_keys(t, m, key, &lo, &hi) || t->m[m] == -INFINITY) {
      memset(p, 0, NB * sizeof(float));
      memset(ds, 0, NB * sizeof(float));
      continue;
    }
    vf lse = v_set1(t->m[m]), delta = v_set1(t->l[m]);
    for (int64_t n = begin; n < end; n += VL) {
      vf e = v_exp(v_load(p + n) - lse);
      v_store(p + n, e);
      v_store(ds + n, e * (v_load(ds + n) - delta));
    }
    memset(p, 0, (size_t)lo * sizeof(float));
    memset(ds, 0, (size_t)lo * sizeof(float));
    memset(p + hi, 0, (size_t)(NB - hi) * sizeof(float));
    memset(ds + hi, 0, (size_t)(NB - hi) * sizeof(float));
  }
}

// Writes or adds dq of row m: scale times what was summed.
static void store_dq(const rattn_job *job, const rattn_tile *t, int64_t head, int64_t m) {
  const int64_t dim = job->shape.head_dim;
  float *dq = job->op.backward.dq + tensor_row(job, t, head, m) * dim;
  const float *acc = t->acc + m * job->width, scale = job->shape.scale;
  const int write = job->first && job->first_block;
  if (t->lo[m] >= t->hi[m]) {
    if (write) memset(dq, 0, (size_t)dim * sizeof(float));
  } else if (write) {
    for (int64_t d = 0; d < dim; d++) dq[d] = scale * acc[d];
  } else {
    for (int64_t d = 0; d < dim; d++) dq[d] += scale * acc[d];
  }
}

// Task (head, part) of the backward.
static void backward_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t head = task / job->parts, part = task % job->parts;
  const int64_t dim = job->shape.head_dim, width = job->width, rows = job->key_tiles * NB;
  float *dk = job->partial + task * 2 * rows * width, *dv = dk + rows * width;
  uint8_t *touched = job->touched + task * job->key_tiles;
  memset(touched, 0, (size_t)job->key_tiles);
  rattn_tile t = {0};
  lay_out(job, workspace, &t);
  for (int64_t index = part; index < job->tiles; index += job->parts) {
    if (begin_tile(job, &t, index)) {
      t.odd_q = pack_tile(job, &t, head, job->q, job->shape.scale, t.q, t.q_rows);
      t.odd_dout = pack_tile(job, &t, head, job->dout, 1, t.dout, t.dout_rows);
      memset(t.acc, 0, (size_t)(t.blocks * MR * width) * sizeof(float));
      for (int64_t m = 0; m < t.rows; m++) {
        int64_t row = tensor_row(job, &t, head, m);
        t.m[m] = job->op.backward.lse[row];
        t.l[m] = job->op.backward.delta[row];
      }
      for (int64_t j = t.key_tile; j < t.key_tiles; j++) {
        const int64_t key = j * NB, at = head * job->key_tiles + j;
        if (!begin_keys(&t, key)) continue;
        if (!touched[j]) {
          memset(dk + key * width, 0, (size_t)(NB * width) * sizeof(float));
          memset(dv + key * width, 0, (size_t)(NB * width) * sizeof(float));
          touched[j] = 1;
        }
        all_scores(&t, t.q, job->kt + at * NB * dim, dim, t.p);
        all_scores(&t, t.dout, job->vt + at * NB * dim, dim, t.ds);
        for (int64_t b = 0; b < t.blocks; b++) gradient_block(&t, b, key);
        add_over_rows(job, &t, t.p, t.dout_rows, key, dv + key * width, t.odd_dout);
        add_over_rows(job, &t, t.ds, t.q_rows, key, dk + key * width, t.odd_q);
        add_over_keys(&t, t.ds, job->k + at * NB * width, key, width, job->odd[at] & RATTN_ODD_K);
      }
    }
    for (int64_t m = 0; m < t.rows; m++) store_dq(job, &t, head, m);
  }
}

// Task (head, key tile) of the reduce phase: adds the sum of the partials to dkv.
static void reduce_task(const rattn_job *job, float *workspace, int64_t task) {
  const int64_t head = task / job->key_tiles, tile = task % job->key_tiles;
  const int64_t dim = job->shape.head_dim, width = job->width, rows = job->key_tiles * NB;
  const int64_t end = (tile + 1) * NB < job->keys ? (tile + 1) * NB : job->keys;
  for (int64_t n = tile * NB; n < end; n++) {
    for (int64_t which = 0; which < 2; which++) {  // dk, dv
      float *sum = workspace;
      int64_t found = 0;
      for (int64_t part = 0; part < job->parts; part++) {
        int64_t from = head * job->parts + part;
        if (!job->touched[from * job->key_tiles + tile]) continue;
        const float *partial = job->partial + ((from * 2 + which) * rows + n) * width;
        if (found++)
          for (int64_t d = 0; d < width; d += VL) v_store(sum + d, v_load(sum + d) + v_load(partial + d));
        else
          memcpy(sum, partial, (size_t)width * sizeof(float));
      }
      if (!found) continue;
      int64_t row = (job->key0 + n) * 2 + which;
      float *dst = job->op.backward.dkv + (row * job->shape.kv_heads + job->head0 + head) * dim;
      for (int64_t d = 0; d < dim; d++) dst[d] += sum[d];
    }
  }
}

#endif
