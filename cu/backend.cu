// backend.cu: the table of functions: checks arguments, enqueues on a stream, returns.
//
// The stream runs in order. Memory is cudaMalloc's, which every CUDA-aware MPI knows.
// The current device belongs to a thread, and calls may come from several in turn, so
// each sets it.
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/check.h"
#include "../kernels/rattn_cuda.h"
#include "context.h"
#include "hopper.h"

namespace rattn {

static thread_local char open_error[512];

int32_t fail(rattn_ctx *ctx, int32_t status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(ctx ? ctx->error : open_error, sizeof open_error, format, args);
  va_end(args);
  return status;
}

static const char *dtype_name(int32_t dtype) {
  return dtype == RATTN_F32 ? "f32" : dtype == RATTN_BF16 ? "bf16" : "f16";
}

int32_t check(rattn_ctx *ctx, cudaError_t status, const char *what) {
  if (status == cudaSuccess) return RATTN_OK;
  cudaGetLastError();  // an error that is not sticky is over
  const int32_t code = status == cudaErrorMemoryAllocation ? RATTN_ERR_MEMORY : RATTN_ERR_DEVICE;
  const Work *w = &ctx->work;
  if (!w->kernel) return fail(ctx, code, "%s on %s: %s", what, ctx->name, cudaGetErrorString(status));
  return fail(ctx, code,
              "%s on %s: %s (%s); last kernel: %s %s, %d/%d heads, head_dim %d, %lld rows, %lld keys", what,
              ctx->name, cudaGetErrorString(status), cudaGetErrorName(status), w->kernel,
              dtype_name(w->shape.dtype), w->shape.heads, w->shape.kv_heads, w->shape.head_dim,
              (long long)w->rows, (long long)w->tokens);
}

static int32_t enter(rattn_ctx *ctx) { return check(ctx, cudaSetDevice(ctx->device), "cudaSetDevice"); }

static int32_t prepare(rattn_ctx *ctx) {
  cudaDeviceProp p;
  int32_t status = enter(ctx);
  if (status == RATTN_OK)
    status = check(ctx, cudaGetDeviceProperties(&p, ctx->device), "cudaGetDeviceProperties");
  if (status != RATTN_OK) return status;
  snprintf(ctx->name, sizeof ctx->name, "cuda device %d, %.80s, sm_%d%d", ctx->device, p.name, p.major,
           p.minor);
  if (p.major < 8) return fail(ctx, RATTN_ERR_DEVICE, "%s is older than sm_80", ctx->name);
  ctx->architecture = 10 * p.major + p.minor;
  ctx->shared_bytes = (int32_t)p.sharedMemPerBlockOptin;
  ctx->processors = p.multiProcessorCount;
  int count;
  cudaFuncAttributes attributes;
  status = check(ctx, cudaFuncGetAttributes(&attributes, kernels_f32(&count)->entry), "a look for kernels");
  if (status == RATTN_OK)
    status = check(ctx, cudaStreamCreateWithFlags(&ctx->stream, cudaStreamNonBlocking), "cudaStreamCreate");
  if (status == RATTN_OK)
    status =
        check(ctx, cudaHostAlloc((void **)&ctx->fault, sizeof(Fault), cudaHostAllocMapped), "cudaHostAlloc");
  if (status != RATTN_OK) return status;
  memset(ctx->fault, 0, sizeof(Fault));
  ctx->kept_bytes = KEPT_BYTES;
  return check(ctx, cudaHostGetDevicePointer((void **)&ctx->fault_on_device, ctx->fault, 0),
               "cudaHostGetDevicePointer");
}

// Returns the first error of what has run.
static int32_t find_fault(rattn_ctx *ctx) {
  const Fault *f = ctx->fault;
  if (!*(const volatile int32_t *)&f->set) return RATTN_OK;
  if (f->span)
    return fail(ctx, RATTN_ERR_ARG, "rows of a call see keys [%d, %d) from row %d on, span is %d, on %s",
                f->lo, f->hi, f->row, f->span, ctx->name);
  if (f->tiles)
    return fail(ctx, RATTN_ERR_ARG,
                "rows of a call touch more tiles of keys than the %lld of it, from row %d on, on %s",
                (long long)f->tiles, f->row, ctx->name);
  return fail(ctx, RATTN_ERR_ARG, "row %d of a call sees keys [%d, %d) of a chunk of %d, on %s", f->row,
              f->lo, f->hi, f->tokens, ctx->name);
}

static void pass_marks(rattn_ctx *ctx, int64_t n) {
  for (int64_t i = ctx->first_mark; i < ctx->first_mark + n; i++) {
    time_mark(ctx, &ctx->marks[i]);
    ctx->spare[ctx->spare_count++] = ctx->marks[i].event;
  }
  if (n > 0) ctx->passed = ctx->marks[ctx->first_mark + n - 1].id;
  ctx->first_mark += n;
  if (ctx->first_mark == ctx->mark_count) ctx->first_mark = ctx->mark_count = 0;
}

static void close_context(rattn_ctx *ctx) {
  if (ctx->device >= 0 && cudaSetDevice(ctx->device) == cudaSuccess) {
    if (ctx->stream) {
      cudaStreamSynchronize(ctx->stream);
      pass_marks(ctx, ctx->mark_count - ctx->first_mark);
    }
    close_copies(ctx);
    drop_timing(ctx);
    for (int64_t i = 0; i < ctx->spare_count; i++) cudaEventDestroy(ctx->spare[i]);
    Buffer *all[] = {&ctx->lists, &ctx->reach, &ctx->numbers, &ctx->weights, &ctx->q, &ctx->kv, &ctx->dout};
    for (Buffer *b : all) cudaFree(b->p);
    if (ctx->fault) cudaFreeHost(ctx->fault);
    if (ctx->stream) cudaStreamDestroy(ctx->stream);
  }
  cudaGetLastError();
  free(ctx->marks);
  free(ctx->spare);
  free(ctx);
}

static int32_t cuda_open(int32_t device, int32_t threads, const char *isa, rattn_ctx **out) {
  (void)threads, (void)isa;
  rattn_cuda_facts facts;
  rattn_cuda_look(&facts);
  const int32_t count = facts.devices;
  if (count == 0) return fail(NULL, RATTN_ERR_DEVICE, "%s", facts.why);
  if (device < 0 || device >= count)
    return fail(NULL, RATTN_ERR_ARG, "device is %d, want 0 to %d: there %s %d", device, count - 1,
                count == 1 ? "is" : "are", count);
  rattn_ctx *ctx = (rattn_ctx *)calloc(1, sizeof *ctx);
  if (!ctx) return fail(NULL, RATTN_ERR_MEMORY, "no memory for a context");
  ctx->device = device;
  snprintf(ctx->name, sizeof ctx->name, "cuda device %d", device);
  const int32_t code = prepare(ctx);
  if (code != RATTN_OK) {
    fail(NULL, code, "%s", ctx->error);
    close_context(ctx);
    return code;
  }
  *out = ctx;
  return RATTN_OK;
}

static const char *cuda_name(rattn_ctx *ctx) { return ctx->name; }
static const char *cuda_error(rattn_ctx *ctx) { return ctx ? ctx->error : open_error; }

static int32_t cuda_sync(rattn_ctx *ctx) {
  int32_t status = enter(ctx);
  if (status == RATTN_OK) status = check(ctx, cudaStreamSynchronize(ctx->stream), "sync");
  if (status != RATTN_OK) return status;
  pass_marks(ctx, ctx->mark_count - ctx->first_mark);
  return find_fault(ctx);
}

static int32_t allocate(rattn_ctx *ctx, int64_t bytes, void **p, const char *what) {
  *p = NULL;
  const cudaError_t error = cudaMalloc(p, bytes ? (size_t)bytes : 64);
  if (error != cudaErrorMemoryAllocation) return check(ctx, error, what);
  cudaGetLastError();
  size_t unused = 0, all = 0;
  cudaMemGetInfo(&unused, &all);
  return fail(ctx, RATTN_ERR_MEMORY, "no memory for %lld bytes (%s) on %s: %lld of %lld are free",
              (long long)bytes, what, ctx->name, (long long)unused, (long long)all);
}

int32_t reserve(rattn_ctx *ctx, Buffer *buffer, int64_t bytes, const char *what) {
  if (bytes <= buffer->bytes) return RATTN_OK;
  // Kernels that use the old piece may be in the queue: cudaFree waits for them.
  if (buffer->p) {
    const int32_t status = check(ctx, cudaFree(buffer->p), "cudaFree");
    *buffer = {NULL, 0};
    if (status != RATTN_OK) return status;
  }
  const int32_t status = allocate(ctx, bytes, &buffer->p, what);
  if (status == RATTN_OK) buffer->bytes = bytes;
  return status;
}

static int32_t cuda_alloc(rattn_ctx *ctx, int64_t bytes, void **p) {
  if (bytes < 0) return fail(ctx, RATTN_ERR_ARG, "size is %lld bytes", (long long)bytes);
  const int32_t status = enter(ctx);
  return status == RATTN_OK ? allocate(ctx, bytes, p, "alloc") : status;
}

static void cuda_free(rattn_ctx *ctx, void *p) {
  cuda_sync(ctx);
  cudaFree(p);
  cudaGetLastError();
}

static rattn_limits limits(rattn_ctx *ctx) {
  return {RATTN_CUDA_MAX_HEAD_DIM, RATTN_MAX_TOKENS, RATTN_MAX_TOKENS, ctx->error, sizeof ctx->error};
}

static int32_t copy(rattn_ctx *ctx, void *dst, const void *src, int64_t bytes, cudaMemcpyKind kind,
                    const char *what) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_bytes(&l, dst, src, bytes);
  if (status == RATTN_OK) status = enter(ctx);
  if (status == RATTN_OK && bytes)
    status = check(ctx, cudaMemcpyAsync(dst, src, (size_t)bytes, kind, ctx->stream), what);
  return status == RATTN_OK ? cuda_sync(ctx) : status;
}

