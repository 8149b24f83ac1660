// cpu_avx2.c: the kernels for AVX2 with FMA and F16C: 16 registers of 8 floats.
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "cpu.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

// A product's block is 6 x 16: 12 accumulators, 2 of B, 1 or 2 of A. A panel of B of
// DEPTH steps is 16 KiB.
#define KERNELS rattn_avx2_kernels
#define VL 8
#define MR 6
#define NR 16
#define KEY_STEP 48
#define NB 192
#define DEPTH 256
// CPUs with AVX2 alone have second-level caches of 256 KiB and more.
#define TILE_ROWS 96
#define CELL_KEYS 384
#define TILE_BYTES (512 << 10)
#define FMA_CHAINS 12

#define INLINE static inline __attribute__((always_inline))
typedef __m256 vf;
INLINE vf v_set1(float x) { return _mm256_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
// v_max returns b where either is NaN.
INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
// v_zero_below is 0 where x < limit, else y (also where x is NaN).
INLINE vf v_zero_below(vf x, vf limit, vf y) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y);
}
// v_pow2 is 2^n for an x whose pattern's low bits are n + 127, -127 <= n < 128.
INLINE vf v_pow2(vf x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23)); }
INLINE vf v_from_bf16(const uint16_t *p) {
  __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
INLINE vf v_from_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

INLINE vf v_zip_low(vf a, vf b) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
INLINE vf v_zip_high(vf a, vf b) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}
// v_select has elements [from, to) of x and the others of y.
INLINE vf v_select(vf x, vf y, int64_t from, int64_t to) {
  const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)from), at);
  const __m256i until = _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)to), at);
  return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(_mm256_andnot_si256(before, until)));
}
// Sum and maximum of a vector's elements, in a fixed order.
INLINE float v_sum(vf x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
INLINE float v_most(vf x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

#include "cpu_table.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int rattn_avx2_needs_x86_64;
#endif
