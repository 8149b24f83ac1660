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

// A product's block is 6 x 16: 12 accumulators, 2 of B, 1 or 2 of A.
#define ISA rattn_avx2
#define ISA_NAME "avx2"
#define VL 8
#define MR 6
#define NR 16
#define NB 192
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
// v_scale_bits adds the low bits of n's pattern to the exponent of x.
INLINE vf v_scale_bits(vf x, vf n) {
  __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shifted));
}
INLINE vf v_from_bf16(const uint16_t *p) {
  __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
INLINE vf v_from_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

#include "cpu_table.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int rattn_avx2_needs_x86_64;
#endif
