// hopper_forward_values.cuh: the warpgroups of values: out += p v, and the results at the end.
#ifndef RATTN_HOPPER_FORWARD_VALUES_CUH
#define RATTN_HOPPER_FORWARD_VALUES_CUH

#include "hopper_forward.cuh"

namespace rattn {
namespace {

DEVICE float load_shared_float(uint32_t address) { return __int_as_float(load_shared(address)); }

// Zeros what is Inf or NaN in the values' slots of a warpgroup: weights of 0 do not take it
// out of the sum, as 0 times Inf is NaN. Whether there was any is noted as keys from, to.
template <class T>
DEVICE void clean_slot(uint32_t slot, uint32_t odd_at, int key) {
  bool odd = false;
#pragma unroll 4
  for (int i = threadIdx.x % 128; i < SLOT / 16; i += 128) {
    uint4 *piece = (uint4 *)__cvta_shared_to_generic(slot + i * 16);
    uint4 w = *piece;
    const uint32_t x = odd_halves<T>(w.x), y = odd_halves<T>(w.y), z = odd_halves<T>(w.z),
                   v = odd_halves<T>(w.w);
    if ((x | y | z | v) == 0) continue;
    odd = true;
    w.x &= ~((x >> 15) * 0xffff);
    w.y &= ~((y >> 15) * 0xffff);
    w.z &= ~((z >> 15) * 0xffff);
    w.w &= ~((v >> 15) * 0xffff);
    *piece = w;
  }
  if (odd) {
    int *range = (int *)__cvta_shared_to_generic(odd_at);
    atomicMin(range, key);
    atomicMax(range + 1, key + KEYS);
  }
}

// Adds what clean_slot took out to the results of the rows that see it, and to no others.
// The sum is lost anyway, so its weight is left out. dst is row `token`, columns from
// column on: the thread's own pairs.
template <class T>
DEVICE void add_odd(const Call &c, int kv_head, int token, float *dst, int column, int from, int to) {
  to = min(to, c.tokens);
#pragma unroll 1
  for (int key = max(from, c.lo[token]); key < min(to, c.hi[token]); key++) {
    const uint16_t *v = (const uint16_t *)c.v + key * c.kv_token + (int64_t)kv_head * c.stride;
#pragma unroll 1
    for (int i = 0; i < 32 && column + 8 * i < c.dim; i++) {
      const uint32_t pair = *(const uint32_t *)(v + column + 8 * i), odd = odd_halves<T>(pair);
      if (odd & 0x8000) dst[column + 8 * i] += T::low(pair);
      if ((odd & 0x80000000) && column + 8 * i + 1 < c.dim) dst[column + 8 * i + 1] += T::high(pair);
    }
  }
}

// Brings what the tile's first so many rows hold into L2, 32 columns of a row a thread and turn.
template <class RowOf>
DEVICE void prefetch_rows(const Call &c, int rows, int half, RowOf row_of) {
  for (int i = threadIdx.x % 128; i < rows * 8; i += 128) {
    const int column = 256 * half + i % 8 * 32;
    if (column < c.dim) prefetch_l2(row_of(i / 8) + column);
  }
}

// A warpgroup: columns [256 half, 256 half + 256) of out.
template <class T>
DEVICE void add_values(const Params &p, uint32_t base, int rank, int half) {
  const Call &c = p.call;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
  const uint64_t values = descriptor(base + V_AT + half * SLOT, BOX), weights = descriptor(base + P_AT);
  const uint32_t odd_at = base + ODD_AT + 8 * half;
  Schedule schedule = {p, base, (uint32_t)rank};
  uint32_t value_parity = 0, result_parity = 0, tile = 0;
  Unit u;
  while (schedule.next<true>(u)) {
    const auto row_of = [&](int r) {
      const int mask = (1 << p.pack_bits) - 1;
      return c.out + ((int64_t)(u.token + (r >> p.pack_bits)) * c.heads + u.head + (r & mask)) * c.dim;
    };
    float acc[2][64];
#pragma unroll
    for (int i = 0; i < 128; i++) acc[i / 64][i % 64] = 0;
#pragma unroll 1
    for (int j = 0; j < u.steps; j++, tile++) {
      if (!c.first && j == u.steps - 1)
        prefetch_rows(c, min((int)ROWS, (c.rows - u.token) << p.pack_bits), half, row_of);
      const uint32_t buffer = tile & 1;
      mbarrier_wait(base + P_FULL + 8 * buffer, tile >> 1 & 1);
      if (load_shared(base + MOVED_AT + 16 * buffer + 4 * warp)) {
        const uint32_t factors = base + FACTOR_AT + buffer * (4 * ROWS);
        const float factor0 = load_shared_float(factors + 4 * row),
                    factor1 = load_shared_float(factors + 4 * (row + 8));
#pragma unroll
        for (int i = 0; i < 128; i++) acc[i / 64][i % 64] *= i & 2 ? factor1 : factor0;
      }
      const int first = u.start + j * KEYS;
      if (first < u.all_lo || first + KEYS > u.all_hi) {
        for (int n = 0; n < 2; n++) {
          mbarrier_wait(base + V_FULL + 8 * (half + 2 * n), value_parity);
          clean_slot<T>(base + V_AT + (half + 2 * n) * SLOT, odd_at, first);
        }
        fence_async();
        barrier(1 + half, 128);
      }
      mbarrier_wait(base + V_FULL + 8 * half, value_parity);
      mbarrier_wait(base + V_FULL + 8 * (half + 2), value_parity);
      mbarrier_wait(base + P_GO + 8 * buffer, tile >> 1 & 1);
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
          wgmma_ss<T, K_MAJOR, MN_MAJOR>(acc[n], weights + steps(buffer * BOX + i * 32),
                                         values + steps(2 * n * SLOT + i * 2048), true);
        wgmma_commit();
      }
      wgmma_wait<1>();
      release_slot(base + V_EMPTY + 8 * half, lane);
      wgmma_wait<0>();
      keep(acc[0]), keep(acc[1]);
      release_slot(base + V_EMPTY + 8 * (half + 2), lane);
      __syncwarp();  // all lanes have read the factors
      if (lane == 0) mbarrier_arrive(base + P_EMPTY + 8 * buffer);
      value_parity ^= 1;
    }

    mbarrier_wait(base + RESULT_FULL, result_parity);
    result_parity ^= 1;
    const float now0 = load_shared_float(base + NOW_AT + 4 * row),
                old0 = load_shared_float(base + OLD_AT + 4 * row),
                now1 = load_shared_float(base + NOW_AT + 4 * (row + 8)),
                old1 = load_shared_float(base + OLD_AT + 4 * (row + 8));
    __syncwarp();
    if (lane == 0) mbarrier_arrive(base + RESULT_EMPTY);
    const int column = half * 256 + lane % 4 * 2;
    // Not (old >= 0): an lse that was NaN makes old NaN, and has to get through.
    if (!(old0 < 0))
      store_pairs<32, 4>(row_of(row), column, c.dim, now0, old0, !c.first,
                         [&](int i, int e) { return acc[i / 16][i % 16 * 4 + e]; });
    if (!(old1 < 0))
      store_pairs<32, 4>(row_of(row + 8), column, c.dim, now1, old1, !c.first,
                         [&](int i, int e) { return acc[i / 16][i % 16 * 4 + 2 + e]; });
    const int from = load_shared(odd_at), to = load_shared(odd_at + 4);
    barrier(1 + half, 128);  // all have read before any warp finds the next
    if (from < to) {
      if (!(old0 < 0))
        add_odd<T>(c, u.kv_head, u.token + (row >> p.pack_bits), row_of(row), column, from, to);
      if (!(old1 < 0))
        add_odd<T>(c, u.kv_head, u.token + ((row + 8) >> p.pack_bits), row_of(row + 8), column, from, to);
      if (threadIdx.x % 128 == 0) store_shared(odd_at, INT_MAX), store_shared(odd_at + 4, 0);
      barrier(1 + half, 128);
    }
  }
}

}  // namespace
}  // namespace rattn

#endif
