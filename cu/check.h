// check.h: cases and the host reference of the driver. Knows a backend by its table
// alone.
#ifndef RATTN_CHECK_H
#define RATTN_CHECK_H

#include <stdint.h>

#include <random>
#include <string>
#include <vector>

#include "../kernels/rattn.h"

namespace check {

enum Mask { FULL, CAUSAL, WINDOW, DOCUMENTS, HOLES, RAGGED, MASKS };

struct Config {
  int dtype, heads, kv_heads, dim, rows, keys;
  Mask mask;
  int chunks = 1, before = 0, after = 0;  // pieces of the keys; tokens of the rank around the rows
  float scale = 0;                        // 0: 1 / sqrt(dim)
  double size = 1;                        // standard deviation of q and k
  double odd = 0;                         // NaN or Inf of two tokens of tensor `odd_tensor`, 0 for none
  int odd_tensor = 0;                     // q, dout, k, v
  bool lost = false;                      // two rows have scores of -Inf alone, and Inf in dout
};

std::string text(const Config &c);

// One attention: values exact in the dtype, tensors token-major.
struct Problem {
  Config c;
  float scale;
  int tokens;                         // of the rank: before + rows + after
  std::vector<double> q, dout, k, v;  // [tokens, heads, dim], [keys, kv_heads, dim]
  std::vector<int32_t> lo, hi, cuts;  // [rows]; chunk i is keys [cuts[i], cuts[i + 1])
  explicit Problem(const Config &c);
};

// out and dq [tokens, heads, dim], lse [tokens, heads], dk and dv [keys, kv_heads, dim];
// MARK where nothing may be written.
constexpr double MARK = -12345.5;
template <class T>
struct Results {
  std::vector<T> out, lse, dq, dk, dv;
};

Results<double> solve(const Problem &p);
Results<float> run(const rattn_backend *b, rattn_ctx *ctx, const Problem &p);
// Runs and compares; returns what is wrong, or "". worst gets the greatest error as a
// part of its bound.
std::string verify(const rattn_backend *b, rattn_ctx *ctx, const Config &c, double *worst);
std::string repeat(const rattn_backend *b, rattn_ctx *ctx, const Config &c, int times);

// All cases, or those of one head_dim (only > 0); returns the number of failures.
int run_all(const rattn_backend *b, rattn_ctx *ctx, bool quick, int only = 0);

std::vector<char> encode(const std::vector<double> &x, int dtype);
double round_to(double x, int dtype);
int64_t element_size(int dtype);
// Ends the program with the text of an error.
void must(const rattn_backend *b, rattn_ctx *ctx, int32_t status, const char *what);

}  // namespace check

#endif