static int32_t cuda_write(rattn_ctx *ctx, void *dst, const void *src, int64_t bytes) {
  return copy(ctx, dst, src, bytes, cudaMemcpyHostToDevice, "write");
}

static int32_t cuda_read(rattn_ctx *ctx, void *dst, const void *src, int64_t bytes) {
  return copy(ctx, dst, src, bytes, cudaMemcpyDeviceToHost, "read");
}

static int32_t cuda_zero(rattn_ctx *ctx, void *p, int64_t bytes) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_bytes(&l, p, p, bytes);
  if (status == RATTN_OK) status = enter(ctx);
  if (status != RATTN_OK || bytes == 0) return status;
  return check(ctx, cudaMemsetAsync(p, 0, (size_t)bytes, ctx->stream), "zero");
}

static int32_t cuda_forward(rattn_ctx *ctx, const rattn_forward_args *a) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_forward(&l, a);
  if (status == RATTN_OK) status = enter(ctx);
  if (status != RATTN_OK || a->rows.n == 0 || (a->tokens == 0 && !a->first)) return status;
  return enqueue_forward(ctx, a);
}

static int32_t cuda_delta(rattn_ctx *ctx, const rattn_delta_args *a) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_delta(&l, a);
  if (status == RATTN_OK) status = enter(ctx);
  if (status != RATTN_OK || a->tokens == 0) return status;
  ctx->work = {"delta", a->shape, a->tokens, 0};
  return check(ctx,
               delta_rows(ctx->stream, a->shape.dtype, a->out, a->dout, a->delta, a->tokens * a->shape.heads,
                          a->shape.head_dim),
               "delta");
}

