// fold.cuh: what happens to scores between the products, and to results at the end.
#ifndef RATTN_FOLD_CUH
#define RATTN_FOLD_CUH

#include "product.cuh"

namespace rattn {

template <class P, class F>
DEVICE void for_each(F f) {
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < P::SCORES; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) f(m, n, e);
}

// Puts lo, hi and, for a gradient, lse and delta of the stationary query rows into
// shared memory, [4][ROWS]. Rows that are not there see nothing.
template <class P>
DEVICE void load_rows(const Call &call, float *numbers, int tile, int head) {
  for (int i = threadIdx.x; i < P::ROWS; i += P::THREADS) {
    const bool valid = tile + i < call.rows;
    const int64_t r = valid ? tile + i : 0;
    const int32_t lo = valid ? max(call.lo[r], 0) : 0, hi = valid ? min(call.hi[r], call.tokens) : 0;
    ((int32_t *)numbers)[i] = lo;
    ((int32_t *)numbers)[P::ROWS + i] = hi;
    if (P::KIND == FORWARD) continue;
    numbers[2 * P::ROWS + i] = valid ? call.lse[r * call.heads + head] : 0;
    numbers[3 * P::ROWS + i] = valid ? call.delta[r * call.heads + head] : 0;
  }
}

// What an exponent of 2 has less by lse. A row whose scores are all -Inf has no weights,
// though its exponents are -Inf less -Inf.
DEVICE float less_lse(float lse) { return lse == -infinity() ? -infinity() : -lse * LOG2E; }

// s becomes p = exp(scale s - lse).
template <class P>
DEVICE void normalise(const Call &call, const Place &w, const float *numbers, float (&s)[2][P::SCORES][4]) {
  if constexpr (P::KEYS) {
    // Loaded one by one, so that they do not take registers.
#pragma unroll
    for (int n = 0; n < P::SCORES; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float less =
            less_lse(__int_as_float(load_shared(shared_address(numbers + score_column<P>(w, n, e)))));
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float &x = s[i / 2][n][i % 2 * 2 + e];
          x = exp2_fast(fmaf(x, call.exponent, less));
        }
      }
  } else {
    for_each<P>([&](int m, int n, int e) {
      const float less = less_lse(numbers[2 * P::ROWS + w.row(m, e / 2)]);
      s[m][n][e] = exp2_fast(fmaf(s[m][n][e], call.exponent, less));
    });
  }
}

// -delta, where the sum dout . v starts from.
template <class P>
DEVICE void start_from_delta(const Place &w, const float *numbers, float (&dp)[2][P::SCORES][4]) {
  const float *delta = numbers + (P::KEYS ? P::STREAM : 3 * P::ROWS);
  for_each<P>([&](int m, int n, int e) {
    dp[m][n][e] = -delta[P::KEYS ? score_column<P>(w, n, e % 2) : w.row(m, e / 2)];
  });
}

// dst = old dst + factor acc for a row; without `add` dst is not read.
template <class P>
DEVICE void store_row(const Call &call, const Place &w, float *dst, int m, int half,
                      const float (&acc)[2][P::ACCS][4], float factor, float old, bool add) {
  const bool pairs = call.dim % 2 == 0;
#pragma unroll
  for (int n = 0; n < P::ACCS; n++) {
    const int column = acc_column<P>(w, n);
    float x = factor * acc[m][n][2 * half], y = factor * acc[m][n][2 * half + 1];
    if (pairs && column < call.dim) {
      float2 *to = (float2 *)(dst + column);
      if (add) {
        const float2 was = *to;
        x += old * was.x, y += old * was.y;
      }
      *to = make_float2(x, y);
    } else if (!pairs) {
      if (column < call.dim) dst[column] = add ? x + old * dst[column] : x;
      if (column + 1 < call.dim) dst[column + 1] = add ? y + old * dst[column + 1] : y;
    }
  }
}

// The running maximum and sum of a row. Weights are 2^(x - top), x = score * exponent,
// with a top that follows the greatest x only where it is behind by more than LAG: as a
// rule accumulators are not rescaled after the first tiles, and weights stay below
// 2^LAG, in f16's range.
template <class P>
struct Softmax {
  static constexpr float LAG = 8;
  float top[2][2], sum[2][2];

  DEVICE Softmax() {
#pragma unroll
    for (int i = 0; i < 4; i++) top[i / 2][i % 2] = -infinity(), sum[i / 2][i % 2] = 0;
  }

  // s becomes the weights; what was accumulated is rescaled where top moves.
  DEVICE void weigh(const Call &call, const Place &w, float *numbers, float (&s)[2][P::SCORES][4],
                    float (&acc)[2][P::ACCS][4]) {
    float most[2][2];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float x = fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < P::SCORES; n++) x = fmaxf(x, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
        most[m][half] = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
      }
    if constexpr (P::WN > 1) {
      // All warps of these rows must come to the same top.
      float *shared = numbers + 2 * P::ROWS;
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (w.lane % 4 == 0) shared[w.column_warp * P::ROWS + w.row(i / 2, i % 2)] = most[i / 2][i % 2];
      barrier(1 + w.row_warp, 32 * P::WN);
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int k = 0; k < P::WN; k++)
          most[i / 2][i % 2] = fmaxf(most[i / 2][i % 2], shared[k * P::ROWS + w.row(i / 2, i % 2)]);
    }
    bool behind = false;
