// timing.cu: when the GPU came to marks, on the host's clock.
//
// An event that is timed says how much later it was than another one. One event, the anchor,
// is recorded on an idle queue and waited for: the GPU came to it between the two times of the
// host's clock around that, some microseconds apart. It is taken to be the middle.
#include <stdlib.h>
#include <time.h>

#include "../kernels/rattn_cuda.h"
#include "context.h"

namespace rattn {

enum {
  TIMES = 4096,       // marks whose times are kept
  NARROW_NS = 50000,  // good enough for the anchor
};

static int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void time_mark(rattn_ctx *ctx, const Mark *mark) {
  if (!ctx->times || mark->id < ctx->first_timed) return;
  float ms = 0;
  if (cudaEventElapsedTime(&ms, ctx->anchor, mark->event) != cudaSuccess) cudaGetLastError();
  ctx->times[mark->id % TIMES] = ctx->anchor_ns + (int64_t)(ms * 1e6);
}

void drop_timing(rattn_ctx *ctx) {
  if (ctx->anchor) cudaEventDestroy(ctx->anchor);
  free(ctx->times);
  ctx->anchor = NULL;
  ctx->times = NULL;
}

// Events without times give way to events with them. No mark is in flight.
static int32_t begin_timing(rattn_ctx *ctx) {
  const int32_t status = check(ctx, cudaEventCreate(&ctx->anchor), "cudaEventCreate");
  if (status != RATTN_OK) return status;
  ctx->times = (int64_t *)calloc(TIMES, sizeof *ctx->times);
  if (!ctx->times) return fail(ctx, RATTN_ERR_MEMORY, "no memory for the times of %d marks", TIMES);
  for (int64_t i = 0; i < ctx->spare_count; i++) cudaEventDestroy(ctx->spare[i]);
  ctx->spare_count = 0;
  return RATTN_OK;
}

}  // namespace rattn

extern "C" int32_t rattn_cuda_timing(rattn_ctx *ctx) {
  using namespace rattn;
  int32_t status = rattn_cuda()->sync(ctx);
  if (status == RATTN_OK && !ctx->times) status = begin_timing(ctx);
  // The first one may have to wake the GPU; one that took long was interrupted.
  int64_t took = 0;
  for (int i = 0; i < 8 && status == RATTN_OK && (i < 2 || took > NARROW_NS); i++) {
    const int64_t before = now_ns();
    status = check(ctx, cudaEventRecord(ctx->anchor, ctx->stream), "record");
    if (status == RATTN_OK) status = check(ctx, cudaEventSynchronize(ctx->anchor), "sync");
    took = now_ns() - before;
    ctx->anchor_ns = before + took / 2;
  }
  ctx->first_timed = ctx->issued + 1;
  return status;
}

extern "C" int32_t rattn_cuda_ran(rattn_ctx *ctx, int64_t from, int64_t to, int64_t *began, int64_t *ended) {
  using namespace rattn;
  if (!ctx->times || from < ctx->first_timed || from <= ctx->issued - TIMES || to < from || to > ctx->passed)
    return fail(ctx, RATTN_ERR_ARG,
                "marks %lld and %lld are not timed: they begin with %lld, %lld was the last", (long long)from,
                (long long)to, (long long)ctx->first_timed, (long long)ctx->passed);
  const int64_t now = now_ns();
  *began = now - ctx->times[from % TIMES];
  *ended = now - ctx->times[to % TIMES];
  return RATTN_OK;
}
