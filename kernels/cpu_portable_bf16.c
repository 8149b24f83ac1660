// cpu_portable_bf16.c: the kernels for bf16 with products emulated, so that their body
// is tested on every CPU. Slower than widening to f32.
#include <math.h>

#include "cpu.h"

#define KERNELS rattn_portable_bf16_kernels
#define MR 32
#define NR 32
#define STEPWISE 1
#define NB 96
#define TILE_ROWS 128
#define TILE_BYTES (128 << 10)
#define CELL_KEYS 384
enum { CHAINS = 4 };
#define LOOP_FLOPS (2.0 * 2 * VL * CHAINS)

#include "cpu_portable.inc.h"
#include "cpu_stream.inc.h"

// Rounds to the nearest bf16, of two as near to the even one; in the high half.
typedef uint32_t vu __attribute__((vector_size(16)));
INLINE vu v_round_bf16(vf x) {
  vu bits = (vu)x, nan = (vu)(x != x);
  vu rounded = bits + 0x7fff + (bits >> 16 & 1);
  return (nan & (bits | 0x400000)) | (~nan & rounded);
}
INLINE void v_store_bf16(uint16_t *p, vf x, vf y) {
  vu a = v_round_bf16(x), b = v_round_bf16(y);
  for (int i = 0; i < VL; i++) {
    p[i] = (uint16_t)(a[i] >> 16);
    p[VL + i] = (uint16_t)(b[i] >> 16);
  }
}
INLINE void v_store_pairs(uint16_t *p, vf x, vf y) {
  vu a = v_round_bf16(x), b = v_round_bf16(y);
  for (int i = 0; i < VL; i++) {
    p[2 * i] = (uint16_t)(a[i] >> 16);
    p[2 * i + 1] = (uint16_t)(b[i] >> 16);
  }
}

INLINE int v_any_above(vf x, float limit) {
  int any = 0;
  for (int i = 0; i < VL; i++) any |= x[i] > limit;
  return any;
}

INLINE void products_begin(void) {}
INLINE void products_end(void) {}

// Splits VL pairs into their first and second elements.
INLINE void split_pairs(const uint16_t *p, vf *x, vf *y) {
  vu pairs;
  memcpy(&pairs, p, sizeof pairs);
  *x = (vf)(pairs << 16);
  *y = (vf)(pairs & 0xffff0000);
}

INLINE vf v_add_bf16(vf sum, const uint16_t *p) {
  vf x, y;
  split_pairs(p, &x, &y);
  return sum + (x + y);
}

// n steps of a product of 32 x 32: A's panels lie a_step apart. It starts from 0 if
// zero, else from what is at c.
static void product_steps(const uint16_t *a, int64_t a_step, const uint16_t *b, int64_t n, float *c,
                          int64_t c_row, int zero, int begin, int end, rattn_stream *streams) {
  (void)begin, (void)end, (void)streams;
  for (int64_t m = 0; m < MR && zero; m++) memset(c + m * c_row, 0, NR * sizeof(float));
  for (; n > 0; n--, a += a_step, b += MR * NR)
    for (int64_t m = 0; m < MR; m += 4)
      for (int64_t v = 0; v < NR; v += VL) {
        vf acc[4];
        UNROLL for (int r = 0; r < 4; r++) acc[r] = v_load(c + (m + r) * c_row + v);
        for (int64_t k = 0; k < 16; k++) {
          vf b0, b1;
          split_pairs(b + k * 64 + 2 * v, &b0, &b1);
          UNROLL for (int r = 0; r < 4; r++) {
            const uint16_t *pair = a + (m + r) * 32 + 2 * k;
            acc[r] = acc[r] + v_set1(float_of((uint32_t)pair[0] << 16)) * b0;
            acc[r] = acc[r] + v_set1(float_of((uint32_t)pair[1] << 16)) * b1;
          }
        }
        UNROLL for (int r = 0; r < 4; r++) v_store(c + (m + r) * c_row + v, acc[r]);
      }
}

// Products from registers alone.
static double product_loop(int64_t iterations) {
  vf acc[CHAINS], a = v_set1(0.999f), b = v_set1(0.001f);
  UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = v_set1((float)i);
  for (int64_t k = 0; k < iterations; k++) {
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = v_fma(v_fma(acc[i], a, b), a, b);
  }
  vf sum = v_set1(0);
  UNROLL for (int i = 0; i < CHAINS; i++) sum = sum + acc[i];
  return (double)v_sum(sum);
}

#include "cpu_bf16_table.inc.h"
