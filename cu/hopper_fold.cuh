// hopper_fold.cuh: what the forward kernels for sm_90a share: the softmax of a warpgroup's
// scores, values that are Inf or NaN, and results. s is the product of 64 rows, of which a
// thread has elements of two, `upper` and `lower` (see ptx.cuh).
#ifndef RATTN_HOPPER_FOLD_CUH
#define RATTN_HOPPER_FOLD_CUH

#include <limits.h>

#include "call.h"
#include "ptx.cuh"
#include "store.cuh"

namespace rattn {

// What a thread knows of a row: what it sees, and its running softmax. Weights are
// 2^(x - top), x = score * exponent, with a top that follows the greatest x only where it is
// behind by more than 8: as a rule out is not rescaled after the first tiles, and weights
// stay in f16's range.
struct Row {
  int lo, hi;  // hi < 0: there is no such row
  float top, sum;

  DEVICE void start(const Call &c, int token) {
    const bool exists = token < c.rows;
    lo = exists ? max(c.lo[token], 0) : 0, hi = exists ? max(min(c.hi[token], c.tokens), 0) : -1;
    top = -infinity(), sum = 0;
  }
  // Takes the greatest x of a thread's part of a row, of all lanes of a warp; returns what
  // sums so far are to be multiplied with. Depends on nothing but the row.
  DEVICE float follow(float most) {
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    if (!(most > top + 8)) return 1;
    const float factor = exp2_fast(top - most);
    top = most, sum *= factor;
    return factor;
  }
  DEVICE float base() const { return top == -infinity() ? 0 : top; }

  // The lse before the call, at lse[at].
  DEVICE float before(const Call &c, int64_t at) const {
    return hi >= 0 && !c.first ? c.lse[at] : -infinity();
  }
  // out' = old out + now acc: the parts of what was before and of what is new; old < 0 where
  // out is to be left alone. Returns the lse of both.
  DEVICE float finish(const Call &c, float before, float &now, float &old) const {
    now = 0, old = -1;
    if (hi < 0 || (lo >= hi && !c.first)) return 0;
    float lse = sum == 0 ? -infinity() : (top + log2f(sum)) * LN2;
    now = sum == 0 ? 0 : 1 / sum, old = 0;
    if (before != -infinity()) {
      const float most = fmaxf(before, lse);
      const float a = expf(before - most), b = expf(lse - most);
      lse = most + logf(a + b);
      // The greater part as 1 less the other: both together are 1 exactly.
      const float part = b < a ? b / (a + b) : 1 - a / (a + b);
      old = b < a ? 1 - part : a / (a + b);
      now *= part;
    }
    return lse;
  }
};

// Hides what rows do not see of scores of keys from `first` on.
template <int N>
DEVICE void hide(float (&s)[N], int first, const Row &upper, const Row &lower) {
  // Relative to the thread's first key, so that an element's key is a constant.
  const int key = first + threadIdx.x % 4 * 2;
  const int lo0 = upper.lo - key, hi0 = upper.hi - key, lo1 = lower.lo - key, hi1 = lower.hi - key;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int x = i / 4 * 8 + i % 2;
    if (x < (i & 2 ? lo1 : lo0) || x >= (i & 2 ? hi1 : hi0)) s[i] = -infinity();
  }
}

// s becomes the weights. Returns whether a row of the warp has moved its top; factors
// are what its sums so far are to be multiplied with. Rows' own sums have yet to get the weights.
template <int N>
DEVICE bool weigh(float (&s)[N], float exponent, Row &upper, Row &lower, float &factor0, float &factor1) {
  float most0 = s[0], most1 = s[2];
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    most0 = fmaxf(most0, fmaxf(s[i], s[i + 1]));
    most1 = fmaxf(most1, fmaxf(s[i + 2], s[i + 3]));
  }
  most0 *= exponent, most1 *= exponent;
  factor0 = factor1 = 1;
  const bool moved = __any_sync(~0u, most0 > upper.top + 8 || most1 > lower.top + 8);
  if (moved) factor0 = upper.follow(most0), factor1 = lower.follow(most1);
  const float base0 = upper.base(), base1 = lower.base();
#pragma unroll
  for (int i = 0; i < N; i++) s[i] = exp2_fast(fmaf(s[i], exponent, i & 2 ? -base1 : -base0));
  return moved;
}

