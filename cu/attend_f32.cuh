// attend_f32.cuh: attention, forward and backward, in f32 with plain multiply-adds, for
// f32 inputs, and for others where no tensor-core kernel fits a device.
//
// Every product and sum is an f32 one, rounded to nearest: results are as good as a
// CPU's. A sum over the stream is made of sums over SUM_ROWS rows, so its error grows
// with the root of a small number of terms.
//
// 256 threads as 16 x 16 own 64 stationary rows and take 64 rows of the stream at a
// time. Thread (y, x) has rows 4y to 4y + 3, score columns x + 16 j, and of what is
// accumulated columns 4x + 64 j to 4x + 64 j + 3.
#ifndef RATTN_ATTEND_F32_CUH
#define RATTN_ATTEND_F32_CUH

#include "call.h"
#include "device.cuh"

namespace rattn {

template <Kind KIND_, int DIM_>
struct TileF32 {
  static constexpr Kind KIND = KIND_;
  static constexpr int DIM = DIM_, THREADS = 256, ROWS = 64, STREAM = 64;
  static constexpr bool KEYS = KIND == D_V || KIND == D_K, TWO = KIND == D_Q || KIND == D_K;
  static constexpr int PARTS = DIM / 64;
  static constexpr int SCORE_DIMS = 32, SUM_ROWS = 16;
  static constexpr int PITCH = SCORE_DIMS + 4, WEIGHT_PITCH = STREAM + 4;  // floats; rows in different banks
  // Floats in shared memory: pieces of both factors of scores, or rows to be summed;
  // weights; lo, hi, lse, delta of the query rows.
  static constexpr int PIECE = (ROWS + STREAM) * PITCH > SUM_ROWS *DIM ? (ROWS + STREAM) * PITCH
                                                                       : SUM_ROWS *DIM;
  static constexpr int WEIGHTS_AT = PIECE, NUMBERS_AT = WEIGHTS_AT + ROWS * WEIGHT_PITCH;
  static constexpr int SHARED_BYTES = 4 * (NUMBERS_AT + 4 * 64);
};

// A tensor's rows of one head: element d of row r is at p[r * pitch + d], d < width.
struct Rows {
  const float *p;
  int64_t pitch;
  int rows, width;
};

// Loads N rows from row on, DIMS columns from column on, zeros beyond the tensor.
template <int N, int DIMS, int PITCH>
DEVICE void load_piece(float *to, const Rows &from, int row, int column) {
  for (int i = threadIdx.x; i < N * DIMS / 4; i += 256) {
    const int r = i / (DIMS / 4), c = i % (DIMS / 4) * 4;
    float4 x = make_float4(0, 0, 0, 0);
    if (row + r < from.rows && column + c < from.width)
      x = *(const float4 *)(from.p + (row + r) * from.pitch + column + c);
    *(float4 *)(to + r * PITCH + c) = x;
  }
}

// s = a b^T of 64 rows each.
template <class P>
DEVICE void scores(float *memory, const Rows &a, int a_row, const Rows &b, int b_row, float (&s)[4][4]) {
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  float *fa = memory, *fb = memory + P::ROWS * P::PITCH;
#pragma unroll
  for (int i = 0; i < 16; i++) s[i / 4][i % 4] = 0;
#pragma unroll 1
  for (int d = 0; d < a.width; d += P::SCORE_DIMS) {
    __syncthreads();
    load_piece<P::ROWS, P::SCORE_DIMS, P::PITCH>(fa, a, a_row, d);
    load_piece<P::STREAM, P::SCORE_DIMS, P::PITCH>(fb, b, b_row, d);
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < P::SCORE_DIMS; k += 4) {
      float4 u[4], v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u[i] = *(const float4 *)(fa + (4 * y + i) * P::PITCH + k);
        v[i] = *(const float4 *)(fb + (x + 16 * i) * P::PITCH + k);
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          s[i][j] = fmaf(u[i].x, v[j].x, s[i][j]);
          s[i][j] = fmaf(u[i].y, v[j].y, s[i][j]);
          s[i][j] = fmaf(u[i].z, v[j].z, s[i][j]);
          s[i][j] = fmaf(u[i].w, v[j].w, s[i][j]);
        }
    }
  }
}

