// device.cuh of the emulator: stands in for ../device.cuh, so that the kernels compile
// for the host. Threads of a block are fibers; what a warp does together waits for all
// its lanes. Written from the PTX manual's tables of fragments, not from the kernels.
#ifndef RATTN_DEVICE_CUH
#define RATTN_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#include "emulate.h"

using std::max;
using std::min;

namespace rattn {

#define DEVICE inline

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

DEVICE float infinity() { return INFINITY; }
DEVICE float exp2_fast(float x) { return exp2f(x); }

// d += a b of 16 x 16 and 16 x 8 elements, by all lanes of a warp.
template <class T>
DEVICE void emulate_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Args {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
  } mine = {d, a, {b0, b1}};
  emulate::together(&mine, [](void **all) {
    float a[16][16], b[16][8];
    const auto half = [](uint32_t w, int i) { return i ? T::high(w) : T::low(w); };
    for (int lane = 0; lane < 32; lane++) {
      const Args *x = (const Args *)all[lane];
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 2; i++) {
        a[g][2 * t + i] = half(x->a[0], i);
        a[g + 8][2 * t + i] = half(x->a[1], i);
        a[g][2 * t + 8 + i] = half(x->a[2], i);
        a[g + 8][2 * t + 8 + i] = half(x->a[3], i);
        b[2 * t + i][g] = half(x->b[0], i);
        b[2 * t + 8 + i][g] = half(x->b[1], i);
      }
    }
    for (int lane = 0; lane < 32; lane++) {
      float *d = ((const Args *)all[lane])->d;
      for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
        d[i] += sum;
      }
    }
  });
}

struct Bf16 {
  static constexpr uint32_t EXPONENT = 0x7f807f80, UNIT = 0x00800080;
  static float low(uint32_t w) { return __uint_as_float_host(w << 16); }
  static float high(uint32_t w) { return __uint_as_float_host(w & 0xffff0000); }
  static float __uint_as_float_host(uint32_t w) {
    float f;
    memcpy(&f, &w, 4);
    return f;
  }
  static uint32_t pack(float low, float high) {
    const __nv_bfloat16 x = __float2bfloat16(low), y = __float2bfloat16(high);
    uint16_t u, v;
    memcpy(&u, &x, 2), memcpy(&v, &y, 2);
    return u | (uint32_t)v << 16;
  }
  static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulate_mma<Bf16>(d, a, b0, b1);
  }
};

struct F16 {
  static constexpr uint32_t EXPONENT = 0x7c007c00, UNIT = 0x04000400;
  static float half(uint16_t u) {
    __half h;
    memcpy(&h, &u, 2);
    return __half2float(h);
  }
  static float low(uint32_t w) { return half((uint16_t)w); }
  static float high(uint32_t w) { return half((uint16_t)(w >> 16)); }
  static uint32_t pack(float low, float high) {
    const __half x = __float2half(low), y = __float2half(high);
    uint16_t u, v;
    memcpy(&u, &x, 2), memcpy(&v, &y, 2);
    return u | (uint32_t)v << 16;
  }
  static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulate_mma<F16>(d, a, b0, b1);
  }
};

template <class T>
DEVICE uint32_t odd_halves(uint32_t w) {
  return ((w & T::EXPONENT) + T::UNIT) & 0x80008000;
}

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)((const char *)p - emulate::shared); }
#define __cvta_shared_to_generic(a) ((void *)(emulate::shared + (a)))

DEVICE void emulate_ldmatrix(uint32_t (&r)[4], uint32_t address, bool trans) {
  struct Args {
    uint32_t *r;
    uint32_t address;
    bool trans;
  } mine = {r, address, trans};
  emulate::together(&mine, [](void **all) {
    for (int lane = 0; lane < 32; lane++) {
      const Args *x = (const Args *)all[lane];
      for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int e = 0; e < 2; e++) {
          const int row = x->trans ? lane % 4 * 2 + e : lane / 4,
                    column = x->trans ? lane / 4 : lane % 4 * 2 + e;
          const uint32_t at = ((const Args *)all[i * 8 + row])->address;
          emulate::require(at % 16 == 0, "ldmatrix of an unaligned row");
          memcpy(&pair[e], emulate::shared + at + 2 * column, 2);
        }
        x->r[i] = pair[0] | (uint32_t)pair[1] << 16;
      }
    }
  });
}
DEVICE void ldmatrix(uint32_t (&r)[4], uint32_t address) { emulate_ldmatrix(r, address, false); }
DEVICE void ldmatrix_trans(uint32_t (&r)[4], uint32_t address) { emulate_ldmatrix(r, address, true); }

DEVICE int32_t load_shared(uint32_t address) { return *(const int32_t *)(emulate::shared + address); }
DEVICE void store_shared(uint32_t address, uint32_t w) { *(uint32_t *)(emulate::shared + address) = w; }

DEVICE void copy16(uint32_t to, const void *from, bool valid) { emulate::copy(to, from, valid, 16); }
DEVICE void copy4(uint32_t to, const void *from, bool valid) { emulate::copy(to, from, valid, 4); }
DEVICE void end_copies() { emulate::end_copies(); }
template <int N>
DEVICE void wait_copies() {
  emulate::wait_copies(N);
}
DEVICE void barrier(int id, int threads) { emulate::barrier(id, threads); }

}  // namespace rattn

#endif
