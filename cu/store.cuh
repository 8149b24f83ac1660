// store.cuh: how results leave registers.
#ifndef RATTN_STORE_CUH
#define RATTN_STORE_CUH

#include "device.cuh"

namespace rattn {

// Columns column + 8 i and the next of a row of dim, i < COUNT: dst = old dst + factor
// value(i, 0 or 1); without `add` dst is not read. BATCH loads go ahead of their stores:
// one after the other each would wait for memory.
template <int COUNT, int BATCH, class Value>
DEVICE void store_pairs(float *dst, int column, int dim, float factor, float old, bool add, Value value) {
  static_assert(COUNT % BATCH == 0, "whole batches");
  dst += column, dim -= column;
  if (dim % 2 != column % 2) {  // an odd row: pairs are not aligned
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (8 * i + e < dim) {
          const float x = factor * value(i, e);
          dst[8 * i + e] = add ? x + old * dst[8 * i + e] : x;
        }
    return;
  }
#pragma unroll
  for (int i = 0; i < COUNT; i += BATCH) {
    float2 was[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++)
      if (add && 8 * (i + k) < dim) was[k] = *(const float2 *)(dst + 8 * (i + k));
#pragma unroll
    for (int k = 0; k < BATCH; k++)
      if (8 * (i + k) < dim) {
        float x = factor * value(i + k, 0), y = factor * value(i + k, 1);
        if (add) x += old * was[k].x, y += old * was[k].y;
        *(float2 *)(dst + 8 * (i + k)) = make_float2(x, y);
      }
  }
}

}  // namespace rattn

#endif
