// cpu_bf16_product.inc.h: products of bf16 with float sums, by blocks of 32 x 32, and
// 2^x.
//
// The bf16 body is compiled once for each instruction set that multiplies bf16, by
// cpu_amx.c and its siblings, which define before:
//   vf, v_*        as for the f32 body
//   v_store_bf16   stores two vectors rounded to bf16, one after the other
//   v_store_pairs  stores them in turn: x0 y0 x1 y1 ...
//   v_add_bf16     adds two vectors' worth of bf16 in memory to a vector
//   v_any_above    whether any element is above a number
//   MR, NR         32
//   NB             the most keys of a tile
//   product_steps  some steps of a block's product; it may prefetch as they go on
//   products_begin, products_end  around all products of a task
//   STEPWISE       whether steps of a product can be strewn among other work
//
// A panel is 32 x 32 elements in one piece, in one of two forms: as rows [32][32], or as
// pairs [16][32][2], where an element and the one below it are side by side. A product
// C[32, 32] (+)= A[32, 32 steps] B[32 steps, 32] has A in panels of rows and B in panels
// of pairs, one of each a step; C is of floats. The instructions multiply pairs: element
// (r, k), (r, k + 1) of A, a row's, with (k, c), (k + 1, c) of B.
#ifndef RATTN_CPU_BF16_PRODUCT_INC_H
#define RATTN_CPU_BF16_PRODUCT_INC_H

#include "cpu_stream.inc.h"

enum {
  NV = NR / VL,
  PANEL = MR * NR,  // elements of a panel
  // Row stride of score tiles. Not a power of two, or rows would fall on few cache sets.
  LD = NB + 16,
  MOST_RUNS = 2 * NB / NR + 3,
};

// count products in a row. The panels of A of a product lie a_step apart, those of B
// follow each other.
typedef struct {
  int64_t count, steps;
  const uint16_t *a, *b;
  float *c;
  int64_t a_step, c_row;
  int64_t a_block, b_block, c_block;  // from one product to the next
  int add;
  int far;  // C is seldom in the caches
} rattn_run;

// Runs to be done, in order. While the vector units work on one block of rows, products
// for others go through the matrix unit: the CPU overlaps the two only where they
// come in turn, every few hundred instructions.
typedef struct {
  rattn_run runs[MOST_RUNS];
  int count, at;        // runs, and the one in progress
  int64_t block, step;  // its product in progress, and the steps done of that
  int64_t total, done;  // steps of all runs
  rattn_stream streams[STREAMS];
} rattn_runs;

static void clear_runs(rattn_runs *runs) {
  runs->count = runs->at = 0;
  runs->block = runs->step = runs->total = runs->done = 0;
  for (int i = 0; i < STREAMS; i++) runs->streams[i].lines = runs->streams[i].left = 0;
}

static void add_run(rattn_runs *runs, rattn_run run) {
  runs->runs[runs->count++] = run;
  runs->total += run.count * run.steps;
}

// Has the sums prefetched that the product after the one in progress adds to, if they are
// far.
static void prefetch_sums(rattn_runs *runs) {
  const rattn_run *r = &runs->runs[runs->at];
  const int64_t lines = PANEL * (int64_t)sizeof(float) / LINE, steps = r->steps;
  const int last = runs->block + 1 == r->count, none = last && runs->at + 1 == runs->count;
  const float *c = r->c + (runs->block + 1) * r->c_block;
  if (last && !none) c = (++r)->c;
  const int64_t left = none || !r->far ? 0 : lines;
  runs->streams[SUMS] = (rattn_stream){(const char *)c, (lines + steps - 1) / steps, left};
}

// Goes on with the runs until so many steps are done in all.
static void pump(rattn_runs *runs, int64_t until) {
  while (runs->done < until) {
    const rattn_run *r = &runs->runs[runs->at];
    const int64_t rest = r->steps - runs->step, some = until - runs->done;
    const int64_t n = STEPWISE && some < rest ? some : rest;
    if (runs->step == 0) prefetch_sums(runs);
    product_steps(r->a + runs->block * r->a_block + runs->step * r->a_step, r->a_step,
                  r->b + runs->block * r->b_block + runs->step * PANEL, n, r->c + runs->block * r->c_block,
                  r->c_row, runs->step == 0 && !r->add, runs->step == 0, n == rest, runs->streams);
    runs->done += n;
    runs->step += n;
    if (runs->step < r->steps) continue;
    runs->step = 0;
    if (++runs->block < r->count) continue;
    runs->block = 0;
    runs->at++;
  }
}

static void drain(rattn_runs *runs) { pump(runs, runs->total); }

// Keeps the runs in step with other work, of which part of whole is done.
INLINE void keep_pace(rattn_runs *runs, int part, int whole) {
  if (STEPWISE) pump(runs, runs->total * part / whole);
}

// 2^x for x up to about 120: relative error 3e-6, exactly 0 below -127 and for -Inf, NaN
// for NaN. x = n + r with |r| <= 1/2; the polynomial of degree 4 with p(0) = 1 that is
// closest to 2^r; times 2^n, which is 0 at n = -127, and not by the exponent, which
// would make numbers of a NaN.
INLINE vf v_exp2(vf x) {
  // Adding 1.5 * 2^23 + 127 rounds to an integer and leaves it, as an exponent of 2^n, in
  // the low bits.
  const vf magic = v_set1(12583039.0f);
  x = v_max(v_set1(-127), x);
  vf t = x + magic;
  vf r = x - (t - magic);
  vf p = v_set1(9.78291905196e-3f);
  p = v_fma(p, r, v_set1(5.59768873185e-2f));
  p = v_fma(p, r, v_set1(2.4020711069e-1f));
  p = v_fma(p, r, v_set1(6.93113604235e-1f));
  p = v_fma(p, r, v_set1(1));
  return p * v_pow2(t);
}

#define LOG2_E 1.4426950408889634
#define LN_2 0.6931471805599453

#endif
