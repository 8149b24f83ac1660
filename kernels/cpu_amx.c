// cpu_amx.c: the kernels for bf16 by AMX: 8 tiles of 16 rows of 64 bytes, of which a
// product's block takes all: 4 of C, 2 of A, 2 of B.
#include "cpu.h"
#if RATTN_HAVE_BF16
#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(                                                                   \
    __attribute__((target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512vl,avx512dq,avx512bw"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512vl,avx512dq,avx512bw")
#endif

#define KERNELS rattn_amx_kernels
#define MR 32
#define NR 32
#define STEPWISE 1
#define NB 256
#define TILE_ROWS 192
#define TILE_BYTES (1 << 20)  // of a second-level cache of 2 MiB
#define CELL_KEYS 512
#define LOOP_FLOPS (4 * 2.0 * 16 * 16 * 32)

#include "cpu_avx512bf16.inc.h"
#include "cpu_stream.inc.h"

// Compilers may not know that instructions on tiles read and write memory.
#define FENCE __asm__ volatile("" ::: "memory")

INLINE void products_begin(void) {
  static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config = {
      .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
  _tile_loadconfig(&config);
}
INLINE void products_end(void) { _tile_release(); }

// n steps of a product of 32 x 32: A's panels lie a_step apart. It starts from 0 if
// zero, else from what is at c if begin, and ends there if end; else it is in tiles.
INLINE void product_steps(const uint16_t *a, int64_t a_step, const uint16_t *b, int64_t n, float *c,
                          int64_t c_row, int zero, int begin, int end, rattn_stream *streams) {
  const int64_t row = c_row * (int64_t)sizeof(float);
  FENCE;
  if (zero) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else if (begin) {
    _tile_loadd(0, c, row);
    _tile_loadd(1, c + 16, row);
    _tile_loadd(2, c + 16 * c_row, row);
    _tile_loadd(3, c + 16 * c_row + 16, row);
  }
  for (; n > 0; n--, a += a_step, b += 32 * 32) {
    prefetch_step(streams);
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 32, 128);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + 16 * 32, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  if (end) {
    _tile_stored(0, c, row);
    _tile_stored(1, c + 16, row);
    _tile_stored(2, c + 16 * c_row, row);
    _tile_stored(3, c + 16 * c_row + 16, row);
  }
  FENCE;
}

// Products at the rate that the CPU can sustain: from tiles alone.
static double product_loop(int64_t iterations) {
  uint16_t ones[16 * 32];
  float sum[16 * 16];
  for (int i = 0; i < 16 * 32; i++) ones[i] = 0x3f80;
  products_begin();
  FENCE;
  _tile_loadd(4, ones, 64);
  _tile_loadd(5, ones, 64);
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < iterations; k++) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(3, sum, 64);
  FENCE;
  products_end();
  return (double)sum[0];
}

#include "cpu_bf16_table.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int rattn_amx_needs_x86_64;
#endif
