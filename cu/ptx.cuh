// ptx.cuh: what sm_90a has over sm_80, one function an instruction: barriers in shared
// memory (mbarrier), tensor loads (TMA), clusters, register budgets, and matrix products
// of a warpgroup (wgmma). Names not here (ldmatrix, barrier, Bf16, F16) are in device.cuh.
//
// How a kernel uses it:
//
//   barriers    mbarrier_init by one thread, fence_mbarrier_init, then a sync of the block
//               (of the cluster, where other blocks arrive). A phase ends when all arrivals
//               and all announced bytes are in; mbarrier_wait(b, p) returns when the phase
//               of parity p is over. The first phase has parity 0, and a wait for parity 1
//               on a fresh barrier returns at once. Nobody may wait two phases ahead.
//   loads       one thread: mbarrier_expect(full, bytes), then tma_load; data is there when
//               full's phase is over. A multicast puts the box at the same offset of each
//               block in mask, and counts its bytes on the barrier at the same offset there:
//               each block expects what it gets, from whichever block.
//   products    wgmma_fence(); wgmma_ss/rs...; wgmma_commit(); wgmma_wait<0>(); keep(d): all
//               128 threads together. Until the wait accumulators, A registers and tiles in
//               shared memory must be left alone, and no branch may end in between.
//               What threads wrote to a tile needs fence_async() by each writer, then a
//               barrier, before a product or a TMA store may read it.
//   registers   shrink_registers / grow_registers by all warps of a warpgroup; the sum over
//               the block stays what was launched. An operand of wgmma starts at register
//               24: accumulators + A registers + 26, rounded up to 8, must fit the budget.
//               m64n256 needs 160, and does not compile in blocks of over 384 threads.
//
// Tiles. A box of R rows of 64 elements of 16 bits is R rows of 128 bytes with the 16-byte
// piece c of row r at piece c ^ (r & 7), from a multiple of 1024 bytes on: what a tensor
// map with 128-byte swizzle writes, and ldmatrix and stmatrix address by swizzled().
// Descriptors of such tiles (addresses are stepped by adding bytes >> 4):
//
//   operand          stored as                      leading        step of 16 in k
//   A, B  K_MAJOR    boxes of [rows][64 k]          any            32 bytes; next box after 4
//   A     MN_MAJOR   one box [k][64 m]              any            2048 bytes
//   B     MN_MAJOR   boxes g of [R k][64 n]         R * 128        2048 bytes
//
// B's rows are n in K_MAJOR (b[n][k]), k in MN_MAJOR (b[k][n]). The boxes of B MN_MAJOR
// lie R * 128 bytes apart.
//
// Fragments, of warp w and lane l of the warpgroup: d[4j] and d[4j + 1] are row
// 16w + l / 4, columns 8j + 2 (l % 4) and the next; d[4j + 2], d[4j + 3] are 8 rows below.
// A in registers: a[0] is row 16w + l / 4, k 2 (l % 4) and the next, a[1] 8 rows below,
// a[2] and a[3] the same with k + 8: ldmatrix of fragment_address gives it, and so do the
// packed accumulators d[8g..8g+7] for k = 16g.
#ifndef RATTN_PTX_CUH
#define RATTN_PTX_CUH

#include <cuda.h>

#include "device.cuh"

namespace rattn {

// ---- barriers in shared memory; b is an address in shared memory, 8-byte aligned ----

DEVICE void mbarrier_init(uint32_t b, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
}
DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void mbarrier_arrive(uint32_t b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
// A warp arrives: what its lanes have read and written comes before. Barriers that warps arrive
// at are made for so many WARP_ARRIVALS. RATTN_RACECHECK is for compute-sanitizer's racecheck,
// which takes one lane's arrival for that lane's alone.
#ifdef RATTN_RACECHECK
constexpr uint32_t WARP_ARRIVALS = 32;
DEVICE void mbarrier_arrive_warp(uint32_t b, int) { mbarrier_arrive(b); }
#else
constexpr uint32_t WARP_ARRIVALS = 1;
DEVICE void mbarrier_arrive_warp(uint32_t b, int lane) {
  __syncwarp();
  if (lane == 0) mbarrier_arrive(b);
}
#endif
// Arrives, and announces bytes that loads will bring.
DEVICE void mbarrier_expect(uint32_t b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
// Arrives at a barrier of the cluster, of an address by map_shared. Without .release.cluster,
// which would become a fence of the whole GPU (1.1 for 0.4 microseconds): it orders nothing
// but the barrier itself and what the async proxy has read or written.
DEVICE void mbarrier_arrive_cluster(uint32_t b) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(b) : "memory");
}
DEVICE bool mbarrier_try(uint32_t b, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(b), "r"(parity)
      : "memory");
  return done;
}
// No limit of time: a trap in the loop makes ptxas give up the register budgets.
DEVICE void mbarrier_wait(uint32_t b, uint32_t parity) {
  while (!mbarrier_try(b, parity)) {
  }
}