// Adds weights to the sums of their rows.
template <int N>
DEVICE void add_weights(const float (&s)[N], Row &upper, Row &lower) {
  float sum0[4], sum1[4];
#pragma unroll
  for (int i = 0; i < N / 8; i++) {
    const float a = (s[8 * i] + s[8 * i + 1]) + (s[8 * i + 4] + s[8 * i + 5]);
    const float b = (s[8 * i + 2] + s[8 * i + 3]) + (s[8 * i + 6] + s[8 * i + 7]);
    sum0[i % 4] = i < 4 ? a : sum0[i % 4] + a;
    sum1[i % 4] = i < 4 ? b : sum1[i % 4] + b;
  }
  upper.sum += (sum0[0] + sum0[1]) + (sum0[2] + sum0[3]);
  lower.sum += (sum1[0] + sum1[1]) + (sum1[2] + sum1[3]);
}

// Zeroes the halves of 16 bytes of shared memory that are Inf or NaN; returns whether there
// were any.
template <class T>
DEVICE bool clean_piece(uint32_t address) {
  uint4 w = load_shared4(address);
  const uint32_t x = odd_halves<T>(w.x), y = odd_halves<T>(w.y), z = odd_halves<T>(w.z),
                 u = odd_halves<T>(w.w);
  if ((x | y | z | u) == 0) return false;
  w.x &= ~((x >> 15) * 0xffff), w.y &= ~((y >> 15) * 0xffff);
  w.z &= ~((z >> 15) * 0xffff), w.w &= ~((u >> 15) * 0xffff);
  store_shared4(address, w);
  return true;
}

// Zeroes what is Inf or NaN in values of keys [key, key + keys): weights of 0 do not take it
// out of the sum, as 0 times Inf is NaN. Thread `thread` of `threads`, which all come here.
// Whether there was any is noted at odd_at, int [2], as keys from, to.
template <class T>
DEVICE void clean_values(uint32_t at, uint32_t bytes, int thread, int threads, uint32_t odd_at, int key,
                         int keys) {
  bool odd = false;
#pragma unroll 4
  for (uint32_t i = thread * 16; i < bytes; i += threads * 16) odd |= clean_piece<T>(at + i);
  if (odd) {
    int *range = (int *)__cvta_shared_to_generic(odd_at);
    atomicMin(range, key);
    atomicMax(range + 1, key + keys);
  }
}

// Adds what clean_values took out to the results of the rows that see it, and to no others.
// The sum is lost anyway, so its weight is left out. dst is row `token`; the thread's own
// pairs of the COLUMNS columns from `column` on, its first.
template <class T, int COLUMNS>
DEVICE void add_odd(const Call &c, int kv_head, int token, float *dst, int column, int from, int to) {
  to = min(to, c.tokens);
#pragma unroll 1
  for (int key = max(from, c.lo[token]); key < min(to, c.hi[token]); key++) {
    const uint16_t *v = (const uint16_t *)c.v + key * c.kv_token + (int64_t)kv_head * c.stride;
#pragma unroll 1
    for (int x = column; x < column + COLUMNS && x < c.dim; x += 8) {
      const uint32_t pair = *(const uint32_t *)(v + x), odd = odd_halves<T>(pair);
      if (odd & 0x8000) dst[x] += T::low(pair);
      if ((odd & 0x80000000) && x + 1 < c.dim) dst[x + 1] += T::high(pair);
    }
  }
}

// Brings COLUMNS columns from `first` on of what the first so many rows of a tile hold into L2, before
// it is added to: 32 columns of a row a thread and turn. Thread `thread` of `threads`.
template <int COLUMNS, class RowOf>
DEVICE void prefetch_rows(const Call &c, int rows, int first, int thread, int threads, RowOf row_of) {
  constexpr int PIECES = (COLUMNS + 31) / 32;
  for (int i = thread; i < rows * PIECES; i += threads) {
    const int column = first + i % PIECES * 32;
    if (column < c.dim) prefetch_l2(row_of(i / PIECES) + column);
  }
}

// dst = old dst + now acc for the thread's pairs of one row, of which HALF is the upper (0)
// or the lower (2); column is that of the first.
template <int HALF, int N>
DEVICE void store_row(const Call &c, float *dst, int column, const float (&acc)[N], float now, float old) {
  store_pairs<N / 4, 4>(dst, column, c.dim, now, old, !c.first,
                        [&](int i, int e) { return acc[i * 4 + HALF + e]; });
}

}  // namespace rattn

#endif
