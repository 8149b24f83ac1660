// hopper_forward.cuh: the forward for head_dim in (256, 512], sm_90a.
//
// A block of 4 warpgroups computes tiles of 64 query rows, one after the other:
//
//   load    K, V, Q and the schedule, a warp each: one thread issues TMA loads
//   scores  s = q k^T of 64 keys, the softmax, weights p into shared memory
//   values  two warpgroups: out += p v, 256 columns each
//
// All wait for each other by mbarriers alone: FULL ones tell that a buffer holds what it
// should, EMPTY ones that it may be filled again. Order decides the speed: the tensor cores
// starve the narrow products of scores while wide ones wait. So the weights of tile j may be
// multiplied (GO) only when most products of the scores of tile j + 1 are done.
//
// Rows of a tile are the heads that share a KV head, as far as they are a power of 2, of
// as many tokens as make 64 rows. Two blocks, a cluster, take neighbouring tiles and go
// over the same keys: each loads one half of a slot and multicasts it, so that L2 is read
// once for both. Clusters draw their pairs of tiles from a counter. Which cluster computes
// a tile changes no bit of it.
//
// Keys and values come in slots of two boxes [64 keys][64 dims] (16 KB); those of keys hold
// dims 128 c, those of values columns 256 h + 128 n for warpgroup h, slot h + 2 n.
#ifndef RATTN_HOPPER_FORWARD_CUH
#define RATTN_HOPPER_FORWARD_CUH

#include "hopper_fold.cuh"

namespace rattn {
namespace {

enum {
  ROWS = 64,
  KEYS = 64,
  WARPGROUPS = 4,
  BOX = 64 * 128,  // bytes
  SLOT = 2 * BOX,
  BOXES = 8,  // of a row of 512 dims
  SLOTS = 4,  // of a ring: one tile of keys, or of values
  // The first steps (of 16 dims) of q are kept in registers. With none the kernel is 5%
  // slower; more do not fit.
  REGISTER_STEPS = 20,
  STEPS = 32,
  // So many steps are left of the scores of a tile when the weights of the tile before may
  // be multiplied: about the time that it takes to start.
  GO_STEPS = 6,
};

// Register budgets: 4 x 128 in all.
enum { LOAD_REGISTERS = 24, SCORE_REGISTERS = 168, VALUE_REGISTERS = 160 };

// Offsets in shared memory. The two halves of q are loaded apart: the first is free as
// soon as its fragments are in registers.
enum : uint32_t {
  Q_AT = 0,
  K_AT = Q_AT + BOXES * BOX,
  V_AT = K_AT + SLOTS * SLOT,
  P_AT = V_AT + SLOTS * SLOT,           // two buffers
  FACTOR_AT = P_AT + 2 * BOX,           // float [2][64]: what rows of out are to be multiplied with,
  MOVED_AT = FACTOR_AT + 2 * 4 * ROWS,  // int [2][4]: if any row of the warp is
  NOW_AT = MOVED_AT + 2 * 4 * 4,        // float [64]: factors of the result
  OLD_AT = NOW_AT + 4 * ROWS,           // float [64]: of what was there; < 0: leave it alone
  ODD_AT = OLD_AT + 4 * ROWS,           // int [2][2]: keys from, to where values had Inf or NaN
  UNIT_AT = ODD_AT + 2 * 2 * 4,         // int [2]
  BARRIERS_AT = UNIT_AT + 2 * 4,
  // Barriers, 8 bytes each. EMPTY ones of rings and UNIT_EMPTY count warps of both blocks.
  K_FULL = BARRIERS_AT,
  K_EMPTY = K_FULL + 8 * SLOTS,
  V_FULL = K_EMPTY + 8 * SLOTS,
  V_EMPTY = V_FULL + 8 * SLOTS,
  P_FULL = V_EMPTY + 8 * SLOTS,
  P_EMPTY = P_FULL + 8 * 2,
  P_GO = P_EMPTY + 8 * 2,
  Q_FULL = P_GO + 8 * 2,
  Q_EMPTY = Q_FULL + 8 * 2,
  RESULT_FULL = Q_EMPTY + 8 * 2,
  RESULT_EMPTY = RESULT_FULL + 8,
  UNIT_FULL = RESULT_EMPTY + 8,
  UNIT_EMPTY = UNIT_FULL + 8 * 2,
  SHARED_BYTES = UNIT_EMPTY + 8 * 2 + 1024,  // tiles start on multiples of 1024 bytes
};
static_assert(BARRIERS_AT % 8 == 0 && SHARED_BYTES <= 227 * 1024 && GO_STEPS > 0 && GO_STEPS < 8, "");
// Warps, or single lanes, of a block that read the schedule: load, scores, values.
enum { READERS = 4 + 4 + 8 };

struct Params {
  Call call;          // call.tiles: tiles of rows of a head block, an even number
  int32_t pack_bits;  // a tile is 1 << pack_bits heads of 64 >> pack_bits tokens
  int32_t group;      // heads that share a KV head
  int32_t pairs;      // of tiles
  int32_t units;      // pairs times blocks of heads
  int32_t *next;      // the next unit
};

// A pair of tiles, and the block's own of the two.
struct Unit {
  int token, head, kv_head;  // the first of the tile
  int start, steps;          // keys that the pair sees: so many tiles from start on
  int all_lo, all_hi;        // keys that all rows of the own tile see
};

// The last rows first, which see the most of a causal mask.
DEVICE Unit unit_of(const Params &p, int index, int rank) {
  Unit u;
  const int block = index / p.pairs, pair = p.pairs - 1 - (index - block * p.pairs);
  u.token = (2 * pair + rank) << (6 - p.pack_bits);
  u.head = block << p.pack_bits;
  u.kv_head = u.head / p.group;
  const Seen own = p.call.seen[2 * pair + rank], other = p.call.seen[2 * pair + (rank ^ 1)];
  u.start = min(own.lo, other.lo);
  const int end = max(own.hi, other.hi);
  u.steps = u.start < end ? (end - u.start + KEYS - 1) / KEYS : 0;
  u.all_lo = own.all_lo, u.all_hi = own.all_hi;
  return u;
}

// The units of a cluster in turn, as one warp (or one lane of it) gets them.
struct Schedule {
  const Params &p;
  uint32_t base, rank;
  uint32_t count = 0;