// Orders this thread's writes to shared memory before reads of wgmma and TMA.
DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters ----

DEVICE uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
DEVICE void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// The address that `address` of this block has in block rank.
DEVICE uint32_t map_shared(uint32_t address, uint32_t rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}

// Writes 4 bytes to shared memory of the cluster, and counts them on barrier b of the same
// block; both addresses by map_shared. Whoever has waited for b sees the word.
DEVICE void store_async(uint32_t address, uint32_t word, uint32_t b) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address),
      "r"(word), "r"(b)
      : "memory");
}

// ---- tensor loads; map is in kernel parameters (__grid_constant__) ----

DEVICE void prefetch_map(const CUtensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Loads the box at element x of the rows (y, z) of a tensor of 3 dimensions.
DEVICE void tma_load(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t full) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(full)
      : "memory");
}
DEVICE void tma_load_multicast(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t full,
                               uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(full), "h"(mask)
      : "memory");
}

// ---- register budgets ----

template <int N>
DEVICE void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEVICE void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- tiles ----

// The first multiple of 1024 in the block's dynamic shared memory, of which a launch asks
// for 1024 bytes more.
DEVICE uint32_t tile_memory() {
  extern __shared__ uint8_t dynamic_memory[];
  return (shared_address(dynamic_memory) + 1023) & ~1023u;
}

