// driver.cu: checks and times the CUDA backend by itself, without Go and MPI.
//
//   driver [--device N] [--portable] [--quick] [--only D] [--kept BYTES] check
//   driver [--device N] [--portable] [--forward] [--fold] bench [DTYPE,HEADS/KV,DIM,SEQ,MASK ...]
//
// Masks: full; the others are causal: causal, window:W, docs:N (documents of N tokens),
// docs:FILE (a length a line), docs:lognormal:MEDIAN:SIGMA. A full mask may have other keys than
// rows, as a step of a ring has: ROWSxKEYS in place of SEQ.
//
// bench prints a row a shape, of forward and backward: milliseconds and TFLOP/s of short
// runs (median of repeats over 0.2 s after 0.3 s of rest, by CUDA events), and TFLOP/s of
// long ones (mean over 0.5 s back to back, after 0.3 s of the same: GPUs lower their clock
// when they draw too much power). FLOPs are 4 heads dim pairs forward and 2.5 times that
// backward. A few rows and keys of the result are checked before. --forward leaves the
// backward out; --fold adds to results that are there, as a step of a ring does.
//
// --portable takes the kernels for sm_80 in place of those for sm_90a. --kept gives the Hopper
// backward fewer bytes for weights, so that calls go part by part.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"
#include "context.h"

using namespace check;

static const char *const DEFAULT_SHAPES[] = {
    "bf16,32/32,64,16384,causal",     "bf16,16/16,128,16384,causal",
    "bf16,8/8,256,16384,causal",      "bf16,8/8,512,16384,causal",
    "bf16,32/32,64,16384,full",       "bf16,16/16,128,16384,full",
    "bf16,8/8,256,16384,full",        "bf16,8/8,512,16384,full",
    "bf16,64/8,128,16384,causal",     "bf16,32/4,512,16384,causal",
    "bf16,32/4,512,16384,full",       "bf16,32/4,512,65536,docs:lognormal:1000:1",
    "bf16,8/8,256,65536,window:1024", "bf16,16/16,128,16384,docs:780",
    "f16,16/16,128,16384,causal",     "bf16,8/8,80,16384,causal",
    "bf16,8/8,576,8192,causal",       "f32,16/16,64,4096,causal",
    "f32,8/8,128,4096,causal",        "f32,4/4,512,4096,causal",
};

struct Shape {
  int dtype, heads, kv_heads, dim, seq, keys, window;
  bool causal;
  std::vector<int> docs;  // lengths, repeated to fill the sequence
  char size[24], mask[128];
};

static std::vector<int> document_lengths(const char *s) {
  std::vector<int> lengths;
  double median, sigma;
  if (sscanf(s, "lognormal:%lf:%lf", &median, &sigma) == 2) {
    std::mt19937_64 rng(1);
    std::lognormal_distribution<double> length(log(median), sigma);
    while (lengths.size() < 4096) lengths.push_back(std::max(1, (int)length(rng)));
  } else if (atoi(s) > 0) {
    lengths.push_back(atoi(s));
  } else if (FILE *f = fopen(s, "r")) {
    for (int n; fscanf(f, "%d", &n) == 1 && n > 0;) lengths.push_back(n);
    fclose(f);
  }
  if (lengths.empty()) {
    fprintf(stderr, "driver: no document lengths in %s\n", s);
    exit(2);
  }
  return lengths;
}

static Shape parse(const char *s) {
  Shape x = {};
  char dtype[8];
  const int fields =
      sscanf(s, "%7[^,],%d/%d,%d,%23[^,],%127s", dtype, &x.heads, &x.kv_heads, &x.dim, x.size, x.mask);
  const int sizes = fields == 6 ? sscanf(x.size, "%dx%d", &x.seq, &x.keys) : 0;
  if (sizes == 1) x.keys = x.seq;
  if (sizes < 1 || x.keys < 1 || (sizes == 2 && strcmp(x.mask, "full"))) {
    fprintf(stderr, "driver: %s is not DTYPE,HEADS/KV,DIM,SEQ,MASK or DTYPE,HEADS/KV,DIM,ROWSxKEYS,full\n",
            s);
    exit(2);
  }
  x.dtype = !strcmp(dtype, "f32") ? RATTN_F32 : !strcmp(dtype, "bf16") ? RATTN_BF16 : RATTN_F16;
  x.causal = strcmp(x.mask, "full") != 0;
  sscanf(x.mask, "window:%d", &x.window);
  if (!strncmp(x.mask, "docs:", 5)) x.docs = document_lengths(x.mask + 5);
  return x;
}

