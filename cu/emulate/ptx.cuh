// ptx.cuh of the emulator: stands in for ../ptx.cuh. Written from what ../ptx.cuh says of
// barriers, tiles, descriptors and fragments, not from kernels.
#ifndef RATTN_PTX_CUH
#define RATTN_PTX_CUH

#include <cuda.h>

#include "device.cuh"

namespace emulate {

// Barriers in shared memory. An address of another block of the cluster has its rank + 1 in
// the highest byte.
void init_barrier(uint32_t b, int arrivals);
void arrive(uint32_t b, int bytes);  // and announce bytes
void wait_phase(uint32_t b, uint32_t parity);
bool phase_ended(uint32_t b, uint32_t parity);

// x, y and z, and w of a map of 4 dimensions.
void load_box(uint32_t to, const CUtensorMap *map, int x, int y, int z, int w, uint32_t full, unsigned mask);
void store_word(uint32_t to, uint32_t word, uint32_t b);
void load_row(uint32_t to, const void *from, uint32_t bytes, uint32_t full);
void store_row(void *to, uint32_t from, uint32_t bytes);  // done when waited for and no sooner
void store_none();
void wait_rows(int pending);
void store_matrices(uint32_t address, const uint32_t (&r)[4]);

// A product of a warpgroup, as one of its threads knows it.
struct Product {
  float *d;
  int columns;
  const uint32_t *fragment;  // a in registers, or NULL
  uint64_t a, b;             // descriptors
  bool a_mn_major, b_mn_major, add;
  float (*widen)(uint16_t);
};
void issue(const Product &p);
void commit();
void wait_groups(int pending);

}  // namespace emulate

namespace rattn {

DEVICE void mbarrier_init(uint32_t b, uint32_t arrivals) { emulate::init_barrier(b, (int)arrivals); }
DEVICE void fence_mbarrier_init() {}
DEVICE void mbarrier_arrive(uint32_t b) { emulate::arrive(b, 0); }
constexpr uint32_t WARP_ARRIVALS = 1;
DEVICE void mbarrier_arrive_warp(uint32_t b, int lane) {
  __syncwarp();
  if (lane == 0) mbarrier_arrive(b);
}
DEVICE void mbarrier_expect(uint32_t b, uint32_t bytes) { emulate::arrive(b, (int)bytes); }
DEVICE void mbarrier_arrive_cluster(uint32_t b) { emulate::arrive(b, 0); }
DEVICE bool mbarrier_try(uint32_t b, uint32_t parity) { return emulate::phase_ended(b, parity); }
DEVICE void mbarrier_wait(uint32_t b, uint32_t parity) { emulate::wait_phase(b, parity); }
DEVICE void fence_async() {}

DEVICE uint32_t cluster_rank() { return emulate::rank; }
DEVICE void cluster_sync() { emulate::cluster_barrier(); }
DEVICE uint32_t map_shared(uint32_t address, uint32_t rank) { return address | (rank + 1) << 24; }
DEVICE void store_async(uint32_t address, uint32_t word, uint32_t b) {
  emulate::store_word(address, word, b);
}
DEVICE uint32_t tile_memory() { return 1024; }

DEVICE void tma_load(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t full) {
  emulate::load_box(to, map, x, y, z, 0, full, 1u << emulate::rank);
}
DEVICE void tma_load_multicast(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t full,
                               uint16_t mask) {
  emulate::load_box(to, map, x, y, z, 0, full, mask);
}
DEVICE void tma_load_multicast(uint32_t to, const CUtensorMap *map, int x, int y, int z, int w, uint32_t full,
                               uint16_t mask) {
  emulate::load_box(to, map, x, y, z, w, full, mask);
}

template <int N>
DEVICE void grow_registers() {}
template <int N>
DEVICE void shrink_registers() {}

DEVICE uint32_t swizzled(uint32_t box, uint32_t row, uint32_t piece) {
  return box + row * 128 + ((piece ^ (row & 7)) << 4);
}
DEVICE uint32_t fragment_address(uint32_t box, uint32_t warp, uint32_t lane, uint32_t step) {
  return swizzled(box, 16 * warp + lane % 16, 2 * step + lane / 16);
}
DEVICE void stmatrix(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  emulate::store_matrices(address, {r0, r1, r2, r3});
}
DEVICE uint64_t descriptor(uint32_t address, uint32_t leading = 16) {
  return (address & 0x3ffff) >> 4 | (uint64_t)(leading >> 4 & 0x3fff) << 16 | (uint64_t)(1024 >> 4) << 32 |
         (uint64_t)1 << 62;
}
constexpr uint64_t steps(uint32_t bytes) { return bytes >> 4; }

DEVICE void wgmma_fence() {}
DEVICE void wgmma_commit() { emulate::commit(); }
template <int N>
DEVICE void wgmma_wait() {
  emulate::wait_groups(N);
}
template <int N>
DEVICE void keep(float (&)[N]) {}

constexpr int K_MAJOR = 0, MN_MAJOR = 1;

template <class T>
float widen(uint16_t x) {
  return T::low(x);
}
template <class T, int TA, int TB, int N>
DEVICE void wgmma_ss(float (&d)[N], uint64_t a, uint64_t b, bool add) {
  emulate::issue({d, 2 * N, nullptr, a, b, TA == MN_MAJOR, TB == MN_MAJOR, add, widen<T>});
}
template <class T, int TB, int N>
DEVICE void wgmma_rs(float (&d)[N], const uint32_t (&a)[4], uint64_t b, bool add) {
  emulate::issue({d, 2 * N, a, 0, b, false, TB == MN_MAJOR, add, widen<T>});
}

DEVICE bool barrier_or(int id, int threads, bool x) { return emulate::barrier_or(id, threads, x); }
DEVICE void load_shared(float &x, float &y, uint32_t address) {
  memcpy(&x, emulate::shared + address, 4);
  memcpy(&y, emulate::shared + address + 4, 4);
}
DEVICE uint4 load_shared4(uint32_t address) {
  uint4 w;
  memcpy(&w, emulate::shared + address, 16);
  return w;
}
DEVICE void store_shared4(uint32_t address, uint4 w) { memcpy(emulate::shared + address, &w, 16); }
// A launch is done when it returns, so kernels do not overlap.
DEVICE void prefetch_l2(const void *) {}
DEVICE void start_dependents() {}
DEVICE void wait_prerequisites() {}

DEVICE void bulk_store(void *to, uint32_t from, uint32_t bytes) { emulate::store_row(to, from, bytes); }
DEVICE void bulk_store_none() { emulate::store_none(); }
template <int N>
DEVICE void bulk_wait_read() {
  emulate::wait_rows(N);
}
DEVICE void bulk_wait() { emulate::wait_rows(0); }
DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t full) {
  emulate::load_row(to, from, bytes, full);
}

DEVICE void barrier_arrive(int id, int threads) { emulate::barrier_arrive(id, threads); }

}  // namespace rattn

#endif