// Where the 16-byte piece of a row of a box lies.
DEVICE uint32_t swizzled(uint32_t box, uint32_t row, uint32_t piece) {
  return box + row * 128 + ((piece ^ (row & 7)) << 4);
}
// The address that lane gives to ldmatrix or stmatrix for step (of 16 in k, 0 to 3) of A
// in a box of 64 rows; warp is of the warpgroup.
DEVICE uint32_t fragment_address(uint32_t box, uint32_t warp, uint32_t lane, uint32_t step) {
  return swizzled(box, 16 * warp + lane % 16, 2 * step + lane / 16);
}
// The counterpart of ldmatrix.
DEVICE void stmatrix(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Descriptor of a swizzled tile; leading is as in the table above.
DEVICE uint64_t descriptor(uint32_t address, uint32_t leading = 16) {
  return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4 & 0x3fff) << 16 |
         (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
// Bytes as a step of a descriptor.
DEVICE constexpr uint64_t steps(uint32_t bytes) { return bytes >> 4; }

// ---- products of a warpgroup: d = (add ? d : 0) + a b, [64, N] of N / 2 registers ----

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N groups are under way.
template <int N>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// After a wait: keeps uses of d from moving in front of it.
template <int N>
DEVICE void keep(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

constexpr int K_MAJOR = 0, MN_MAJOR = 1;

#define R32_0                                                                                      \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31"
#define R32_1                                                                                     \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R32_2                                                                                     \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86," \
  "%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define R32_3                                                                                         \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115," \
  "%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define D8(i)                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)

// By N: the registers of d; the operands a, b and transpositions; whether to add.
#define REGISTERS_64 R32_0
#define REGISTERS_128 R32_0 R32_1
#define REGISTERS_256 R32_0 R32_1 R32_2 R32_3
#define OUTPUTS_64 D32(0)
#define OUTPUTS_128 D32(0), D32(32)
#define OUTPUTS_256 D32(0), D32(32), D32(64), D32(96)
#define ADD_SS_64 "%34"
#define ADD_SS_128 "%66"
#define ADD_SS_256 "%130"
#define SS_64 "%32, %33, p, 1, 1, %35, %36"
#define SS_128 "%64, %65, p, 1, 1, %67, %68"
#define SS_256 "%128, %129, p, 1, 1, %131, %132"
#define ADD_RS_64 "%37"
#define ADD_RS_128 "%69"
#define ADD_RS_256 "%133"
#define RS_64 "{%32, %33, %34, %35}, %36, p, 1, 1, %38"
#define RS_128 "{%64, %65, %66, %67}, %68, p, 1, 1, %70"
#define RS_256 "{%128, %129, %130, %131}, %132, p, 1, 1, %134"

// The instruction's text; ADD is the number of the operand that tells whether to add.
#define WGMMA_TEXT(N, TYPE, ADD, OPERANDS) \
  "{\n.reg .pred p;\n"                     \
  "setp.ne.b32 p, " ADD                    \
  ", 0;\n"                                 \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS_##N "}, " OPERANDS ";\n}\n"
#define WGMMA_SS(N, TYPE)                              \
  asm volatile(WGMMA_TEXT(N, TYPE, ADD_SS_##N, SS_##N) \
               : OUTPUTS_##N                           \
               : "l"(a), "l"(b), "r"((int)add), "n"(TA), "n"(TB))
#define WGMMA_RS(N, TYPE)                              \
  asm volatile(WGMMA_TEXT(N, TYPE, ADD_RS_##N, RS_##N) \
               : OUTPUTS_##N                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(TB))

// wgmma_ss<T, TA, TB>(d, a, b, add): a and b are descriptors; d of 32, 64 or 128 registers.
// wgmma_rs<T, TB>(d, a, b, add): a is a fragment of 4 registers.
#define WGMMA(N)                                                                        \
  template <class T, int TA, int TB>                                                    \
  DEVICE void wgmma_ss(float(&d)[N / 2], uint64_t a, uint64_t b, bool add) {            \
    if constexpr (T::UNIT == Bf16::UNIT)                                                \
      WGMMA_SS(N, "bf16");                                                              \
    else                                                                                \
      WGMMA_SS(N, "f16");                                                               \
  }                                                                                     \
  template <class T, int TB>                                                            \
  DEVICE void wgmma_rs(float(&d)[N / 2], const uint32_t(&a)[4], uint64_t b, bool add) { \
    if constexpr (T::UNIT == Bf16::UNIT)                                                \
      WGMMA_RS(N, "bf16");                                                              \
    else                                                                                \
      WGMMA_RS(N, "f16");                                                               \
  }
WGMMA(64)
WGMMA(128)
WGMMA(256)

// ---- for hopper_backward.cuh ----

// The box at element x of a tensor of 4 dimensions.
DEVICE void tma_load_multicast(uint32_t to, const CUtensorMap *map, int x, int y, int z, int w, uint32_t full,
                               uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(full), "h"(mask)
      : "memory");
}

// A barrier of threads threads of the block that tells all whether x was true for any.
DEVICE bool barrier_or(int id, int threads, bool x) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.b32 p, %3, 0;\n"
      "barrier.cta.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"((int)x)
      : "memory");
  return any;
}

DEVICE void load_shared(float &x, float &y, uint32_t address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
DEVICE uint4 load_shared4(uint32_t address) {
  uint4 w;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "r"(address)
               : "memory");
  return w;
}
DEVICE void store_shared4(uint32_t address, uint4 w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w.x), "r"(w.y), "r"(w.z),
               "r"(w.w)
               : "memory");
}

// Programmatic dependent launch: lets the next kernel of the stream, if it was launched to
// overlap, start once all blocks of this one have come here or ended; and waits until the
// kernels that this one overlaps are complete, their results visible.
DEVICE void start_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Brings the 128 bytes around an address into L2.
DEVICE void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Copies in the background of bytes (a multiple of 16) that lie in a row: to global memory, a
// group each, or a group of nothing; and from it, counted on a barrier. bulk_wait_read<N> returns
// when at most N of this thread's groups have yet to be read, bulk_wait when all are written.
DEVICE void bulk_store_none() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void bulk_store(void *to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
  bulk_store_none();
}
template <int N>
DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(full)
      : "memory");
}

// ---- for hopper_forward_d256.cuh ----

// Comes to barrier number id of threads threads of the block without waiting for the others.
DEVICE void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#define REGISTERS_96 R32_0 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define REGISTERS_192 R32_0 R32_1 R32_2
#define OUTPUTS_96 D32(0), D8(32), D8(40)
#define OUTPUTS_192 D32(0), D32(32), D32(64)
#define ADD_SS_96 "%50"
#define ADD_SS_192 "%98"
#define SS_96 "%48, %49, p, 1, 1, %51, %52"
#define SS_192 "%96, %97, p, 1, 1, %99, %100"
#define ADD_RS_96 "%53"
#define ADD_RS_192 "%101"
#define RS_96 "{%48, %49, %50, %51}, %52, p, 1, 1, %54"
#define RS_192 "{%96, %97, %98, %99}, %100, p, 1, 1, %102"
WGMMA(96)
WGMMA(192)

}  // namespace rattn

#endif
