// check.cpp: problems, their float64 solution, and comparison.
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <thread>

namespace check {

static const char *const MASK_NAMES[] = {"full", "causal", "window", "documents", "holes", "ragged"};
static const char *const DTYPES[] = {"f32", "bf16", "f16"};

std::string text(const Config &c) {
  char s[256];
  snprintf(s, sizeof s, "%s %d/%d heads D=%d %d rows %d keys %s %d chunks%s%s", DTYPES[c.dtype], c.heads,
           c.kv_heads, c.dim, c.rows, c.keys, MASK_NAMES[c.mask], c.chunks, c.scale != 0 ? " own scale" : "",
           c.odd != 0 ? (c.odd != c.odd ? " NaN" : " Inf")
           : c.lost   ? " -Inf scores"
                      : "");
  return s;
}

int64_t element_size(int dtype) { return dtype == RATTN_F32 ? 4 : 2; }

double round_to(double x, int dtype) {
  if (dtype == RATTN_F32 || !std::isfinite(x)) return (float)x;
  int e;
  frexp(x, &e);
  if (dtype == RATTN_F16) e = std::max(e, -13);  // subnormals
  const double unit = ldexp(1, e - (dtype == RATTN_BF16 ? 8 : 11));
  return nearbyint(x / unit) * unit;
}

std::vector<char> encode(const std::vector<double> &x, int dtype) {
  std::vector<char> bytes(std::max<size_t>(1, x.size() * element_size(dtype)));
  for (size_t i = 0; i < x.size(); i++) {
    const float f = (float)x[i];
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (dtype == RATTN_F32) {
      memcpy(&bytes[4 * i], &bits, 4);
      continue;
    }
    uint16_t half = bits >> 16;
    if (dtype == RATTN_F16) {
      const uint16_t sign = half & 0x8000;
      const double a = fabs(x[i]);
      int e;
      frexp(a, &e);
      e = std::max(e, -13);
      half = sign;
      if (a != a)
        half |= 0x7e00;
      else if (std::isinf(a))
        half |= 0x7c00;
      else if (a != 0)  // a is n units, 1024 <= n < 2048 unless subnormal
        half |= (uint16_t)(((e + 13) << 10) + (int)ldexp(a, 11 - e));
    }
    memcpy(&bytes[2 * i], &half, 2);
  }
  return bytes;
}

Problem::Problem(const Config &config) : c(config) {
  std::mt19937_64 rng(c.rows * 7919 + c.keys * 131 + c.dim * 17 + c.heads + c.mask * 5 + c.dtype);
  std::normal_distribution<double> normal;
  scale = c.scale != 0 ? c.scale : (float)(1 / sqrt((double)c.dim));
  tokens = c.before + c.rows + c.after;
  const auto fill = [&](std::vector<double> &x, int64_t n, double size) {
    x.resize(n);
    for (double &y : x) y = round_to(size * normal(rng), c.dtype);
  };
  fill(q, (int64_t)tokens * c.heads * c.dim, c.size);
  fill(dout, (int64_t)tokens * c.heads * c.dim, 1);
  fill(k, (int64_t)c.keys * c.kv_heads * c.dim, c.size);
  fill(v, (int64_t)c.keys * c.kv_heads * c.dim, 1);
  const auto below = [&](int n) { return (int)(rng() % (uint64_t)std::max(n, 1)); };

  std::vector<int> starts = {0};
  while (starts.back() < c.keys) starts.push_back(std::min(c.keys, starts.back() + 1 + below(90)));
  lo.resize(c.rows), hi.resize(c.rows);
  for (int i = 0; i < c.rows; i++) {
    const int own = c.keys - c.rows + i;  // the query's own position: aligned at the end
    int a = 0, b = c.keys;
    if (c.mask == CAUSAL || c.mask == WINDOW || c.mask == HOLES) b = own + 1;
    if (c.mask == WINDOW) a = own - 39;
    if (c.mask == HOLES && (i % 3 == 1 || (i > 50 && i < 120))) b = 0;
    if (c.mask == DOCUMENTS) {
      const int64_t at = (int64_t)i * c.keys / c.rows;
      for (size_t d = 1; d < starts.size(); d++)
        if (at < starts[d]) {
          a = starts[d - 1], b = starts[d];
          break;
        }
    }
    if (c.mask == RAGGED) a = below(c.keys + 1), b = below(c.keys + 1);
    if (c.mask == RAGGED && a > b) std::swap(a, b);
    lo[i] = std::max(a, 0), hi[i] = std::min(b, c.keys);
    if (lo[i] >= hi[i]) lo[i] = hi[i] = 0;
  }
  cuts = {0, c.keys};
  while ((int)cuts.size() <= c.chunks) cuts.push_back(below(c.keys + 1));
  std::sort(cuts.begin(), cuts.end());
  if (c.odd != 0) {
    std::vector<double> &x = c.odd_tensor == 0 ? q : c.odd_tensor == 1 ? dout : c.odd_tensor == 2 ? k : v;
    const int64_t n = c.odd_tensor < 2 ? (int64_t)c.heads * c.dim : (int64_t)c.kv_heads * c.dim;
    for (int token : {100, 173}) x[token * n + c.odd_tensor % n] = c.odd;
  }
  if (c.lost) {
    for (size_t i = 0; i < k.size(); i += c.dim) k[i] = 1;
    for (int token : {100, 173}) {
      const int64_t at = (int64_t)token * c.heads * c.dim;
      q[at] = -INFINITY, dout[at] = INFINITY;
    }
  }
}

// Calls f(i) for all i in [0, n) on all processors.
template <class F>
static void parallel(int n, F f) {
  const int count = std::min<int>(n, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (int t = 0; t < count; t++)
    threads.emplace_back([=, &f] {
      for (int i = t; i < n; i += count) f(i);
    });
  for (std::thread &t : threads) t.join();
}

static double dot(const double *a, const double *b, int n) {
  double s[4] = {};
  int i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; j++) s[j] += a[i + j] * b[i + j];
  for (; i < n; i++) s[0] += a[i] * b[i];
  return s[0] + s[1] + (s[2] + s[3]);
}

static void axpy(double *y, double a, const double *x, int n) {
  for (int i = 0; i < n; i++) y[i] += a * x[i];
}

Results<double> solve(const Problem &p) {
  const Config &c = p.c;
  const int group = c.heads / c.kv_heads, dim = c.dim;
  Results<double> r;
  r.out.assign(p.q.size(), MARK), r.dq.assign(p.q.size(), MARK);
  r.lse.assign((size_t)p.tokens * c.heads, MARK);
  r.dk.assign(p.k.size(), 0), r.dv.assign(p.v.size(), 0);
  std::vector<double> delta(r.lse.size());
  const auto row_of = [&](int i, int h) { return (int64_t)(c.before + i) * c.heads + h; };
  parallel(c.rows * c.heads, [&](int n) {
    const int i = n / c.heads, h = n % c.heads;
    const int64_t row = row_of(i, h);
    const double *q = &p.q[row * dim], *dout = &p.dout[row * dim];
    double *out = &r.out[row * dim], *dq = &r.dq[row * dim];
    const auto at = [&](int j) { return ((int64_t)j * c.kv_heads + h / group) * dim; };
    std::fill(out, out + dim, 0.0), std::fill(dq, dq + dim, 0.0);
    std::vector<double> s(c.keys);
    double top = -INFINITY, sum = 0;
    bool weighs = false;
    for (int j = p.lo[i]; j < p.hi[i]; j++) {
      s[j] = (double)p.scale * dot(q, &p.k[at(j)], dim);
      top = fmax(top, s[j]), weighs |= s[j] != -INFINITY;
    }
    r.lse[row] = -INFINITY;
    if (!weighs) return;  // it sees nothing, or scores of -Inf alone
    for (int j = p.lo[i]; j < p.hi[i]; j++) sum += exp(s[j] - top);
    r.lse[row] = top + log(sum);
    for (int j = p.lo[i]; j < p.hi[i]; j++) axpy(out, exp(s[j] - r.lse[row]), &p.v[at(j)], dim);
    delta[row] = dot(out, dout, dim);
    for (int j = p.lo[i]; j < p.hi[i]; j++) {
      const double w = exp(s[j] - r.lse[row]);
      axpy(dq, (double)p.scale * w * (dot(dout, &p.v[at(j)], dim) - delta[row]), &p.k[at(j)], dim);
    }
  });
  parallel(c.keys * c.kv_heads, [&](int n) {
    const int j = n / c.kv_heads, kv_head = n % c.kv_heads;
    const int64_t at = (int64_t)n * dim;
    for (int i = 0; i < c.rows; i++)
      for (int h = kv_head * group; h < (kv_head + 1) * group && p.lo[i] <= j && j < p.hi[i]; h++) {
        const int64_t row = row_of(i, h);
        if (r.lse[row] == -INFINITY) continue;
        const double *q = &p.q[row * dim], *dout = &p.dout[row * dim];
        const double w = exp((double)p.scale * dot(q, &p.k[at], dim) - r.lse[row]);
        axpy(&r.dk[at], (double)p.scale * w * (dot(dout, &p.v[at], dim) - delta[row]), q, dim);
        axpy(&r.dv[at], w, dout, dim);
      }
  });
  return r;
}

void must(const rattn_backend *b, rattn_ctx *ctx, int32_t status, const char *what) {
  if (status == RATTN_OK) return;
  fprintf(stderr, "driver: %s: %s\n", what, b->error(ctx));
  exit(4);
}

namespace {
// Device memory of a run.
struct Memory {
  const rattn_backend *b;
  rattn_ctx *ctx;
  std::vector<void *> pieces;
  void *put(const void *x, int64_t bytes) {
    void *p;
    must(b, ctx, b->alloc(ctx, bytes, &p), "alloc");
    pieces.push_back(p);
    must(b, ctx, b->write(ctx, p, x, bytes), "write");
    return p;
  }
  template <class T>
  void *put(const std::vector<T> &x) {
    return put(x.data(), (int64_t)(x.size() * sizeof(T)));
  }
  void get(std::vector<float> &x, const void *p) {
    must(b, ctx, b->read(ctx, x.data(), p, (int64_t)x.size() * 4), "read");
  }
  ~Memory() {
    for (void *p : pieces) b->free(ctx, p);
  }
};
}  // namespace

Results<float> run(const rattn_backend *b, rattn_ctx *ctx, const Problem &p) {
  const Config &c = p.c;
  const int64_t size = (int64_t)c.kv_heads * c.dim;
  Memory m = {b, ctx, {}};
  Results<float> r;
  r.out.assign(p.q.size(), MARK), r.dq = r.out, r.lse.assign((size_t)p.tokens * c.heads, MARK);
  r.dk.assign(p.k.size(), 0), r.dv.assign(p.v.size(), 0);
  const void *q = m.put(encode(p.q, c.dtype)), *dout = m.put(encode(p.dout, c.dtype));
  float *out = (float *)m.put(r.out), *dq = (float *)m.put(r.dq), *lse = (float *)m.put(r.lse),
        *delta = (float *)m.put(r.lse);
  const rattn_shape shape = {c.dtype, c.heads, c.kv_heads, c.dim, p.scale};

  std::vector<const void *> kv(c.chunks);
  std::vector<float *> dkv(c.chunks);
  std::vector<rattn_rows> rows(c.chunks);
  for (int i = 0; i < c.chunks; i++) {
    const int start = p.cuts[i], n = p.cuts[i + 1] - start;
    std::vector<double> x;
    for (int j = start; j < start + n; j++) {
      x.insert(x.end(), &p.k[j * size], &p.k[j * size] + size);
      x.insert(x.end(), &p.v[j * size], &p.v[j * size] + size);
    }
    std::vector<int32_t> lo(c.rows + 1), hi(c.rows + 1);
    for (int t = 0; t < c.rows; t++) {
      lo[t] = std::max(p.lo[t] - start, 0), hi[t] = std::min(p.hi[t] - start, n);
      if (lo[t] >= hi[t]) lo[t] = n - t % (n + 1), hi[t] = lo[t] / 2;  // one of the ways to say nothing
    }
    int64_t span = 0, tiles = 0;
    for (int t = 0; t < c.rows; t += 128) {
      int first = n, end = 0;
      for (int r = t; r < std::min(t + 128, c.rows); r++)
        if (lo[r] < hi[r]) first = std::min(first, lo[r]), end = std::max(end, hi[r]);
      span = std::max<int64_t>(span, end - first);
      if (first < end) tiles += (end + 63) / 64 - first / 64;
    }
    kv[i] = m.put(encode(x, c.dtype));
    dkv[i] = (float *)m.put(std::vector<float>(2 * n * size + 1));
    rows[i] = {c.before,         c.rows,           (const int32_t *)m.put(lo), (const int32_t *)m.put(hi),
               i % 2 ? 0 : span, i % 2 ? 0 : tiles};
  }
  for (int i = 0; i < c.chunks; i++) {
    const rattn_forward_args a = {shape, rows[i], p.cuts[i + 1] - p.cuts[i], q, kv[i], out, lse, i == 0};
    must(b, ctx, b->forward(ctx, &a), "forward");
  }
  const rattn_delta_args d = {shape, p.tokens, out, dout, delta};
  must(b, ctx, b->delta(ctx, &d), "delta");
  for (int i = 0; i < c.chunks; i++) {
    const rattn_backward_args a = {shape,  rows[i], p.cuts[i + 1] - p.cuts[i], q, kv[i], dout, lse, delta, dq,
                                   dkv[i], i == 0};
    must(b, ctx, b->backward(ctx, &a), "backward");
  }
  must(b, ctx, b->sync(ctx), "sync");
  m.get(r.out, out), m.get(r.lse, lse), m.get(r.dq, dq);
  for (int i = 0; i < c.chunks; i++) {
    const int start = p.cuts[i], n = p.cuts[i + 1] - start;
    std::vector<float> g(2 * n * size);
    m.get(g, dkv[i]);
    for (int j = 0; j < n; j++) {
      std::copy_n(&g[2 * j * size], size, &r.dk[(start + j) * size]);
      std::copy_n(&g[(2 * j + 1) * size], size, &r.dv[(start + j) * size]);
    }
  }
  return r;
}

// Compares vectors of n elements, one by one and all together. A vector counts as no
// smaller than the root mean square of all, and all as no smaller than least.
static std::string compare(const char *name, const std::vector<float> &got, const std::vector<double> &want,
                           int n, double bound, double least, double *worst) {
  double all_error = 0, all = 0;
  int64_t count = 0;
  std::vector<std::pair<double, double>> vectors;
  char s[160];
  for (size_t i = 0; i < want.size(); i += n) {
    double error = 0, norm = 0;
    const bool marked = want[i] == MARK;
    for (size_t j = i; j < i + n; j++) {
      const double g = got[j], w = want[j];
      if (marked && g != MARK) {
        snprintf(s, sizeof s, "%s[%zu] was written: %g", name, j, g);
        return s;
      }
      if (std::isinf(w) && g == w) continue;
      error += (g - w) * (g - w), norm += w * w;
    }
    if (marked || !std::isfinite(norm)) continue;
    vectors.push_back({error, norm});
    all_error += error, all += norm, count++;
  }
  if (count == 0) return "";
  const double mean = std::max(all / count, least * least), total = sqrt(all_error / (mean * count));
  if (mean == 0) return all_error == 0 ? "" : std::string(name) + " is not 0";
  *worst = fmax(*worst, total / bound);
  if (!(total <= bound)) {
    snprintf(s, sizeof s, "%s is off by %.2e, bound %.2e", name, total, bound);
    return s;
  }
  const double row_bound = 4 * bound;
  for (size_t i = 0; i < vectors.size(); i++) {
    const double e = sqrt(vectors[i].first / std::max(vectors[i].second, mean));
    if (e <= row_bound) continue;
    snprintf(s, sizeof s, "%s: vector %zu of those that are finite is off by %.2e, bound %.2e", name, i, e,
             row_bound);
    return s;
  }
  return "";
}

std::string verify(const rattn_backend *b, rattn_ctx *ctx, const Config &c, double *worst) {
  const Problem p(c);
  const Results<double> want = solve(p);
  const Results<float> got = run(b, ctx, p);
  // SPEC 3; lse is f32's in every dtype.
  const double out_bound = c.dtype == RATTN_F32 ? 1e-5 : c.dtype == RATTN_BF16 ? 6e-3 : 1e-3;
  const double grad_bound = c.dtype == RATTN_F32 ? 3e-5 : c.dtype == RATTN_BF16 ? 1e-2 : 2e-3;
  double most = 0;
  for (double x : want.lse)
    if (x != MARK && std::isfinite(x)) most = fmax(most, fabs(x));
  const double score = ldexp(most, -22);
  // A row that sees one key has ds = 0 but for roundings of dout.v.
  const double least = 0.05 * fabs(p.scale) * c.size * c.dim;
  const double many = sqrt(fmax(1, (double)c.rows * c.heads / c.kv_heads / std::max(c.keys, 1)));
  std::string wrong = compare("out", got.out, want.out, c.dim, out_bound + score, 0, worst);
  if (wrong.empty()) wrong = compare("lse", got.lse, want.lse, c.heads, 1e-5 + score, 0, worst);
  if (wrong.empty()) wrong = compare("dq", got.dq, want.dq, c.dim, grad_bound + score, least, worst);
  if (wrong.empty()) wrong = compare("dk", got.dk, want.dk, c.dim, grad_bound + score, least * many, worst);
  if (wrong.empty()) wrong = compare("dv", got.dv, want.dv, c.dim, grad_bound + score, 0, worst);
  for (int i = 0; i < c.rows && wrong.empty(); i++)
    for (int h = 0; h < c.heads && p.lo[i] >= p.hi[i]; h++) {
      const int64_t row = (int64_t)(c.before + i) * c.heads + h;
      bool zero = got.lse[row] == -INFINITY;
      for (int d = 0; d < c.dim; d++)
        zero = zero && got.out[row * c.dim + d] == 0 && got.dq[row * c.dim + d] == 0;
      if (!zero) wrong = "row " + std::to_string(i) + " sees nothing, and out, lse or dq is not 0, -Inf, 0";
    }
  return wrong;
}

std::string repeat(const rattn_backend *b, rattn_ctx *ctx, const Config &c, int times) {
  const Problem p(c);
  const Results<float> first = run(b, ctx, p);
  const auto same = [](const std::vector<float> &x, const std::vector<float> &y) {
    return memcmp(x.data(), y.data(), x.size() * 4) == 0;
  };
  for (int i = 1; i < times; i++) {
    const Results<float> r = run(b, ctx, p);
    const char *part = !same(r.out, first.out)   ? "out"
                       : !same(r.lse, first.lse) ? "lse"
                       : !same(r.dq, first.dq)   ? "dq"
                       : !same(r.dk, first.dk)   ? "dk"
                       : !same(r.dv, first.dv)   ? "dv"
                                                 : nullptr;
    if (part) return std::string(part) + " of run " + std::to_string(i) + " differs in bits from the first";
  }
  return "";
}

}  // namespace check