// Random elements of the dtype as bytes: 4096 normal numbers, taken in random order.
static std::vector<char> random_bytes(int64_t n, int dtype, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<double> few(4096);
  for (double &x : few) x = round_to(normal(rng), dtype);
  const std::vector<char> table = encode(few, dtype);
  const int64_t size = element_size(dtype);
  std::vector<char> bytes(n * size);
  uint64_t state = seed * 2 + 1;
  for (int64_t i = 0; i < n; i++) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    memcpy(&bytes[i * size], &table[(state >> 52) * size], size);
  }
  return bytes;
}

static double element(const std::vector<char> &x, int64_t i, int dtype) {
  uint32_t bits = 0;
  if (dtype == RATTN_F32) {
    memcpy(&bits, &x[4 * i], 4);
  } else {
    uint16_t half;
    memcpy(&half, &x[2 * i], 2);
    bits = (uint32_t)half << 16;
    if (dtype == RATTN_F16) {
      const double m = half & 0x3ff;
      const int e = half >> 10 & 31;
      return (half & 0x8000 ? -1 : 1) * (e ? ldexp(1024 + m, e - 25) : ldexp(m, -24));
    }
  }
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

struct Bench {
  const rattn_backend *b;
  rattn_ctx *ctx;
  Shape s;
  std::vector<char> q, kv, dout;
  std::vector<int32_t> lo, hi;
  double pairs = 0;
  std::vector<void *> pieces;

  void *put(const void *x, int64_t bytes) {
    void *p;
    must(b, ctx, b->alloc(ctx, bytes, &p), "alloc");
    pieces.push_back(p);
    if (x)
      must(b, ctx, b->write(ctx, p, x, bytes), "write");
    else
      must(b, ctx, b->zero(ctx, p, bytes), "zero");
    return p;
  }

  // Without the folders of a file of lengths.
  const char *mask_name() const {
    const char *slash = strrchr(s.mask, '/');
    return slash ? slash + 1 : s.mask;
  }

  std::vector<float> get(const float *p, int64_t n) {
    std::vector<float> x(n);
    must(b, ctx, b->read(ctx, x.data(), p, n * 4), "read");
    return x;
  }

  double at(const std::vector<char> &x, int64_t row, int d) const {
    return element(x, row * s.dim + d, s.dtype);
  }
  double dot(const std::vector<char> &x, int64_t i, const std::vector<char> &y, int64_t j) const {
    double sum = 0;
    for (int d = 0; d < s.dim; d++) sum += at(x, i, d) * at(y, j, d);
    return sum;
  }

  // Greatest error of sampled rows of out, dq and keys of dk, dv, relative to the row;
  // dq_p is NULL where there was no backward.
  double sample(const float *out_p, const float *lse_p, const float *dq_p, const float *dkv_p,
                const float *delta_p, double scale) {
    const int64_t T = s.seq;
    const std::vector<float> lse = get(lse_p, T * s.heads),
                             delta = dq_p ? get(delta_p, T * s.heads) : std::vector<float>();
    double worst = 0;
    const auto error = [&](const std::vector<double> &want, const float *p, int64_t row) {
      const std::vector<float> got = get(p + row * s.dim, s.dim);
      double e = 0, n = 0;
      for (int d = 0; d < s.dim; d++) e += (got[d] - want[d]) * (got[d] - want[d]), n += want[d] * want[d];
      worst = fmax(worst, !(e >= 0) ? 1e9 : sqrt(e / fmax(n, 1e-30)));
    };
    const int group = s.heads / s.kv_heads;
    for (int64_t t : {T - 1, T / 2, (int64_t)7})
      for (int h : {0, s.heads - 1}) {
        const int64_t row = t * s.heads + h, kvh = h / group;
        std::vector<double> x, out(s.dim), dq(s.dim);
        double top = -INFINITY, sum = 0, d_out = 0;
        for (int j = lo[t]; j < hi[t]; j++) {
          x.push_back(scale * dot(q, row, kv, (int64_t)j * 2 * s.kv_heads + kvh));
          top = fmax(top, x.back());
        }
        for (double &y : x) sum += y = exp(y - top);
        for (int j = lo[t]; j < hi[t]; j++)
          for (int d = 0; d < s.dim; d++)
            out[d] += x[j - lo[t]] / sum * at(kv, ((int64_t)j * 2 + 1) * s.kv_heads + kvh, d);
        error(out, out_p, row);
        worst = fmax(worst, fabs(lse[row] - top - log(sum)));
        if (!dq_p) continue;
        for (int d = 0; d < s.dim; d++) d_out += out[d] * at(dout, row, d);
        for (int j = lo[t]; j < hi[t]; j++) {
          const double ds = scale * x[j - lo[t]] / sum *
                            (dot(dout, row, kv, ((int64_t)j * 2 + 1) * s.kv_heads + kvh) - d_out);
          for (int d = 0; d < s.dim; d++) dq[d] += ds * at(kv, (int64_t)j * 2 * s.kv_heads + kvh, d);
        }
        error(dq, dq_p, row);
      }
    if (!dq_p) return worst;
    for (int64_t j : {(int64_t)s.keys / 3, (int64_t)s.keys - 2})
      for (int kvh : {s.kv_heads - 1}) {
        const int64_t k = j * 2 * s.kv_heads + kvh, v = k + s.kv_heads;
        std::vector<double> dk(s.dim), dv(s.dim);
        for (int64_t t = 0; t < T; t++)
          for (int h = kvh * group; h < (kvh + 1) * group && lo[t] <= j && j < hi[t]; h++) {
            const int64_t row = t * s.heads + h;
            const double p = exp(scale * dot(q, row, kv, k) - lse[row]);
            const double ds = scale * p * (dot(dout, row, kv, v) - delta[row]);
            for (int d = 0; d < s.dim; d++) dk[d] += ds * at(q, row, d), dv[d] += p * at(dout, row, d);
          }
        error(dk, dkv_p, k);
        error(dv, dkv_p, v);
      }
    return worst;
  }

  // Milliseconds of f, which enqueues: alone, and in a row of many.
  struct Times {
    double alone, in_a_row;
  };
  template <class F>
  Times times(F f) {
    cudaEvent_t a, z;
    cudaEventCreate(&a), cudaEventCreate(&z);
    const auto measure = [&](int n) {
      cudaEventRecord(a, ctx->stream);
      for (int i = 0; i < n; i++) f();
      cudaEventRecord(z, ctx->stream);
      must(b, ctx, b->sync(ctx), "sync");
      float ms = 0;
      cudaEventElapsedTime(&ms, a, z);
      return fmax(1e-3, ms / n);
    };
    measure(1);
    usleep(300000);
    std::vector<double> each;
    for (double sum = 0; sum < 200 && each.size() < 2000; sum += each.back()) each.push_back(measure(1));
    std::sort(each.begin(), each.end());
    const double alone = each[each.size() / 2];
    measure((int)ceil(300 / alone));
    const double in_a_row = measure((int)ceil(500 / alone));
    cudaEventDestroy(a), cudaEventDestroy(z);
    return {alone, in_a_row};
  }

  int run(bool forward_only, bool fold) {
    const int64_t T = s.seq, rows = T * s.heads * s.dim, keys = (int64_t)s.keys * 2 * s.kv_heads * s.dim;
    q = random_bytes(rows, s.dtype, 1), kv = random_bytes(keys, s.dtype, 3);
    if (!forward_only) dout = random_bytes(rows, s.dtype, 2);
    lo.resize(T), hi.resize(T);
    int64_t start = 0, end = 0;  // of the document
    int64_t first = 0, span = 0, tiles = 0;
    size_t document = 0;
    for (int64_t t = 0; t < T; t++) {
      while (!s.docs.empty() && t == end) start = end, end += s.docs[document++ % s.docs.size()];
      lo[t] = s.window ? (int32_t)std::max<int64_t>(0, t - s.window + 1) : (int32_t)start;
      hi[t] = s.causal ? (int32_t)t + 1 : s.keys;
      pairs += hi[t] - lo[t];
      first = t % 128 ? std::min<int64_t>(first, lo[t]) : lo[t];
      span = std::max(span, hi[t] - first);
      if (t % 128 == 127 || t == T - 1) tiles += (hi[t] + 63) / 64 - first / 64;
    }
    const float scale = (float)(1 / sqrt((double)s.dim));
    const rattn_shape shape = {s.dtype, s.heads, s.kv_heads, s.dim, scale};
    float *out = (float *)put(NULL, rows * 4), *lse = (float *)put(NULL, T * s.heads * 4);
    const void *qp = put(q.data(), q.size()), *kvp = put(kv.data(), kv.size());
    const rattn_rows r = {
        0, T, (const int32_t *)put(lo.data(), T * 4), (const int32_t *)put(hi.data(), T * 4), span, tiles};
    rattn_forward_args f = {shape, r, s.keys, qp, kvp, out, lse, 1};
    must(b, ctx, b->forward(ctx, &f), "forward");
    rattn_backward_args g = {};
    if (!forward_only) {
      float *dq = (float *)put(NULL, rows * 4), *delta = (float *)put(NULL, T * s.heads * 4),
            *dkv = (float *)put(NULL, keys * 4);
      const void *dp = put(dout.data(), dout.size());
      g = {shape, r, s.keys, qp, kvp, dp, lse, delta, dq, dkv, 1};
      const rattn_delta_args d = {shape, T, out, dp, delta};
      must(b, ctx, b->delta(ctx, &d), "delta");
      must(b, ctx, b->backward(ctx, &g), "backward");
    }
    must(b, ctx, b->sync(ctx), "sync");
    const double error = sample(out, lse, g.dq, g.dkv, g.delta, scale);
    const bool right = error < (s.dtype == RATTN_F32 ? 1.2e-4 : s.dtype == RATTN_BF16 ? 4e-2 : 8e-3);
    if (fold) f.first = 0, g.first = 0;  // what is timed adds to what there is
    const double flops = 4.0 * s.heads * s.dim * pairs / 1e9;
    const char *const names[] = {"f32", "bf16", "f16"};
    char heads[24];
    snprintf(heads, sizeof heads, "%d/%d", s.heads, s.kv_heads);
    const Times t = times([&] { must(b, ctx, b->forward(ctx, &f), "forward"); });
    printf("%-5s %-6s %4d %7s %-12s %9.3f %7.1f %7.1f", names[s.dtype], heads, s.dim, s.size, mask_name(),
           t.alone, flops / t.alone, flops / t.in_a_row);
    if (!forward_only) {
      const Times u = times([&] { must(b, ctx, b->backward(ctx, &g), "backward"); });
      printf(" %9.3f %7.1f %7.1f", u.alone, 2.5 * flops / u.alone, 2.5 * flops / u.in_a_row);
    }
    printf("  %.1e%s\n", error, right ? "" : "  WRONG");
    fflush(stdout);
    for (void *p : pieces) b->free(ctx, p);
    return right ? 0 : 1;
  }
};

int main(int argc, char **argv) {
  int device = 0, only = 0, wrong = 0;
  bool portable = false, quick = false, forward_only = false, fold = false;
  int64_t kept = 0;
  const char *command = NULL;
  std::vector<const char *> shapes;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--device") && i + 1 < argc)
      device = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--portable"))
      portable = true;
    else if (!strcmp(argv[i], "--only") && i + 1 < argc)
      only = atoi(argv[++i]);  // head_dim of the cases
    else if (!strcmp(argv[i], "--kept") && i + 1 < argc)
      kept = atoll(argv[++i]);  // bytes for weights of the Hopper backward
    else if (!strcmp(argv[i], "--quick"))
      quick = true;
    else if (!strcmp(argv[i], "--fold"))
      fold = true;
    else if (!strcmp(argv[i], "--forward"))
      forward_only = true;
    else if (!command)
      command = argv[i];
    else
      shapes.push_back(argv[i]);
  }
  if (!command || (strcmp(command, "check") && strcmp(command, "bench"))) {
    fprintf(stderr,
            "usage: driver [--device N] [--portable] [--quick] [--only DIM] [--kept BYTES] check\n"
            "       driver [--device N] [--portable] [--forward] [--fold] bench "
            "[DTYPE,HEADS/KV,DIM,SEQ,MASK ...]\n");
    return 2;
  }
  const rattn_backend *b = rattn_cuda();
  rattn_ctx *ctx;
  if (b->open(device, 1, "", &ctx) != RATTN_OK) {
    fprintf(stderr, "driver: open: %s\n", b->error(NULL));
    return 3;
  }
  ctx->portable = portable;
  if (kept) ctx->kept_bytes = kept;
  printf("%s%s\n", b->name(ctx), portable ? ", kernels for sm_80" : "");
  if (!strcmp(command, "check")) {
    wrong = run_all(b, ctx, quick, only);
  } else {
    if (shapes.empty()) shapes.assign(std::begin(DEFAULT_SHAPES), std::end(DEFAULT_SHAPES));
    printf("%-5s %-6s %4s %7s %-12s %9s %7s %7s", "dtype", "heads", "D", "seq", "mask", "fwd ms", "TFLOP/s",
           "long");
    if (!forward_only) printf(" %9s %7s %7s", "bwd ms", "TFLOP/s", "long");
    printf("  error\n");
    for (const char *s : shapes)
      wrong += Bench{b, ctx, parse(s), {}, {}, {}, {}, {}, 0, {}}.run(forward_only, fold);
  }
  b->close(ctx);
  return wrong != 0;
}
