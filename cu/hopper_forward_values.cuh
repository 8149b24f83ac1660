// hopper_forward_values.cuh: the warpgroups of values: out += p v, and the results at the end.
#ifndef RATTN_HOPPER_FORWARD_VALUES_CUH
#define RATTN_HOPPER_FORWARD_VALUES_CUH

#include "hopper_forward.cuh"

namespace rattn {
namespace {

DEVICE float load_shared_float(uint32_t address) { return __int_as_float(load_shared(address)); }

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
        prefetch_rows<256>(c, min((int)ROWS, (c.rows - u.token) << p.pack_bits), 256 * half,
                           threadIdx.x % 128, 128, row_of);
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
          clean_values<T>(base + V_AT + (half + 2 * n) * SLOT, SLOT, threadIdx.x % 128, 128, odd_at, first,
                          KEYS);
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
      mbarrier_arrive_warp(base + P_EMPTY + 8 * buffer, lane);
      value_parity ^= 1;
    }

    mbarrier_wait(base + RESULT_FULL, result_parity);
    result_parity ^= 1;
    const float now0 = load_shared_float(base + NOW_AT + 4 * row),
                old0 = load_shared_float(base + OLD_AT + 4 * row),
                now1 = load_shared_float(base + NOW_AT + 4 * (row + 8)),
                old1 = load_shared_float(base + OLD_AT + 4 * (row + 8));
    mbarrier_arrive_warp(base + RESULT_EMPTY, lane);
    const int column = half * 256 + lane % 4 * 2;
    // Not (old >= 0): an lse that was NaN makes old NaN, and has to get through.
#pragma unroll
    for (int n = 0; n < 2; n++) {
      if (!(old0 < 0)) store_row<0>(c, row_of(row), column + 128 * n, acc[n], now0, old0);
      if (!(old1 < 0)) store_row<2>(c, row_of(row + 8), column + 128 * n, acc[n], now1, old1);
    }
    const int from = load_shared(odd_at), to = load_shared(odd_at + 4);
    barrier(1 + half, 128);  // all have read before any warp finds the next
    if (from < to) {
      if (!(old0 < 0))
        add_odd<T, 256>(c, u.kv_head, u.token + (row >> p.pack_bits), row_of(row), column, from, to);
      if (!(old1 < 0))
        add_odd<T, 256>(c, u.kv_head, u.token + ((row + 8) >> p.pack_bits), row_of(row + 8), column, from,
                        to);
      if (threadIdx.x % 128 == 0) store_shared(odd_at, INT_MAX), store_shared(odd_at + 4, 0);
      barrier(1 + half, 128);
    }
  }
}

}  // namespace
}  // namespace rattn

#endif
