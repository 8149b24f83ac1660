// cases.cpp: what the driver tries.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

#include "check.h"

namespace check {

namespace {
struct Runner {
  const rattn_backend *b;
  rattn_ctx *ctx;
  int only;
  int count = 0, failures = 0;
  double worst[3] = {};

  void operator()(const Config &c) {
    if (only && c.dim != only) return;
    count++;
    const std::string wrong = verify(b, ctx, c, &worst[c.dtype]);
    if (getenv("DRIVER_VERBOSE"))
      printf("%s: %s\n", text(c).c_str(), wrong.empty() ? "ok" : wrong.c_str()), fflush(stdout);
    if (wrong.empty()) return;
    failures++;
    printf("WRONG  %s: %s\n", text(c).c_str(), wrong.c_str());
  }
};
}  // namespace

int run_all(const rattn_backend *b, rattn_ctx *ctx, bool quick, int only) {
  Runner run = {b, ctx, only};
  const int groups[][2] = {{1, 1}, {2, 1}, {8, 1}, {6, 2}, {4, 4}};
  // Head sizes, in turn with dtypes, groups, masks, chunks.
  int n = 0;
  for (int dim : {1, 3, 8, 16, 63, 64, 65, 72, 80, 96, 128, 136, 160, 192, 256, 264, 320, 511, 512, 520, 576})
    for (int dtype = 0; dtype < 3; dtype++, n++) {
      Config c = {dtype, groups[n % 5][0],  groups[n % 5][1], dim,       0,
                  0,     (Mask)(n % MASKS), 1 + n % 3,        n % 2 * 5, n % 3};
      c.rows = std::max(70, std::min(400, 60000 / (c.heads * dim)));
      c.keys = c.rows + 30 * (n % 4);
      run(c);
    }
  // Every mask with every dtype at the sizes that have kernels of their own.
  for (int dim : {64, 128, 256, 512, 576})
    for (int mask = 0; mask < MASKS; mask++)
      for (int dtype = 0; dtype < 3; dtype++) {
        if (quick && (mask + dtype) % 3) continue;
        run({dtype, 2, 1, dim, 300, 333, (Mask)mask, 1 + mask % 2, 3, 4});
      }
  // Counts around the sizes of tiles.
  n = 0;
  for (int rows : {1, 63, 64, 65, 127, 200})
    for (int keys : {0, 1, 63, 64, 65, 127, 200})
      for (int dtype = 0; dtype < 3; dtype++, n++)
        run({dtype, 2, 1, n % 2 ? 16 : 128, rows, keys, (Mask)(n % MASKS), 1 + n % 2, n % 3});
  // The same above 256, where rows of a tile are of several heads.
  const int above[][2] = {{1, 1}, {2, 1}, {8, 1}, {6, 3}, {12, 1}};
  for (int rows : {1, 7, 8, 9, 63, 64, 65, 127, 200})
    for (int keys : {0, 1, 63, 64, 65, 127, 200})
      for (int dtype = 1; dtype < 3; dtype++, n++) {
        if (quick && n % 9) continue;
        run({dtype, above[n % 5][0], above[n % 5][1], n % 7 ? 512 : 328, rows, keys, (Mask)(n % MASKS),
             1 + n % 2, n % 3});
      }
  // And up to 256, where sm_90's tiles are of 128 or 192 rows.
  for (int dim : {64, 96, 128, 192, 256})
    for (int rows : {1, 15, 16, 17, 24, 129})
      for (int keys : {1, 65, 127, 129, 300})
        for (int dtype = 1; dtype < 3; dtype++, n++) {
          if (quick && n % 13) continue;
          run({dtype, above[n % 5][0], above[n % 5][1], dim, rows, keys, (Mask)(n % MASKS), 1 + n % 2,
               n % 3});
        }
  // Many tiles of keys, so that rings go round.
  for (int dim : {64, 96, 128, 192, 256})
    for (int dtype = 1; dtype < 3; dtype++)
      run({dtype, 4, 2, dim, 150, 1100, dtype == 1 ? CAUSAL : RAGGED, 1});
  // The same with large scores, so that maxima move late.
  for (int dtype = 1; dtype < 3; dtype++) run({dtype, 2, 1, 64, 40, 900, FULL, 1, 0, 0, 0, 4});
  // Heads whose keys and values do not fit L2 together.
  if (!quick) run({RATTN_BF16, 3, 3, 256, 70, 16384, CAUSAL, 1});
  for (int mask = 0; mask < MASKS; mask++)
    for (int dtype = 1; dtype < 3; dtype++)
      for (int heads : {1, 2, 8}) {
        if (quick) continue;
        run({dtype, heads, 1, 512, 500, 1000, (Mask)mask, 2, 1, 2});
      }
  for (int dim : {64, 128, 256, 512})
    for (int dtype = 0; dtype < 3; dtype++) {
      if (quick) continue;
      run({dtype, 4, 1, dim, 1000, 1000, CAUSAL, 1});
      run({dtype, 2, 2, dim, 127, 1000, RAGGED, 3});
    }
  for (int dtype = 0; dtype < 3; dtype++) {
    run({dtype, 1, 1, 8, 70, 5000, RAGGED, 1});
    run({dtype, 70, 70, 8, 5, 9, CAUSAL, 2});
    // Scales that are negative, tiny, large, and large scores.
    for (int dim : {40, 128, 256}) {
      run({dtype, 2, 1, dim, 130, 150, CAUSAL, 2, 0, 0, -0.2f});
      run({dtype, 2, 1, dim, 130, 150, CAUSAL, 2, 0, 0, 1e-30f});
      run({dtype, 2, 1, dim, 130, 150, FULL, 2, 0, 0, 1.0f});
    }
    run({dtype, 2, 1, 64, 100, 150, RAGGED, 3, 0, 0, 0, 9});
    // An lse so low that for keys that are not there, whose scores are 0, p would be Inf.
    run({dtype, 2, 1, 64, 100, 1, FULL, 1, 0, 0, 0, 9});
  }
  // Inf and NaN reach who sees them and nobody else.
  const double odd[] = {NAN, INFINITY, -INFINITY};
  for (int dim : {9, 64, 128, 200, 512})
    for (Mask mask : {CAUSAL, DOCUMENTS, WINDOW, RAGGED})
      for (int tensor = 0; tensor < 4; tensor++)
        for (int i = 0; i < 3; i++) {
          if (quick && (tensor + i + mask + dim) % 5) continue;
          run({i, 2, 1, dim, 210, 210, mask, 1 + i, 0, 0, 0, 1, odd[(i + tensor) % 3], tensor});
        }
  // Rows with scores of -Inf alone weigh nothing, and no Inf of theirs reaches a gradient.
  for (int dim : {9, 64, 128, 200, 512})
    for (Mask mask : {FULL, CAUSAL, RAGGED})
      for (int i = 0; i < 3; i++) {
        Config c = {i, 2, 1, dim, 210, 210, mask, 1 + i};
        c.lost = true;
        run(c);
      }
  printf("%d cases, %d wrong; greatest error over its bound: f32 %.2f, bf16 %.2f, f16 %.2f\n", run.count,
         run.failures, run.worst[0], run.worst[1], run.worst[2]);

  int differ = 0;
  for (int dtype = 0; dtype < 3; dtype++)
    for (int dim : {64, 80, 128, 256, 512}) {
      if (only && dim != only) continue;
      const Config c = {dtype, 4, 2, dim, 300, 300, CAUSAL, 2};
      const std::string wrong = repeat(b, ctx, c, quick ? 2 : 20);
      if (wrong.empty()) continue;
      differ++;
      printf("DIFFERS  %s: %s\n", text(c).c_str(), wrong.c_str());
    }
  printf("repeats: %s\n", differ ? "DIFFER" : "the same bits");
  return run.failures + differ;
}

}  // namespace check