  // False at the end. Units of which nothing is to be written are left out.
  template <bool WARP>
  DEVICE bool next(Unit &u) {
    for (;;) {
      const uint32_t slot = count & 1;
      mbarrier_wait(base + UNIT_FULL + 8 * slot, count >> 1 & 1);
      const int index = load_shared(base + UNIT_AT + 4 * slot);
      count++;
      if (WARP) __syncwarp();
      if (!WARP || threadIdx.x % 32 == 0)
        mbarrier_arrive_cluster(map_shared(base + UNIT_EMPTY + 8 * slot, 0));
      if (index >= p.units) return false;
      u = unit_of(p, index, rank);
      if (u.steps > 0 || p.call.first) return true;
    }
  }
};

// One thread of a block: announces units to it. That of block 0 draws them, ahead of use,
// for both.
DEVICE void draw_units(const Params &p, uint32_t base, uint32_t rank) {
  for (uint32_t count = 0;; count++) {
    const uint32_t slot = count & 1, parity = count >> 1 & 1;
    const uint32_t word = base + UNIT_AT + 4 * slot, full = base + UNIT_FULL + 8 * slot;
    if (rank == 0) {
      mbarrier_wait(base + UNIT_EMPTY + 8 * slot, parity ^ 1);
      const int index = atomicAdd(p.next, 1);
      for (int r = 0; r < 2; r++) store_async(map_shared(word, r), index, map_shared(full, r));
    }
    mbarrier_expect(full, 4);
    mbarrier_wait(full, parity);
    const int index = load_shared(word);
    mbarrier_arrive_cluster(map_shared(base + UNIT_EMPTY + 8 * slot, 0));
    if (index >= p.units) return;
  }
}

// One thread: K, or V.
template <bool VALUES>
DEVICE void load_ring(const Params &p, const CUtensorMap *map, uint32_t base, int rank) {
  Schedule schedule = {p, base, (uint32_t)rank};
  const uint32_t at = base + (VALUES ? V_AT : K_AT), full = base + (VALUES ? V_FULL : K_FULL),
                 empty = base + (VALUES ? V_EMPTY : K_EMPTY);
  uint32_t parity = 1;
  Unit u;
  while (schedule.next<false>(u)) {
    for (int j = 0; j < u.steps; j++, parity ^= 1)
#pragma unroll 1
      for (int slot = 0; slot < SLOTS; slot++) {  // as a loop: there are few registers
        const int x = VALUES ? slot % 2 * 256 + slot / 2 * 128 : slot * 128;
        mbarrier_wait(empty + 8 * slot, parity);
        mbarrier_expect(full + 8 * slot, SLOT);
        tma_load_multicast(at + slot * SLOT + rank * BOX, map, x + rank * 64, u.kv_head, u.start + j * KEYS,
                           full + 8 * slot, 3);
      }
  }
}

// One thread: Q.
DEVICE void load_q(const Params &p, const CUtensorMap *map, uint32_t base, int rank) {
  Schedule schedule = {p, base, (uint32_t)rank};
  uint32_t parity = 1;
  Unit u;
  while (schedule.next<false>(u)) {
    if (u.steps == 0) continue;
    for (int half = 0; half < 2; half++) {
      mbarrier_wait(base + Q_EMPTY + 8 * half, parity);
      mbarrier_expect(base + Q_FULL + 8 * half, BOXES / 2 * BOX);
      for (int box = half * BOXES / 2; box < (half + 1) * BOXES / 2; box++)
        tma_load(base + Q_AT + box * BOX, map, box * 64, u.head, u.token, base + Q_FULL + 8 * half);
    }
    parity ^= 1;
  }
}

// Lets both blocks of the cluster fill a slot again.
DEVICE void release_slot(uint32_t empty, int lane) {
  if (lane == 0) {
    mbarrier_arrive_cluster(map_shared(empty, 0));
    mbarrier_arrive_cluster(map_shared(empty, 1));
  }
}

}  // namespace
}  // namespace rattn

#endif
