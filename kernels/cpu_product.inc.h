// cpu_product.inc.h: exp and the register-blocked matrix products.
//
// Every .inc.h is compiled once for each instruction set, by cpu_avx2.c and its
// siblings, which define before:
//   vf, v_*     a vector of VL floats and what can be done with it
//   MR x NR     the block of a product that lives in registers
//   KEY_STEP    a multiple of both, NB a multiple of that: the most keys of a tile
//   DEPTH       the most of head_dim that a panel of scores takes at a time
//   KERNELS, TILE_ROWS, TILE_BYTES, CELL_KEYS  for the table, cpu_table.inc.h
//
// All products are C[M, N] (+)= A[M, K] B[K, N] by blocks of MR rows and NR
// columns. B and C come in panels of NR columns, so that a block reads B in order and
// has its C in one piece. A is read one element at a time and broadcast; it comes in
// one of three forms, which differ in strides alone.
#ifndef RATTN_CPU_PRODUCT_INC_H
#define RATTN_CPU_PRODUCT_INC_H

#include "cpu_rows.inc.h"

// Of a function whose inner loop has most of the products: compilers put functions at any
// multiple of 16 bytes, and with it the loop across one line of instructions more or less,
// which is 2 to 4% of the time.
#define ALIGNED __attribute__((aligned(64)))

enum {
  NV = NR / VL,
  // Lines of 64 bytes of B that a block prefetches every NR steps: the blocks of a tile
  // together a panel.
  LINES = (NR * NR * 4 / 64 + TILE_ROWS / MR - 1) / (TILE_ROWS / MR),
  // Row stride of score tiles. Not a power of two, or rows would fall on few
  // cache sets.
  LD = NB + 16,
};

// C block of nv vectors (+)= A B over depth steps. Element (r, k) of A is a[r * a_row +
// k * a_step] for the first chunk of steps; each further chunk lies a_chunk after the
// one before. A panel of B is used by all blocks of a tile in turn, and the first would
// wait for memory at each step; so each prefetches its part of the next panel, which
// begins at next if that is not NULL.
INLINE void product_block(int64_t depth, int64_t chunk, const float *a, int64_t a_row, int64_t a_step,
                          int64_t a_chunk, const float *b, float *c, int64_t c_row, int nv, int add,
                          const float *next) {
  vf acc[MR][NV];
  UNROLL for (int r = 0; r < MR; r++) UNROLL for (int v = 0; v < nv; v++) acc[r][v] =
      add ? v_load(c + r * c_row + v * VL) : v_set1(0);
  // C is seldom in the first-level cache, and nothing can begin without it; the next
  // block of a panel is where this one ends.
  for (int64_t i = 0; add && c_row == NR && i < MR * NR; i += 16) __builtin_prefetch(c + MR * NR + i, 1);
  for (; depth > 0; depth -= chunk, a += a_chunk) {
    const float *ak = a;
    if (next) {
      UNROLL for (int i = 0; i < LINES; i++) __builtin_prefetch(next + 16 * i, 0, 2);
      next += 16 * LINES;
    }
    for (int64_t k = depth < chunk ? depth : chunk; k > 0; k--) {
      vf bk[NV];
      UNROLL for (int v = 0; v < nv; v++) bk[v] = v_load(b + v * VL);
      UNROLL for (int r = 0; r < MR; r++) {
        vf ar = v_set1(ak[r * a_row]);
        UNROLL for (int v = 0; v < nv; v++) acc[r][v] = v_fma(ar, bk[v], acc[r][v]);
      }
      ak += a_step;
      b += NR;
    }
  }
  UNROLL for (int r = 0; r < MR; r++) UNROLL for (int v = 0; v < nv; v++)
      v_store(c + r * c_row + v * VL, acc[r][v]);
}

