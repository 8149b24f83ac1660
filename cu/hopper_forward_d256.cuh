// hopper_forward_d256.cuh: the forward for head_dim up to 256, sm_90a.
//
// A block computes tiles of 64 rows a warpgroup, one after the other. One more warpgroup
// serves them: a thread of its first warp draws tiles from a counter and loads Q, K and V by
// TMA into rings of slots; its other warps clean values, and have what results are added to
// brought into L2.
//
// A warpgroup has scores, weights and sums of its rows in registers. Tensor cores should
// never wait for a softmax: the scores of key tile j + 1 are issued together with the sum of
// tile j, and while one warpgroup's products run another one has its softmax (they take turns,
// by barriers of the block).
//
// Rows of a tile are the heads that share a KV head, as far as they are a power of 2, of
// neighbouring tokens, so that K and V are read once for all of them.
#ifndef RATTN_HOPPER_FORWARD_D256_CUH
#define RATTN_HOPPER_FORWARD_D256_CUH

#include "hopper_fold.cuh"

namespace rattn {
namespace {

enum {
  STAGES = 2,    // slots for tiles of K, and as many of V
  CLEANERS = 3,  // warps
};

// Tiles of 64 GROUPS rows by KEYS keys, head_dim up to DIM.
template <class T_, int DIM_, int GROUPS_, int KEYS_>
struct Shape {
  using T = T_;
  static constexpr int DIM = DIM_, GROUPS = GROUPS_, KEYS = KEYS_;
  static constexpr int ROWS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1);
  // Register budgets: 3 x 168 or 4 x 128 in all.
  static constexpr int LOAD_REGISTERS = GROUPS == 2 ? 40 : 32, REGISTERS = GROUPS == 2 ? 232 : 160;

  // Shared memory: boxes of 64 dims, [rows][64] for Q, [keys][64] for K and V.
  static constexpr int BOXES = (DIM + 63) / 64, Q_BOX = ROWS * 128, KEY_BOX = KEYS * 128,
                       SLOT = BOXES * KEY_BOX;
  static constexpr uint32_t Q_AT = 0, K_AT = BOXES * Q_BOX, V_AT = K_AT + STAGES * SLOT,
                            UNIT_AT = V_AT + STAGES * SLOT;  // two, of 32 bytes
  // Barriers, 8 bytes each.
  static constexpr uint32_t K_FULL = UNIT_AT + 2 * 32, K_EMPTY = K_FULL + 8 * STAGES,
                            V_FULL = K_EMPTY + 8 * STAGES, V_CLEAN = V_FULL + 8 * STAGES,
                            V_EMPTY = V_CLEAN + 8 * STAGES, Q_FULL = V_EMPTY + 8 * STAGES,
                            Q_EMPTY = Q_FULL + 8, UNIT_FULL = Q_EMPTY + 8, UNIT_EMPTY = UNIT_FULL + 16,
                            SHARED_BYTES = UNIT_EMPTY + 16 + 1024;  // tiles start on multiples of 1024
  static_assert(SHARED_BYTES <= 227 * 1024 && KEYS % 16 == 0, "");
};

struct Params {
  Call call;          // call.tiles: tiles of tokens
  int32_t pack_bits;  // a tile is 1 << pack_bits heads of ROWS >> pack_bits tokens
  int32_t group;      // heads that share a KV head
  int32_t blocks;     // of heads
  int32_t section;    // blocks of heads whose keys and values fit L2 together
  int32_t units;      // tiles times blocks
  int32_t *next;      // the next unit
};

// A tile of rows, as the loading thread announces it.
struct Unit {
  int token, head;     // the first of the tile
  int start, steps;    // keys: so many tiles from start on; steps < 0 tells that there is no more
  int all_lo, all_hi;  // keys that all rows see