// acc += weights b, weights in shared memory. With CHECK a weight of 0 adds nothing, even
// to Inf or NaN: a pair that is not seen.
template <class P, bool CHECK>
DEVICE void accumulate(float *memory, const Rows &b, int b_row, float (&acc)[P::PARTS][4][4]) {
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const float *weights = memory + P::WEIGHTS_AT + 4 * y * P::WEIGHT_PITCH;
#pragma unroll 1
  for (int row = 0; row < P::STREAM; row += P::SUM_ROWS) {
    __syncthreads();
    load_piece<P::SUM_ROWS, P::DIM, P::DIM>(memory, b, b_row + row, 0);
    __syncthreads();
#pragma unroll
    for (int part = 0; part < P::PARTS; part++) {
      float sum[4][4] = {};
#pragma unroll 4
      for (int k = 0; k < P::SUM_ROWS; k++) {
        const float4 v = *(const float4 *)(memory + k * P::DIM + part * 64 + 4 * x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float p = weights[i * P::WEIGHT_PITCH + row + k];
          if (CHECK && p == 0) continue;
          sum[i][0] = fmaf(p, v.x, sum[i][0]);
          sum[i][1] = fmaf(p, v.y, sum[i][1]);
          sum[i][2] = fmaf(p, v.z, sum[i][2]);
          sum[i][3] = fmaf(p, v.w, sum[i][3]);
        }
      }
#pragma unroll
      for (int i = 0; i < 16; i++) acc[part][i / 4][i % 4] += sum[i / 4][i % 4];
    }
  }
}

// dst = factor acc + old dst for row i; without add dst is not read.
template <class P>
DEVICE void store_f32(float *dst, int dim, const float (&acc)[P::PARTS][4][4], int i, float factor, float old,
                      bool add) {
#pragma unroll
  for (int part = 0; part < P::PARTS; part++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int column = part * 64 + 4 * (threadIdx.x % 16) + e;
      if (column >= dim) continue;
      const float x = factor * acc[part][i][e];
      dst[column] = add ? x + old * dst[column] : x;
    }
}

// Query rows of a tile: lo, hi and, of one head, lse and delta, into [4][64].
DEVICE void load_numbers_f32(const Call &call, Kind kind, float *numbers, int row, int head) {
  const int i = threadIdx.x;
  if (i >= 64) return;
  const bool valid = row + i < call.rows;
  const int64_t r = valid ? row + i : 0;
  ((int32_t *)numbers)[i] = valid ? max(call.lo[r], 0) : 0;
  ((int32_t *)numbers)[64 + i] = valid ? min(call.hi[r], call.tokens) : 0;
  if (kind == FORWARD) return;
  const float lse = valid ? call.lse[r * call.heads + head] : 0;
  numbers[128 + i] = lse == -infinity() ? infinity() : lse;  // of scores of -Inf alone: weights of 0
  numbers[192 + i] = valid && kind != D_V ? call.delta[r * call.heads + head] : 0;
}

// Greatest of, or sum over, the 16 threads of a row.
DEVICE float row_most(float x) {
#pragma unroll
  for (int k = 8; k > 0; k /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, k));
  return x;
}
DEVICE float row_sum(float x) {
#pragma unroll
  for (int k = 8; k > 0; k /= 2) x += __shfl_xor_sync(~0u, x, k);
  return x;
}