#pragma unroll
    for (int i = 0; i < 4; i++) behind |= most[i / 2][i % 2] * call.exponent > top[i / 2][i % 2] + LAG;
    if (__any_sync(~0u, behind)) {
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const float old = top[m][half], now = fmaxf(old, most[m][half] * call.exponent);
          const float factor = old == now ? 1 : exp2_fast(old - now);
          top[m][half] = now;
          sum[m][half] *= factor;
#pragma unroll
          for (int n = 0; n < P::ACCS; n++) {
            acc[m][n][2 * half] *= factor;
            acc[m][n][2 * half + 1] *= factor;
          }
        }
    }
    float base[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++) base[i / 2][i % 2] = top[i / 2][i % 2] == -infinity() ? 0 : top[i / 2][i % 2];
    for_each<P>([&](int m, int n, int e) {
      s[m][n][e] = exp2_fast(fmaf(s[m][n][e], call.exponent, -base[m][e / 2]));
      sum[m][e / 2] += s[m][n][e];
    });
  }

  // Folds the rows into out and lse.
  DEVICE void store(const Call &call, const Place &w, float *numbers, const float (&acc)[2][P::ACCS][4],
                    int tile, int head) {
    float before[2][2];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int m = i / 2, half = i % 2;
      const int r = w.row(m, half);
      sum[m][half] += __shfl_xor_sync(~0u, sum[m][half], 1);
      sum[m][half] += __shfl_xor_sync(~0u, sum[m][half], 2);
      if (P::WN > 1 && w.lane % 4 == 0) numbers[(2 + w.column_warp) * P::ROWS + r] = sum[m][half];
      // Read before any warp of the row writes.
      before[m][half] = -infinity();
      if (!call.first && tile + r < call.rows)
        before[m][half] = call.lse[(int64_t)(tile + r) * call.heads + head];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int m = i / 2, half = i % 2;
      const int r = w.row(m, half);
      if (tile + r >= call.rows) continue;
      const bool seen = ((const int32_t *)numbers)[r] < ((const int32_t *)numbers)[P::ROWS + r];
      if (!seen && !call.first) continue;
      float total = sum[m][half];
      if (P::WN > 1) {
        total = 0;
#pragma unroll
        for (int k = 0; k < P::WN; k++) total += numbers[(2 + k) * P::ROWS + r];
      }
      // out' = old out + now acc: the parts of what was before and of what is new.
      float lse = total == 0 ? -infinity() : (top[m][half] + log2f(total)) * LN2;
      float now = total == 0 ? 0 : 1 / total, old = 0;
      if (before[m][half] != -infinity()) {
        const float most = fmaxf(before[m][half], lse);
        const float a = expf(before[m][half] - most), b = expf(lse - most);
        lse = most + logf(a + b);
        // The greater part as 1 less the other: both together are 1 exactly.
        const float part = b < a ? b / (a + b) : 1 - a / (a + b);
        old = b < a ? 1 - part : a / (a + b);
        now *= part;
      }
      const int64_t at = (int64_t)(tile + r) * call.heads + head;
      if (w.lane % 4 == 0 && w.column_warp == 0) call.lse[at] = lse;
      store_row<P>(call, w, call.out + at * call.dim, m, half, acc, now, old, !call.first);
    }
  }
};

template <class P>
DEVICE void store_dq(const Call &call, const Place &w, const float *numbers,
                     const float (&acc)[2][P::ACCS][4], int tile, int head, float factor) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = w.row(i / 2, i % 2);
    const bool seen = ((const int32_t *)numbers)[r] < ((const int32_t *)numbers)[P::ROWS + r];
    if (tile + r >= call.rows || (!seen && !call.first)) continue;
    float *dst = call.dq + ((int64_t)(tile + r) * call.heads + head) * call.dim;
    store_row<P>(call, w, dst, i / 2, i % 2, acc, factor, 1, !call.first);
  }
}

// Adds to dk (which = 0) or dv (which = 1).
template <class P>
DEVICE void store_dkv(const Call &call, const Place &w, const float (&acc)[2][P::ACCS][4], int tile,
                      int kv_head, int which, float factor) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int64_t key = tile + w.row(i / 2, i % 2);
    if (key >= call.tokens) continue;
    float *dst = call.dkv + ((key * 2 + which) * call.kv_heads + kv_head) * call.dim;
    store_row<P>(call, w, dst, i / 2, i % 2, acc, factor, 1, true);
  }
}

}  // namespace rattn

#endif