  // Whether tile j of keys has some that a row does not see.
  template <class S>
  DEVICE bool partial(int j) const {
    const int first = start + j * S::KEYS;
    return first < all_lo || first + S::KEYS > all_hi;
  }
};

// Units go section by section; in one, the last rows first, which see the most of a causal mask.
template <class S>
DEVICE Unit unit_of(const Params &p, int index) {
  const int tiles = p.call.tiles, from = index / (p.section * tiles) * p.section,
            blocks = min(p.section, p.blocks - from), rest = index - from * tiles;
  if (index >= p.units) return {0, 0, 0, -1, 0, 0};
  const int tile = tiles - 1 - rest / blocks, block = from + rest % blocks;
  const Seen seen = p.call.seen[tile];
  const int steps = seen.lo < seen.hi ? (seen.hi - seen.lo + S::KEYS - 1) / S::KEYS : 0;
  return {tile * (S::ROWS >> p.pack_bits), block << p.pack_bits, seen.lo, steps, seen.all_lo, seen.all_hi};
}

// Tile number n of K or V, over all units of a block: its slot, and the parity of its barriers.
DEVICE uint32_t slot_of(uint32_t n) { return n % STAGES; }
DEVICE uint32_t parity_of(uint32_t n) { return n / STAGES & 1; }

// One thread: draws units, announces them and loads what they need, in the order of use.
template <class S>
DEVICE void load_units(const Params &p, const CUtensorMap *q, const CUtensorMap *k, const CUtensorMap *v,
                       uint32_t base) {
  const Call &c = p.call;
  uint32_t count = 0, keys = 0, values = 0, q_parity = 1;
  const auto load = [&](uint32_t &n, const CUtensorMap *map, uint32_t tiles, uint32_t full, uint32_t empty,
                        int kv_head, int key) {
    full += base + 8 * slot_of(n);
    mbarrier_wait(base + empty + 8 * slot_of(n), parity_of(n) ^ 1);
    mbarrier_expect(full, S::SLOT);
    for (int i = 0; i < S::BOXES; i++)
      tma_load(base + tiles + slot_of(n) * S::SLOT + i * S::KEY_BOX, map, 64 * i, kv_head, key, full);
    n++;
  };
  int index = atomicAdd(p.next, 1);
  for (;;) {
    const Unit u = unit_of<S>(p, index);
    index = atomicAdd(p.next, 1);  // early: it is there when it is needed
    if (u.steps == 0 && !c.first) continue;
    const uint32_t slot = count & 1, words = base + S::UNIT_AT + 32 * slot;
    mbarrier_wait(base + S::UNIT_EMPTY + 8 * slot, (count >> 1 & 1) ^ 1);
    store_shared4(words, {(uint32_t)u.token, (uint32_t)u.head, (uint32_t)u.start, (uint32_t)u.steps});
    store_shared4(words + 16, {(uint32_t)u.all_lo, (uint32_t)u.all_hi, (uint32_t)INT_MAX, 0});
    mbarrier_arrive(base + S::UNIT_FULL + 8 * slot);
    count++;
    if (u.steps < 0) return;
    const int kv_head = u.head / p.group;
    const auto load_values = [&](int j) {
      load(values, v, S::V_AT, S::V_FULL, S::V_EMPTY, kv_head, u.start + j * S::KEYS);
    };
    for (int j = 0; j < u.steps; j++) {
      load(keys, k, S::K_AT, S::K_FULL, S::K_EMPTY, kv_head, u.start + j * S::KEYS);
      if (j > 0) {
        load_values(j - 1);
      } else {
        mbarrier_wait(base + S::Q_EMPTY, q_parity);
        mbarrier_expect(base + S::Q_FULL, S::BOXES * S::Q_BOX);
        for (int i = 0; i < S::BOXES; i++)
          tma_load(base + S::Q_AT + i * S::Q_BOX, q, 64 * i, u.head, u.token, base + S::Q_FULL);
        q_parity ^= 1;
      }
    }
    if (u.steps > 0) load_values(u.steps - 1);
  }
}

// Unit number count, when it is announced.
template <class S>
DEVICE Unit wait_unit(uint32_t base, uint32_t count) {
  mbarrier_wait(base + S::UNIT_FULL + 8 * (count & 1), count >> 1 & 1);
  const uint32_t words = base + S::UNIT_AT + 32 * (count & 1);
  const uint4 a = load_shared4(words), b = load_shared4(words + 16);
  return {(int)a.x, (int)a.y, (int)a.z, (int)a.w, (int)b.x, (int)b.y};
}
// Where Inf and NaN among its values were found, once they are clean: keys from, to.
template <class S>
DEVICE uint32_t odd_at(uint32_t base, uint32_t count) {
  return base + S::UNIT_AT + 32 * (count & 1) + 24;
}
// A warp has done with it.
template <class S>
DEVICE void end_unit(uint32_t base, uint32_t count) {
  mbarrier_arrive_warp(base + S::UNIT_EMPTY + 8 * (count & 1), threadIdx.x % 32);
}

// Brings out and lse of a unit's rows into L2.
template <class S>
DEVICE void prefetch_results(const Params &p, const Unit &u, int thread, int threads) {
  const Call &c = p.call;
  const int rows = min((int)S::ROWS, (c.rows - u.token) << p.pack_bits), mask = (1 << p.pack_bits) - 1;
  const auto at = [&](int r) {
    return (int64_t)(u.token + (r >> p.pack_bits)) * c.heads + u.head + (r & mask);
  };
  prefetch_rows<S::DIM>(c, rows, 0, thread, threads, [&](int r) { return c.out + at(r) * c.dim; });
  for (int r = thread; r < rows; r += threads) prefetch_l2(c.lse + at(r));
}

// The cleaners: values of tiles that some row does not see whole are freed of Inf and NaN
// before they are multiplied; the others are passed on as they are.
template <class S>
DEVICE void clean_units(const Params &p, uint32_t base, int warp) {
  const int lane = threadIdx.x % 32;
  uint32_t values = 0;
  for (uint32_t count = 0;; count++) {
    const Unit u = wait_unit<S>(base, count);
    if (u.steps < 0) return;
    for (int j = 0; j < u.steps; j++, values++) {
      const uint32_t slot = slot_of(values);
      if (!p.call.first && j == max(0, u.steps - 3))
        prefetch_results<S>(p, u, 32 * warp + lane, 32 * CLEANERS);
      mbarrier_wait(base + S::V_FULL + 8 * slot, parity_of(values));
      if (u.partial<S>(j)) {
        clean_values<typename S::T>(base + S::V_AT + slot * S::SLOT, S::SLOT, 32 * warp + lane, 32 * CLEANERS,
                                    odd_at<S>(base, count), u.start + j * S::KEYS, S::KEYS);
        fence_async();
      }
      mbarrier_arrive_warp(base + S::V_CLEAN + 8 * slot, lane);
    }
    end_unit<S>(base, count);
  }
}

}  // namespace
}  // namespace rattn

#endif
