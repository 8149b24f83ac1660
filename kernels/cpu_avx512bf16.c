// cpu_avx512bf16.c: the kernels for bf16 by AVX512-BF16.
#include "cpu.h"
#if RATTN_HAVE_BF16
#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512bf16,avx512f,avx512vl,avx512dq,avx512bw"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512vl,avx512dq,avx512bw")
#endif

// A product of 32 x 32 goes by 8 rows: 16 accumulators, 2 of B, 1 of A.
#define KERNELS rattn_avx512bf16_kernels
#define MR 32
#define NR 32
#define STEPWISE 0
#define NB 128
#define TILE_ROWS 96
#define TILE_BYTES (512 << 10)  // of a second-level cache of 1 MiB
#define CELL_KEYS 384
enum { ROWS = 8, CHAINS = 24 };
#define LOOP_FLOPS (2.0 * 32 * CHAINS)

#include "cpu_avx512bf16.inc.h"
#include "cpu_stream.inc.h"

INLINE void products_begin(void) {}
INLINE void products_end(void) {}

// acc += pairs of a, all of them x, times pairs of b.
INLINE vf v_dot(vf acc, const uint16_t *a, __m512i b) {
  int32_t x;
  memcpy(&x, a, sizeof x);
  return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(x), (__m512bh)b);
}

// n steps, all there are, of a product of 32 x 32: A's panels lie a_step apart. It
// starts from 0 if zero, else from what is at c.
static void product_steps(const uint16_t *a, int64_t a_step, const uint16_t *b, int64_t n, float *c,
                          int64_t c_row, int zero, int begin, int end, rattn_stream *streams) {
  (void)begin, (void)end, (void)streams;
  for (int64_t m = 0; m < MR; m += ROWS, a += ROWS * 32, c += ROWS * c_row) {
    vf acc[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < 2; v++) acc[r][v] =
        zero ? v_set1(0) : v_load(c + r * c_row + v * VL);
    for (int64_t k = 0; k < n * 16; k++) {
      const uint16_t *ak = a + k / 16 * a_step + k % 16 * 2, *bk = b + k * 64;
      __m512i b0 = _mm512_loadu_si512(bk), b1 = _mm512_loadu_si512(bk + 32);
      UNROLL for (int r = 0; r < ROWS; r++) {
        acc[r][0] = v_dot(acc[r][0], ak + r * 32, b0);
        acc[r][1] = v_dot(acc[r][1], ak + r * 32, b1);
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < 2; v++)
        v_store(c + r * c_row + v * VL, acc[r][v]);
  }
}

// Products at the rate that the CPU can sustain: from registers alone.
static double product_loop(int64_t iterations) {
  const uint16_t pair[2] = {0x3f80, 0x3f80};
  vf acc[CHAINS];
  UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = v_set1((float)i);
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  for (int64_t k = 0; k < iterations; k++) {
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = v_dot(acc[i], pair, ones);
  }
  vf sum = v_set1(0);
  UNROLL for (int i = 0; i < CHAINS; i++) sum = sum + acc[i];
  return (double)v_sum(sum);
}

#include "cpu_bf16_table.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int rattn_avx512bf16_needs_x86_64;
#endif
