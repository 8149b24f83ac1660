// product.cuh: a warp's products of tiles in shared memory, on tensor cores.
//
// Lane l of a warp holds, of a 16 x 8 tile of a product, row l / 4, columns 2 (l % 4)
// and the next, and the same of row l / 4 + 8: elements 0 to 3.
#ifndef RATTN_PRODUCT_CUH
#define RATTN_PRODUCT_CUH

#include "tile.cuh"

namespace rattn {

// A warp's place: its rows start at row_warp * 32, its columns of scores and of
// accumulators are part column_warp of WN.
struct Place {
  int lane, row_warp, column_warp;
  DEVICE int row(int m, int half) const { return row_warp * 32 + m * 16 + half * 8 + lane / 4; }
};

template <class P>
DEVICE int score_column(const Place &w, int n, int e) {
  return (w.column_warp * P::SCORES + n) * 8 + 2 * (w.lane % 4) + e;
}

template <class P>
DEVICE int acc_column(const Place &w, int n) {
  return (w.column_warp * P::ACCS + n) * 8 + 2 * (w.lane % 4);
}

// Address, for ldmatrix of a row-major left factor, of a lane's row of the warp's first
// 16, with the lane's piece of 16 columns folded in: piece c stands at (address ^ low
// bits of c) + high bits of c.
DEVICE uint32_t left_address(const Place &w, uint32_t base, int pitch) {
  return base + (w.row_warp * 32 + w.lane % 16) * pitch + (((w.lane >> 4) ^ (w.lane & 7)) << 4);
}

// s += a b^T over the SCORE_DIMS columns of a chunk: a the warp's 32 stationary rows, b
// the warp's SCORES * 8 rows of the chunk.
template <class P>
DEVICE void add_scores(const Place &w, float (&s)[2][P::SCORES][4], uint32_t a, uint32_t slot) {
  const uint32_t b = slot +
                     (w.column_warp * P::SCORES * 8 + (w.lane & 7) + ((w.lane >> 4) << 3)) * P::SCORE_PITCH +
                     ((((w.lane >> 3) & 1) ^ (w.lane & 7)) << 4);
#pragma unroll
  for (int k = 0; k < P::SCORE_DIMS / 16; k++) {
    const int low = (k & 3) << 5, high = (k >> 2) * 128;
    uint32_t fa[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++) ldmatrix(fa[m], (a ^ low) + high + m * 16 * P::STATIONARY_PITCH);
#pragma unroll
    for (int n = 0; n < P::SCORES; n += 2) {
      uint32_t fb[4];
      ldmatrix(fb, (b ^ low) + high + n * 8 * P::SCORE_PITCH);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        P::T::mma(s[m][n], fa[m], fb[0], fb[1]);
        P::T::mma(s[m][n + 1], fa[m], fb[2], fb[3]);
      }
    }
  }
}

// Weights p or ds as a left factor, in registers (WN = 1: the warp has whole rows).
template <class P>
struct Weights {
  uint32_t w[P::WN == 1 ? P::STREAM / 16 : 1][2][4];
};

// Rounds weights: into registers, or into shared memory at `at` for the warps of the
// same rows.
template <class P>
DEVICE void put_weights(const Place &w, Weights<P> &to, uint32_t at, const float (&s)[2][P::SCORES][4]) {
#pragma unroll
  for (int m = 0; m < 2; m++) {
    const uint32_t row = at + w.row(m, 0) * P::WEIGHT_PITCH + 4 * (w.lane % 4);
#pragma unroll
    for (int n = 0; n < P::SCORES; n++) {
      const uint32_t top = P::T::pack(s[m][n][0], s[m][n][1]), bottom = P::T::pack(s[m][n][2], s[m][n][3]);
      if constexpr (P::WN == 1) {
        to.w[n / 2][m][(n & 1) * 2] = top;
        to.w[n / 2][m][(n & 1) * 2 + 1] = bottom;
      } else {
        const uint32_t piece = row + (((w.column_warp * P::SCORES + n) ^ (w.lane / 4)) << 4);
        store_shared(piece, top);
        store_shared(piece + 8 * P::WEIGHT_PITCH, bottom);
      }
    }
  }
}

// acc += weights * chunk: weights [32, ACC_ROWS] from column `from` on, of the chunk the
// warp's ACCS * 8 columns.
template <class P>
DEVICE void add_weighted(const Place &w, float (&acc)[2][P::ACCS][4], const Weights<P> &weights, uint32_t at,
                         int from, uint32_t slot) {
  const uint32_t a = left_address(w, at, P::WEIGHT_PITCH);
  const uint32_t turn = ((w.lane >> 4) ^ (w.lane & 7)) << 4;
  const uint32_t column = (uint32_t)(w.column_warp * P::ACCS) << 4;
  const uint32_t b = slot + (w.lane & 15) * P::ACC_PITCH;
#pragma unroll
  for (int k = 0; k < P::ACC_ROWS / 16; k++) {
    uint32_t fa[2][4];
    if constexpr (P::WN == 1) {
#pragma unroll
      for (int i = 0; i < 8; i++) fa[i / 4][i % 4] = weights.w[k][i / 4][i % 4];
    } else {
      const uint32_t piece = (uint32_t)(from / 8 + 2 * k) << 4;
#pragma unroll
      for (int m = 0; m < 2; m++)
        ldmatrix(fa[m], (a ^ (piece & 0x70)) + (piece & ~0x7fu) + m * 16 * P::WEIGHT_PITCH);
    }
#pragma unroll
    for (int n = 0; n < P::ACCS; n += 2) {
      uint32_t fb[4];
      // A warp's first column is a multiple of 64 unless ACCS is odd in eights.
      if constexpr (P::ACCS % 8 == 0)
        ldmatrix_trans(fb, ((b + column + turn) ^ ((n & 7) << 4)) + (n >> 3) * 128 + k * 16 * P::ACC_PITCH);
      else
        ldmatrix_trans(fb, b + ((column + (n << 4)) ^ turn) + k * 16 * P::ACC_PITCH);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        P::T::mma(acc[m][n], fa[m], fb[0], fb[1]);
        P::T::mma(acc[m][n + 1], fa[m], fb[2], fb[3]);
      }
    }
  }
}

}  // namespace rattn

#endif
