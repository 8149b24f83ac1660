// cpu_avx512bf16.inc.h: vectors of floats rounded to bf16, by AVX512-BF16.
#ifndef RATTN_CPU_AVX512BF16_INC_H
#define RATTN_CPU_AVX512BF16_INC_H

#include "cpu_avx512.inc.h"

INLINE void v_store_bf16(uint16_t *p, vf x, vf y) {
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}
INLINE void v_store_pairs(uint16_t *p, vf x, vf y) {
  const __m512i at = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                      6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi16(at, (__m512i)_mm512_cvtne2ps_pbh(y, x)));
}
INLINE vf v_add_bf16(vf sum, const uint16_t *p) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(p), (__m512bh)_mm512_set1_epi16(0x3f80));
}
INLINE int v_any_above(vf x, float limit) { return _mm512_cmp_ps_mask(x, v_set1(limit), _CMP_GT_OQ) != 0; }

#endif
