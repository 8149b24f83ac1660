// device.cuh: the PTX that the attention kernels are made of, sm_80 and later.
#ifndef RATTN_DEVICE_CUH
#define RATTN_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace rattn {

#define DEVICE __device__ __forceinline__

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

DEVICE float infinity() { return __int_as_float(0x7f800000); }

// 2^x, 2 ulp, denormal results are 0.
DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two 16-bit elements of a tensor in a register, the lower index in the lower half.
// EXPONENT masks both exponents, UNIT added to one that is all ones (Inf, NaN) carries
// into the sign bit.
struct Bf16 {
  static constexpr uint32_t EXPONENT = 0x7f807f80, UNIT = 0x00800080;
  static DEVICE uint32_t pack(float low, float high) {
    uint32_t w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
  }
  static DEVICE float low(uint32_t w) { return __uint_as_float(w << 16); }
  static DEVICE float high(uint32_t w) { return __uint_as_float(w & 0xffff0000); }
  // d += a b: a [16, 16] row-major, b [16, 8] column-major, d [16, 8].
  static DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

struct F16 {
  static constexpr uint32_t EXPONENT = 0x7c007c00, UNIT = 0x04000400;
  static DEVICE uint32_t pack(float low, float high) {
    uint32_t w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
  }
  static DEVICE float low(uint32_t w) { return __half2float(__ushort_as_half((unsigned short)w)); }
  static DEVICE float high(uint32_t w) { return __half2float(__ushort_as_half((unsigned short)(w >> 16))); }
  static DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// Sign bits of the halves of w that are Inf or NaN.
template <class T>
DEVICE uint32_t odd_halves(uint32_t w) {
  return ((w & T::EXPONENT) + T::UNIT) & 0x80008000;
}

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8 and gets of
// each row l / 4, columns 2 (l % 4) and the next.
DEVICE void ldmatrix(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed.
DEVICE void ldmatrix_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

DEVICE int32_t load_shared(uint32_t address) {
  int32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

DEVICE void store_shared(uint32_t address, uint32_t w) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(w) : "memory");
}

// Copies 16 bytes from global to shared memory in the background; zeros where !valid.
DEVICE void copy16(uint32_t to, const void *from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

DEVICE void copy4(uint32_t to, const void *from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}

// Ends a group of copies; wait_copies<N> waits until at most N groups are under way.
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Barrier number id of threads threads of the block; 0 is __syncthreads's.
DEVICE void barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace rattn

#endif