static int32_t cuda_backward(rattn_ctx *ctx, const rattn_backward_args *a) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_backward(&l, a);
  if (status == RATTN_OK) status = enter(ctx);
  if (status != RATTN_OK || a->rows.n == 0 || (a->tokens == 0 && !a->first)) return status;
  return enqueue_backward(ctx, a);
}

static int32_t cuda_add(rattn_ctx *ctx, float *dst, const float *src, int64_t n) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_add(&l, dst, src, n);
  if (status == RATTN_OK) status = enter(ctx);
  if (status != RATTN_OK || n == 0) return status;
  return check(ctx, add_floats(ctx->stream, ctx->processors * 16, dst, src, n), "add");
}

static int32_t cuda_round(rattn_ctx *ctx, uint16_t *dst, const float *src, int64_t n) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_add(&l, dst, src, n);
  if (status == RATTN_OK) status = enter(ctx);
  if (status != RATTN_OK || n == 0) return status;
  return check(ctx, round_floats(ctx->stream, ctx->processors * 16, dst, src, n), "round");
}

static int32_t cuda_add_rounded(rattn_ctx *ctx, float *dst, const uint16_t *src, int64_t n) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_add(&l, dst, src, n);
  if (status == RATTN_OK) status = enter(ctx);
  if (status != RATTN_OK || n == 0) return status;
  return check(ctx, add_rounded(ctx->stream, ctx->processors * 16, dst, src, n), "add_rounded");
}

