// hopper.cpp: what sm_90a does in the background: barriers that count bytes, tensor loads,
// products of warpgroups. Loads and products happen at random times, so that a buffer that
// is read too soon, or filled again too soon, shows in the result. Missing fences do not.
#include <string.h>

#include <deque>
#include <map>
#include <vector>

#include "ptx.cuh"

namespace emulate {

namespace {

enum { WARPGROUPS = 4, WIDTH = 64, ALL_BLOCKS = 2 };

struct PhaseBarrier {
  int arrivals, pending, bytes;
  uint32_t phases;  // that are over
};
std::map<uint32_t, PhaseBarrier> phase_barriers[ALL_BLOCKS];

// Products of a warpgroup in the order of issue; one is computed when all threads have come.
struct Warpgroup {
  std::vector<Product> products[128];
  std::vector<size_t> groups[128];  // ends of groups, in products
  size_t done;
};
Warpgroup warpgroups[ALL_BLOCKS][WARPGROUPS];

// Copies of rows to global memory, of a thread of a block.
std::map<std::pair<unsigned, unsigned>, std::deque<std::function<void()>>> rows;

unsigned block_of(uint32_t address) { return address >> 24 ? (address >> 24) - 1 : rank; }
char *at(unsigned block, uint32_t address) {
  require((address & 0xffffff) < SHARED_BYTES, "an address beyond shared memory");
  return shared_of(block) + (address & 0xffffff);
}

PhaseBarrier &barrier_at(unsigned block, uint32_t b) {
  const auto found = phase_barriers[block].find(b & 0xffffff);
  require(found != phase_barriers[block].end(), "a barrier that was not initialised");
  return found->second;
}

void end_phase(PhaseBarrier &b) {
  if (b.pending > 0 || b.bytes != 0) return;
  b.phases++;
  b.pending = b.arrivals;
}

void count_bytes(unsigned block, uint32_t b, int bytes) {
  PhaseBarrier &x = barrier_at(block, b);
  x.bytes -= bytes;
  end_phase(x);
}

// What a tensor map says.
struct Box {
  const uint16_t *base;
  int64_t dims[4], strides[4];  // strides in elements
  int box[4];
};
static_assert(sizeof(Box) <= sizeof(CUtensorMap), "");

Warpgroup &own_warpgroup() { return warpgroups[rank][thread.x / 128]; }

// Element (row, k) of an operand in 128-byte swizzled boxes: rows of 64 elements are k
// (K-major), or k are rows of 64 elements, and boxes lie `leading` bytes apart (MN-major).
// Bits 4 to 6 of an address are changed by bits 7 to 9.
uint16_t element(unsigned block, uint64_t descriptor, bool mn_major, int row, int k) {
  const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  const uint32_t linear =
      start + (mn_major ? row / WIDTH * leading + k * 128 + row % WIDTH * 2 : row * 128 + k * 2);
  uint16_t x;
  memcpy(&x, at(block, linear ^ (linear >> 7 & 7) << 4), 2);
  return x;
}

// Row r, k of a in registers.
uint16_t element(const Warpgroup &w, int r, int k) {
  const int t = r / 16 * 32 + r % 8 * 4 + k % 8 / 2;
  return (uint16_t)(w.products[t][w.done].fragment[r % 16 / 8 + k / 8 * 2] >> k % 2 * 16);
}

void compute(unsigned block, Warpgroup &w) {
  const Product p = w.products[0][w.done];
  for (const auto &of_thread : w.products) {
    const Product &x = of_thread[w.done];
    require(x.columns == p.columns && x.a == p.a && x.b == p.b && x.add == p.add,
            "threads disagree on a product");
  }
  static float a[64][16], b[16][256], d[64][256];
  for (int k = 0; k < 16; k++) {
    for (int r = 0; r < 64; r++)
      a[r][k] = p.widen(p.fragment ? element(w, r, k) : element(block, p.a, p.a_mn_major, r, k));
    for (int n = 0; n < p.columns; n++) b[k][n] = p.widen(element(block, p.b, p.b_mn_major, n, k));
  }
  memset(d, 0, sizeof d);
  for (int r = 0; r < 64; r++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < p.columns; n++) d[r][n] += a[r][k] * b[k][n];
  for (int t = 0; t < 128; t++) {
    float *to = w.products[t][w.done].d;
    for (int i = 0; i < p.columns / 2; i++) {
      const float x = d[t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2];
      to[i] = p.add ? to[i] + x : x;
    }
  }
  w.done++;
}

}  // namespace

void forget_cluster() {
  for (const auto &of_thread : rows) require(of_thread.second.empty(), "a copy that nobody has waited for");
  rows.clear();
  for (auto &of_block : phase_barriers) of_block.clear();
  for (auto &of_block : warpgroups)
    for (Warpgroup &w : of_block) w = {};
}

bool compute_product() {
  for (unsigned block = 0; block < ALL_BLOCKS; block++)
    for (Warpgroup &w : warpgroups[block]) {
      bool all = true;
      for (const auto &of_thread : w.products) all = all && of_thread.size() > w.done;
      if (all) return compute(block, w), true;
    }
  return false;
}

void init_barrier(uint32_t b, int arrivals) {
  phase_barriers[block_of(b)][b & 0xffffff] = {arrivals, arrivals, 0, 0};
}

void arrive(uint32_t b, int bytes) {
  PhaseBarrier &x = barrier_at(block_of(b), b);
  require(x.pending > 0, "more arrivals at a barrier than it counts");
  x.pending--, x.bytes += bytes;
  end_phase(x);
}

bool phase_ended(uint32_t b, uint32_t parity) { return (barrier_at(block_of(b), b).phases & 1) != parity; }

void wait_phase(uint32_t b, uint32_t parity) {
  const PhaseBarrier *x = &barrier_at(block_of(b), b);
  wait_until([=] { return (x->phases & 1) != parity; });
}

void store_word(uint32_t to, uint32_t word, uint32_t b) {
  const unsigned block = block_of(to);
  require(block == block_of(b), "a store counted at another block's barrier");
  later([=] { memcpy(at(block, to), &word, 4), count_bytes(block, b, 4); });
}

void load_box(uint32_t to, const CUtensorMap *map, int x, int y, int z, int w, uint32_t full, unsigned mask) {
  require(to % 1024 == 0, "a box that does not start on 1024 bytes");
  Box m;
  memcpy(&m, map, sizeof m);
  later([=] {
    for (unsigned block = 0; block < ALL_BLOCKS; block++) {
      if (!(mask >> block & 1)) continue;
      const int rows = m.box[1] * m.box[2] * m.box[3];
      for (int r = 0; r < rows; r++)
        for (int i = 0; i < WIDTH; i++) {
          const int64_t c[4] = {x + i, y + r % m.box[1], z + r / m.box[1] % m.box[2],
                                w + r / m.box[1] / m.box[2]};
          bool inside = true;
          const uint16_t *at_c = m.base;
          for (int k = 0; k < 4; k++)
            inside = inside && 0 <= c[k] && c[k] < m.dims[k], at_c += c[k] * m.strides[k];
          const uint16_t e = inside ? *at_c : 0;
          memcpy(at(block, rattn::swizzled(to, r, i / 8) + i % 8 * 2), &e, 2);
        }
      count_bytes(block, full, rows * WIDTH * 2);
    }
  });
}

void load_row(uint32_t to, const void *from, uint32_t bytes, uint32_t full) {
  require(to % 16 == 0 && (uintptr_t)from % 16 == 0 && bytes % 16 == 0, "a copy of unaligned bytes");
  const unsigned block = rank;
  later([=] { memcpy(at(block, to), from, bytes), count_bytes(block, full, (int)bytes); });
}

void store_row(void *to, uint32_t from, uint32_t bytes) {
  require(from % 16 == 0 && (uintptr_t)to % 16 == 0 && bytes % 16 == 0, "a copy of unaligned bytes");
  const char *x = at(rank, from);
  rows[{rank, thread.x}].push_back([=] { memcpy(to, x, bytes); });
}

void store_none() {
  rows[{rank, thread.x}].push_back([] {});
}

void wait_rows(int pending) {
  auto &mine = rows[{rank, thread.x}];
  for (; (int)mine.size() > pending; mine.pop_front()) mine.front()();
}

void store_matrices(uint32_t address, const uint32_t (&r)[4]) {
  struct Args {
    const uint32_t *r;
    uint32_t address;
  } mine = {r, address};
  together(&mine, [](void **all) {
    for (int i = 0; i < 4; i++)
      for (int lane = 0; lane < 32; lane++)
        memcpy(at(rank, ((const Args *)all[8 * i + lane / 4])->address + lane % 4 * 4),
               &((const Args *)all[lane])->r[i], 4);
  });
}

void issue(const Product &p) { own_warpgroup().products[thread.x % 128].push_back(p); }

void commit() {
  Warpgroup &w = own_warpgroup();
  w.groups[thread.x % 128].push_back(w.products[thread.x % 128].size());
}

void wait_groups(int pending) {
  Warpgroup *w = &own_warpgroup();
  const std::vector<size_t> &groups = w->groups[thread.x % 128];
  if ((int)groups.size() <= pending) return;
  const size_t end = groups[groups.size() - 1 - pending];
  wait_until([=] { return w->done >= end; });
}

// cuTensorMapEncodeTiled of what tensor_map.cu asks for.
static CUresult encode_map(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *base,
                           const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (rank < 3 || rank > 4 || box[0] != WIDTH || swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
      (uintptr_t)base % 16)
    return CUDA_ERROR_INVALID_VALUE;
  Box m = {(const uint16_t *)base, {1, 1, 1, 1}, {1, 0, 0, 0}, {1, 1, 1, 1}};
  for (cuuint32_t k = 0; k < rank; k++) {
    if (dims[k] == 0 || box[k] == 0 || box[k] > 256 || (k > 0 && strides[k - 1] % 16))
      return CUDA_ERROR_INVALID_VALUE;
    m.dims[k] = (int64_t)dims[k], m.box[k] = (int)box[k];
    if (k > 0) m.strides[k] = (int64_t)strides[k - 1] / 2;
  }
  memcpy(map, &m, sizeof m);
  return CUDA_SUCCESS;
}

}  // namespace emulate

extern "C" cudaError_t cudaGetDriverEntryPoint(const char *, void **p, unsigned long long,
                                               cudaDriverEntryPointQueryResult *found) {
  *p = (void *)emulate::encode_map, *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