template <class P>
__global__ void __launch_bounds__(P::THREADS, P::DIM <= 64 ? 2 : 1)
    attend_f32(const __grid_constant__ Call call) {
  extern __shared__ __align__(16) float shared_f32[];
  float *const memory = shared_f32;
  float *const numbers = memory + P::NUMBERS_AT;
  const int32_t *const los = (const int32_t *)numbers, *const his = los + 64;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;

  const int head = blockIdx.x / call.tiles, group = call.heads / call.kv_heads;
  const int index = P::KEYS ? blockIdx.x % call.tiles : call.tiles - 1 - blockIdx.x % call.tiles;
  const int kv_head = P::KEYS ? head : head / group, tile = index * P::ROWS;
  auto rows_of = [&](const void *p, bool keys, int h) -> Rows {
    return {(const float *)p + (int64_t)h * call.stride, keys ? call.kv_token : call.q_token,
            keys ? call.tokens : call.rows, call.stride};
  };
  Seen seen = {};
  int begin, end;
  if constexpr (P::KEYS) {
    const Seers seers = call.seers[index];
    if (seers.begin >= seers.end) return;
    begin = seers.begin * P::STREAM;
    end = seers.end * P::STREAM;
  } else {
    seen = call.seen[index];
    begin = seen.lo;
    end = seen.hi;
    if (begin >= end && !call.first) return;
    load_numbers_f32(call, P::KIND, numbers, tile, head);
  }
  const Rows a1 = rows_of(P::KEYS ? call.k : call.q, P::KEYS, head);
  const Rows a2 = rows_of(P::KEYS ? call.v : call.dout, P::KEYS, head);

  float acc[P::PARTS][4][4] = {}, top[4], sum[4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) top[i] = -infinity();
#pragma unroll 1
  for (int h = P::KEYS ? kv_head * group : kv_head; h < (P::KEYS ? kv_head * group + group : kv_head + 1);
       h++) {
    const Rows b1 = rows_of(P::KEYS ? call.q : call.k, !P::KEYS, h);
    const Rows b2 = rows_of(P::KEYS ? call.dout : call.v, !P::KEYS, h);
#pragma unroll 1
    for (int row = begin; row < end; row += P::STREAM) {
      if constexpr (P::KEYS) {
        seen = call.seen[row / P::STREAM];
        __syncthreads();
        load_numbers_f32(call, P::KIND, numbers, row, h);
      }
      const bool all = P::KEYS ? seen.all_lo <= tile && tile + P::ROWS <= seen.all_hi
                               : seen.all_lo <= row && row + P::STREAM <= seen.all_hi;
      auto sees = [&](int i, int j) {
        const int q = P::KEYS ? x + 16 * j : 4 * y + i, key = P::KEYS ? tile + 4 * y + i : row + x + 16 * j;
        return all || (key >= los[q] && key < his[q]);
      };
      float s[4][4];
      scores<P>(memory, a1, tile, b1, row, s);
      if constexpr (P::KIND == FORWARD) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float most = -infinity();
#pragma unroll
          for (int j = 0; j < 4; j++) {
            s[i][j] = sees(i, j) ? s[i][j] * call.scale : -infinity();
            most = fmaxf(most, s[i][j]);
          }
          const float old = top[i];
          top[i] = fmaxf(old, row_most(most));
          const float factor = old == top[i] ? 1 : exp2f((old - top[i]) * LOG2E);
          const float base = top[i] == -infinity() ? 0 : top[i];
          float part = 0;
#pragma unroll
          for (int j = 0; j < 4; j++) part += s[i][j] = exp2f((s[i][j] - base) * LOG2E);
          sum[i] = sum[i] * factor + part;
#pragma unroll
          for (int k = 0; k < 4 * P::PARTS; k++) acc[k / 4][i][k % 4] *= factor;
        }
      } else {
        float dp[4][4];
        if constexpr (P::TWO) scores<P>(memory, a2, tile, b2, row, dp);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int j = 0; j < 4; j++) {
            const int q = P::KEYS ? x + 16 * j : 4 * y + i;
            float w = exp2f((s[i][j] * call.scale - numbers[128 + q]) * LOG2E);
            if (P::TWO && (all || w != 0)) w *= dp[i][j] - numbers[192 + q];
            s[i][j] = sees(i, j) ? w : 0;
          }
      }
#pragma unroll
      for (int i = 0; i < 16; i++)
        memory[P::WEIGHTS_AT + (4 * y + i / 4) * P::WEIGHT_PITCH + x + 16 * (i % 4)] = s[i / 4][i % 4];
      // The first barrier inside makes the weights visible.
      const Rows &b = P::KIND == FORWARD || P::KIND == D_V ? b2 : b1;
      if (all)
        accumulate<P, false>(memory, b, row, acc);
      else
        accumulate<P, true>(memory, b, row, acc);
    }
  }

  // Read before any thread of the row writes.
  float before[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = tile + 4 * y + i;
    const bool fold = P::KIND == FORWARD && !call.first && r < call.rows;
    before[i] = fold ? call.lse[(int64_t)r * call.heads + head] : -infinity();
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = tile + 4 * y + i;
    if constexpr (P::KEYS) {
      if (r >= call.tokens) continue;
      const int64_t at = ((int64_t)r * 2 + (P::KIND == D_V)) * call.kv_heads + kv_head;
      store_f32<P>(call.dkv + at * call.dim, call.dim, acc, i, P::KIND == D_V ? 1 : call.scale, 1, true);
    } else {
      const float total = row_sum(sum[i]);
      if (r >= call.rows || (los[4 * y + i] >= his[4 * y + i] && !call.first)) continue;
      const int64_t at = (int64_t)r * call.heads + head;
      if constexpr (P::KIND == D_Q) {
        store_f32<P>(call.dq + at * call.dim, call.dim, acc, i, call.gradient, 1, !call.first);
        continue;
      }
      float lse = total == 0 ? -infinity() : top[i] + logf(total), now = total == 0 ? 0 : 1 / total, old = 0;
      if (before[i] != -infinity()) {
        const float most = fmaxf(before[i], lse), p = expf(before[i] - most), q = expf(lse - most);
        lse = most + logf(p + q);
        const float part = q < p ? q / (p + q) : 1 - p / (p + q);
        old = q < p ? 1 - part : p / (p + q);
        now *= part;
      }
      if (x == 0) call.lse[at] = lse;
      store_f32<P>(call.out + at * call.dim, call.dim, acc, i, now, old, !call.first);
    }
  }
}

}  // namespace rattn

#endif
