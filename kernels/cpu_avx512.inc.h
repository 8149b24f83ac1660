// cpu_avx512.inc.h: vectors of 16 floats by AVX-512 (F, VL, DQ, BW), for the kernels of
// every instruction set that has it.
#ifndef RATTN_CPU_AVX512_INC_H
#define RATTN_CPU_AVX512_INC_H

#define VL 16

#define INLINE static inline __attribute__((always_inline))
typedef __m512 vf;
INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
// v_max returns b where either is NaN.
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
// v_zero_below is 0 where x < limit, else y (also where x is NaN).
INLINE vf v_zero_below(vf x, vf limit, vf y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y);
}
// v_pow2 is 2^n for an x whose pattern's low bits are n + 127, -127 <= n < 128.
INLINE vf v_pow2(vf x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23)); }
INLINE vf v_from_bf16(const uint16_t *p) {
  __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
INLINE vf v_from_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

INLINE vf v_zip_low(vf a, vf b) {
  const __m512i at = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm512_permutex2var_ps(a, at, b);
}
INLINE vf v_zip_high(vf a, vf b) {
  const __m512i at = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return _mm512_permutex2var_ps(a, at, b);
}
// v_select has elements [from, to) of x and the others of y.
INLINE vf v_select(vf x, vf y, int64_t from, int64_t to) {
  from = from < 0 ? 0 : from > 16 ? 16 : from;
  to = to < from ? from : to > 16 ? 16 : to;
  return _mm512_mask_mov_ps(y, (__mmask16)((1u << to) - (1u << from)), x);
}
// Sum and maximum of a vector's elements, in a fixed order.
INLINE float v_sum(vf x) { return _mm512_reduce_add_ps(x); }
INLINE float v_most(vf x) { return _mm512_reduce_max_ps(x); }

#endif