static int32_t cuda_move(rattn_ctx *ctx, const rattn_move_args *a) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_move(&l, a);
  if (status == RATTN_OK) status = enter(ctx);
  if (status != RATTN_OK || a->n == 0 || a->bytes == 0) return status;
  return check(ctx, move_rows(ctx->stream, ctx->processors * 16, a), "move");
}

static int32_t cuda_record(rattn_ctx *ctx, int64_t *event) {
  int32_t status = enter(ctx);
  if (status != RATTN_OK) return status;
  if (ctx->mark_count == ctx->mark_room && ctx->first_mark > 0) {
    ctx->mark_count -= ctx->first_mark;
    memmove(ctx->marks, ctx->marks + ctx->first_mark, ctx->mark_count * sizeof *ctx->marks);
    ctx->first_mark = 0;
  } else if (ctx->mark_count == ctx->mark_room) {
    // All events are with marks now, and may all become spare ones.
    const int64_t room = ctx->mark_room ? 2 * ctx->mark_room : 64;
    Mark *marks = (Mark *)realloc(ctx->marks, room * sizeof *marks);
    if (marks) ctx->marks = marks;
    cudaEvent_t *spare = (cudaEvent_t *)realloc(ctx->spare, room * sizeof *spare);
    if (spare) ctx->spare = spare;
    if (!marks || !spare) return fail(ctx, RATTN_ERR_MEMORY, "no memory for %lld marks", (long long)room);
    ctx->mark_room = room;
  }
  cudaEvent_t e;
  if (ctx->spare_count > 0)
    e = ctx->spare[--ctx->spare_count];
  else if ((status = check(
                ctx, cudaEventCreateWithFlags(&e, ctx->times ? cudaEventDefault : cudaEventDisableTiming),
                "cudaEventCreate")) != RATTN_OK)
    return status;
  ctx->marks[ctx->mark_count++] = {++ctx->issued, e};
  *event = ctx->issued;
  return check(ctx, cudaEventRecord(e, ctx->stream), "record");
}

static int32_t cuda_query(rattn_ctx *ctx, int64_t event, int32_t *done) {
  int32_t status = enter(ctx);
  if (status != RATTN_OK) return status;
  while (ctx->passed < event && ctx->first_mark < ctx->mark_count) {
    const cudaError_t error = cudaEventQuery(ctx->marks[ctx->first_mark].event);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // or the next launch would find it
      break;
    }
    if ((status = check(ctx, error, "query")) != RATTN_OK) return status;
    pass_marks(ctx, 1);
  }
  *done = ctx->passed >= event;
  return *done ? find_fault(ctx) : RATTN_OK;
}

}  // namespace rattn

extern "C" const rattn_backend *rattn_cuda(void) {
  using namespace rattn;
  static const rattn_backend table = {
      RATTN_ABI_VERSION, sizeof table,  cuda_open,  close_context, cuda_name,        cuda_error,
      cuda_alloc,        cuda_free,     cuda_write, cuda_read,     cuda_zero,        cuda_forward,
      cuda_delta,        cuda_backward, cuda_add,   cuda_round,    cuda_add_rounded, cuda_move,
      cuda_record,       cuda_query,    cuda_sync,  host_alloc,    host_free,        copy_out,
      copy_in,           copied,
  };
  return &table;
}