// S (+)= Q K^T and dP (+)= dO V^T: A is a row tile in panels that lie a_panel apart, C
// a block of a score tile, or the half of it at c.
ALIGNED static void product_scores(int64_t depth, const float *a, int64_t a_panel, const float *b, float *c,
                                   int add, const float *next) {
  if (add)
    product_block(depth, NR, a, NR, 1, a_panel, b, c, LD, NV, 1, next);
  else
    product_block(depth, NR, a, NR, 1, a_panel, b, c, LD, NV, 0, next);
}
static void product_scores_half(int64_t depth, const float *a, int64_t a_panel, const float *b, float *c,
                                int add, const float *next) {
  if (add)
    product_block(depth, NR, a, NR, 1, a_panel, b, c, LD, NV / 2, 1, next);
  else
    product_block(depth, NR, a, NR, 1, a_panel, b, c, LD, NV / 2, 0, next);
}

// O += P V and dQ += dS K: A is rows of a score tile, C a block of a row tile.
static void product_rows(int64_t depth, const float *a, const float *b, float *c, const float *next) {
  product_block(depth, NR, a, LD, 1, NR, b, c, NR, NV, 1, next);
}

// dV += P^T dO and dK += dS^T Q: A is columns of a score tile, C a block of a key tile.
static void product_keys(int64_t depth, const float *a, const float *b, float *c) {
  product_block(depth, depth, a, 1, LD, 0, b, c, NR, NV, 1, NULL);
}

// c[0 : width] += w * b for rows in panels that lie c_panel and b_panel apart: a
// product with one row and depth 1.
static void add_row(float w, const float *b, int64_t b_panel, float *c, int64_t c_panel, int64_t width) {
  vf wv = v_set1(w);
  for (int64_t d = 0; d < width; d += NR, b += b_panel, c += c_panel)
    for (int v = 0; v < NR; v += VL) v_store(c + v, v_fma(wv, v_load(b + v), v_load(c + v)));
}

// exp(x) for x up to about 80: 1 ulp, exactly 0 below -86.5 and for -Inf, NaN for NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts so that n times the first
// is exact; the polynomial of degree 6 with p(0) = p'(0) = 1 that is closest to exp r
// (relative error 3e-9); times 2^n, not by the exponent, which would make numbers of a NaN.
INLINE vf v_exp(vf x) {
  // Adding 1.5 * 2^23 + 127 rounds to an integer and leaves it, as an exponent of 2^n, in
  // the low bits.
  const vf magic = v_set1(12583039.0f);
  vf t = v_fma(x, v_set1(1.44269504088896341f), magic);
  vf n = t - magic;
  vf r = v_fma(n, v_set1(-0.693359375f), x);
  r = v_fma(n, v_set1(2.12194440e-4f), r);
  vf p = v_set1(1.3814548730e-3f);
  p = v_fma(p, r, v_set1(8.3687454462e-3f));
  p = v_fma(p, r, v_set1(4.1668388993e-2f));
  p = v_fma(p, r, v_set1(1.6666521132e-1f));
  p = v_fma(p, r, v_set1(4.9999994040e-1f));
  p = v_fma(p, r, v_set1(1));
  p = v_fma(p, r, v_set1(1));
  return v_zero_below(x, v_set1(-86.5f), p * v_pow2(t));
}

// FMAs at the rate that the CPU can sustain: enough independent chains to cover
// the latency, nothing else.
static double fma_loop(int64_t iterations) {
  vf acc[FMA_CHAINS];
  UNROLL for (int i = 0; i < FMA_CHAINS; i++) acc[i] = v_set1((float)i);
  vf a = v_set1(0.999f), b = v_set1(0.001f);
  for (int64_t k = 0; k < iterations; k++) {
    UNROLL for (int i = 0; i < FMA_CHAINS; i++) acc[i] = v_fma(acc[i], a, b);
  }
  vf sum = v_set1(0);
  UNROLL for (int i = 0; i < FMA_CHAINS; i++) sum = sum + acc[i];
  return (double)v_sum(sum);
}

#endif
