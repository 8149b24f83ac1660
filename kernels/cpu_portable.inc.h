// cpu_portable.inc.h: vectors of 4 floats by the compiler's own.
#ifndef RATTN_CPU_PORTABLE_INC_H
#define RATTN_CPU_PORTABLE_INC_H

#define VL 4

#define INLINE static inline __attribute__((always_inline))
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
INLINE vf v_set1(float x) { return (vf){x, x, x, x}; }
INLINE vf v_load(const float *p) {
  vf x;
  memcpy(&x, p, sizeof x);
  return x;
}
INLINE void v_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
// v_max returns b where either is NaN.
INLINE vf v_max(vf a, vf b) {
  vi more = a > b;
  return (vf)((more & (vi)a) | (~more & (vi)b));
}
// v_zero_below is 0 where x < limit, else y (also where x is NaN).
INLINE vf v_zero_below(vf x, vf limit, vf y) { return (vf)(~(x < limit) & (vi)y); }
// v_pow2 is 2^n for an x whose pattern's low bits are n + 127, -127 <= n < 128.
INLINE vf v_pow2(vf x) {
  // Shifted as unsigned: the sign bit may be lost.
  typedef uint32_t vu __attribute__((vector_size(16)));
  return (vf)((vu)x << 23);
}
INLINE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
INLINE vf v_from_bf16(const uint16_t *p) {
  vf x;
  for (int i = 0; i < VL; i++) x[i] = float_of((uint32_t)p[i] << 16);
  return x;
}
// An f16's exponent and fraction, shifted into place, are the value times
// 2^-112, subnormals included; Inf and NaN keep their all-ones exponent.
INLINE vf v_from_f16(const uint16_t *p) {
  vf x;
  for (int i = 0; i < VL; i++) {
    uint32_t sign = (uint32_t)(p[i] & 0x8000) << 16, rest = (uint32_t)(p[i] & 0x7fff) << 13;
    float y = rest >= 0x0f800000 ? float_of(rest | 0x7f800000) : float_of(rest) * 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    x[i] = float_of(bits | sign);
  }
  return x;
}

INLINE vf v_zip_low(vf a, vf b) { return (vf){a[0], b[0], a[1], b[1]}; }
INLINE vf v_zip_high(vf a, vf b) { return (vf){a[2], b[2], a[3], b[3]}; }
// v_select has elements [from, to) of x and the others of y.
INLINE vf v_select(vf x, vf y, int64_t from, int64_t to) {
  const vi at = {0, 1, 2, 3}, a = {(int32_t)from, (int32_t)from, (int32_t)from, (int32_t)from};
  const vi b = {(int32_t)to, (int32_t)to, (int32_t)to, (int32_t)to}, in = (at >= a) & (at < b);
  return (vf)((in & (vi)x) | (~in & (vi)y));
}
// Sum and maximum of a vector's elements, in a fixed order.
INLINE float v_sum(vf x) { return (x[0] + x[2]) + (x[1] + x[3]); }
INLINE float v_most(vf x) {
  float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}

#endif
