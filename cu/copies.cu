// copies.cu: copies between page-locked host memory and the device beside the kernels:
// a stream each way, since a GPU has a copy engine for each.
#include <stdlib.h>

#include "context.h"

namespace rattn {

int32_t host_alloc(rattn_ctx *ctx, int64_t bytes, void **p) {
  *p = NULL;
  if (bytes < 0) return fail(ctx, RATTN_ERR_ARG, "size is %lld bytes", (long long)bytes);
  const int32_t status = check(ctx, cudaSetDevice(ctx->device), "cudaSetDevice");
  if (status != RATTN_OK) return status;
  return check(ctx, cudaHostAlloc(p, bytes ? (size_t)bytes : 64, cudaHostAllocPortable), "cudaHostAlloc");
}

void host_free(rattn_ctx *ctx, void *p) {
  if (cudaSetDevice(ctx->device) == cudaSuccess) cudaFreeHost(p);
  cudaGetLastError();
}

// The number of a copy's place that is free, -1 if there is no memory for one more.
static int64_t free_place(rattn_ctx *ctx) {
  for (int64_t i = 0; i < ctx->copy_count; i++)
    if (!ctx->copies[i].used) return i;
  if (ctx->copy_count == ctx->copy_room) {
    const int64_t room = ctx->copy_room ? 2 * ctx->copy_room : 16;
    Copy *copies = (Copy *)realloc(ctx->copies, room * sizeof *copies);
    if (!copies) return -1;
    ctx->copies = copies;
    ctx->copy_room = room;
  }
  ctx->copies[ctx->copy_count] = {NULL, false};
  return ctx->copy_count++;
}

static int32_t begin(rattn_ctx *ctx, cudaStream_t *stream, void *dst, const void *src, int64_t bytes,
                     cudaMemcpyKind kind, const char *what, int64_t *copy) {
  if (bytes < 0) return fail(ctx, RATTN_ERR_ARG, "size is %lld bytes", (long long)bytes);
  if (bytes && (!dst || !src))
    return fail(ctx, RATTN_ERR_ARG, "null pointer for %lld bytes", (long long)bytes);
  int32_t status = check(ctx, cudaSetDevice(ctx->device), "cudaSetDevice");
  if (status == RATTN_OK && !*stream)
    status = check(ctx, cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate");
  if (status != RATTN_OK) return status;
  const int64_t i = free_place(ctx);
  if (i < 0) return fail(ctx, RATTN_ERR_MEMORY, "no memory for %lld copies", (long long)ctx->copy_count + 1);
  Copy *c = &ctx->copies[i];
  if (!c->event)
    status = check(ctx, cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming), "cudaEventCreate");
  if (status == RATTN_OK) status = check(ctx, cudaMemcpyAsync(dst, src, (size_t)bytes, kind, *stream), what);
  if (status == RATTN_OK) status = check(ctx, cudaEventRecord(c->event, *stream), "record");
  if (status != RATTN_OK) return status;
  c->used = true;
  *copy = i + 1;
  return RATTN_OK;
}

int32_t copy_out(rattn_ctx *ctx, void *host, const void *src, int64_t bytes, int64_t *copy) {
  return begin(ctx, &ctx->out, host, src, bytes, cudaMemcpyDeviceToHost, "copy_out", copy);
}

int32_t copy_in(rattn_ctx *ctx, void *dst, const void *host, int64_t bytes, int64_t *copy) {
  return begin(ctx, &ctx->in, dst, host, bytes, cudaMemcpyHostToDevice, "copy_in", copy);
}

int32_t copied(rattn_ctx *ctx, int64_t copy, int32_t *done) {
  *done = 0;
  if (copy < 1 || copy > ctx->copy_count || !ctx->copies[copy - 1].used)
    return fail(ctx, RATTN_ERR_ARG, "there is no copy %lld", (long long)copy);
  const int32_t status = check(ctx, cudaSetDevice(ctx->device), "cudaSetDevice");
  if (status != RATTN_OK) return status;
  Copy *c = &ctx->copies[copy - 1];
  const cudaError_t error = cudaEventQuery(c->event);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // or the next launch would find it
    return RATTN_OK;
  }
  c->used = false;
  *done = 1;
  return check(ctx, error, "copied");
}

void close_copies(rattn_ctx *ctx) {
  for (cudaStream_t stream : {ctx->out, ctx->in}) {
    if (!stream) continue;
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  for (int64_t i = 0; i < ctx->copy_count; i++)
    if (ctx->copies[i].event) cudaEventDestroy(ctx->copies[i].event);
  free(ctx->copies);
}

}  // namespace rattn
