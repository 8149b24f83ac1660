// cpu.c: the CPU's table of functions: checks arguments, enqueues, returns.
#define _POSIX_C_SOURCE 200809L
#include "cpu.h"

#include <stdlib.h>

#include "check.h"

struct rattn_ctx {
  rattn_queue *queue;
  char name[64];
  char error[256];
};

static _Thread_local char open_error[256];

// Bound on what is packed and summed of a block of keys; more only where one key tile
// of one head takes more. Large enough that passing from block to block costs nothing.
// The test switch RINGATTN_TEST_BLOCK_BYTES makes small problems go through many
// blocks.
enum { BLOCK_BYTES = 128 << 20 };

static int32_t fail(rattn_ctx *ctx, int32_t status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(ctx ? ctx->error : open_error, sizeof open_error, format, args);
  va_end(args);
  return status;
}

static int32_t cpu_open(int32_t device, int32_t threads, const char *name, rattn_ctx **out) {
  (void)device;
  if (threads < 1) return fail(NULL, RATTN_ERR_ARG, "threads is %d, want at least 1", threads);
  const rattn_isa *isa = rattn_find_isa(name);
  if (!isa) return fail(NULL, RATTN_ERR_ARG, "isa %s is unknown, or this CPU lacks it", name);
  rattn_ctx *ctx = calloc(1, sizeof *ctx);
  if (!ctx) return fail(NULL, RATTN_ERR_MEMORY, "no memory for a context");
  const char *bound = getenv("RINGATTN_TEST_BLOCK_BYTES");
  int64_t block_bytes = bound ? atoll(bound) : BLOCK_BYTES;
  ctx->queue = rattn_queue_open(isa, threads, block_bytes);
  if (!ctx->queue) {
    free(ctx);
    return fail(NULL, RATTN_ERR_DEVICE, "cannot start %d threads", threads);
  }
  snprintf(ctx->name, sizeof ctx->name, "cpu %s, %d thread%s", isa->name, threads, threads == 1 ? "" : "s");
  *out = ctx;
  return RATTN_OK;
}

static void cpu_close(rattn_ctx *ctx) {
  rattn_queue_close(ctx->queue);
  free(ctx);
}

static const char *cpu_name(rattn_ctx *ctx) { return ctx->name; }
static const char *cpu_error(rattn_ctx *ctx) { return ctx ? ctx->error : open_error; }

static int32_t cpu_sync(rattn_ctx *ctx) {
  return rattn_queue_sync(ctx->queue, ctx->error, sizeof ctx->error);
}

// Large pieces start on a page, and no page is touched: the first writer's NUMA
// node gets it.
static int32_t cpu_alloc(rattn_ctx *ctx, int64_t bytes, void **p) {
  if (bytes < 0 || (uint64_t)bytes > SIZE_MAX / 2)
    return fail(ctx, RATTN_ERR_ARG, "size is %lld bytes", (long long)bytes);
  size_t align = bytes >= 1 << 20 ? 4096 : 64;
  if (posix_memalign(p, align, bytes ? (size_t)bytes : align))
    return fail(ctx, RATTN_ERR_MEMORY, "no memory for %lld bytes", (long long)bytes);
  return RATTN_OK;
}

static void cpu_free(rattn_ctx *ctx, void *p) {
  cpu_sync(ctx);
  free(p);
}

static rattn_limits limits(rattn_ctx *ctx) {
  return (rattn_limits){INT32_MAX, INT64_MAX, RATTN_MAX_TOKENS, ctx->error, sizeof ctx->error};
}

static int32_t cpu_copy(rattn_ctx *ctx, void *dst, const void *src, int64_t bytes) {
  const rattn_limits l = limits(ctx);
  int32_t status = rattn_check_bytes(&l, dst, src, bytes);
  if (status == RATTN_OK) status = cpu_sync(ctx);
  if (status == RATTN_OK && bytes) memcpy(dst, src, (size_t)bytes);
  return status;
}

static int32_t cpu_zero(rattn_ctx *ctx, void *p, int64_t bytes) {
  const rattn_limits l = limits(ctx);
  const int32_t status = rattn_check_bytes(&l, p, p, bytes);
  if (status != RATTN_OK) return status;
  rattn_op op = {.kind = RATTN_OP_ZERO, .zero = {p, bytes}};
  rattn_queue_add(ctx->queue, &op);
  return RATTN_OK;
}

static int32_t cpu_forward(rattn_ctx *ctx, const rattn_forward_args *a) {
  const rattn_limits l = limits(ctx);
  const int32_t status = rattn_check_forward(&l, a);
  if (status != RATTN_OK) return status;
  rattn_op op = {.kind = RATTN_OP_FORWARD, .forward = *a};
  rattn_queue_add(ctx->queue, &op);
  return RATTN_OK;
}

static int32_t cpu_delta(rattn_ctx *ctx, const rattn_delta_args *a) {
  const rattn_limits l = limits(ctx);
  const int32_t status = rattn_check_delta(&l, a);
  if (status != RATTN_OK) return status;
  rattn_op op = {.kind = RATTN_OP_DELTA, .delta = *a};
  rattn_queue_add(ctx->queue, &op);
  return RATTN_OK;
}

static int32_t cpu_backward(rattn_ctx *ctx, const rattn_backward_args *a) {
  const rattn_limits l = limits(ctx);
  const int32_t status = rattn_check_backward(&l, a);
  if (status != RATTN_OK) return status;
  rattn_op op = {.kind = RATTN_OP_BACKWARD, .backward = *a};
  rattn_queue_add(ctx->queue, &op);
  return RATTN_OK;
}

static int32_t cpu_add(rattn_ctx *ctx, float *dst, const float *src, int64_t n) {
  const rattn_limits l = limits(ctx);
  const int32_t status = rattn_check_add(&l, dst, src, n);
  if (status != RATTN_OK) return status;
  rattn_op op = {.kind = RATTN_OP_ADD, .add = {dst, src, n}};
  rattn_queue_add(ctx->queue, &op);
  return RATTN_OK;
}

static int32_t cpu_round(rattn_ctx *ctx, uint16_t *dst, const float *src, int64_t n) {
  const rattn_limits l = limits(ctx);
  const int32_t status = rattn_check_add(&l, dst, src, n);
  if (status != RATTN_OK) return status;
  rattn_op op = {.kind = RATTN_OP_ROUND, .round = {dst, src, n}};
  rattn_queue_add(ctx->queue, &op);
  return RATTN_OK;
}

static int32_t cpu_add_rounded(rattn_ctx *ctx, float *dst, const uint16_t *src, int64_t n) {
  const rattn_limits l = limits(ctx);
  const int32_t status = rattn_check_add(&l, dst, src, n);
  if (status != RATTN_OK) return status;
  rattn_op op = {.kind = RATTN_OP_ADD_ROUNDED, .add_rounded = {dst, src, n}};
  rattn_queue_add(ctx->queue, &op);
  return RATTN_OK;
}

static int32_t cpu_move(rattn_ctx *ctx, const rattn_move_args *a) {
  const rattn_limits l = limits(ctx);
  const int32_t status = rattn_check_move(&l, a);
  if (status != RATTN_OK) return status;
  rattn_op op = {.kind = RATTN_OP_MOVE, .move = *a};
  rattn_queue_add(ctx->queue, &op);
  return RATTN_OK;
}

static int32_t cpu_record(rattn_ctx *ctx, int64_t *event) {
  *event = rattn_queue_last(ctx->queue);
  return RATTN_OK;
}

static int32_t cpu_query(rattn_ctx *ctx, int64_t event, int32_t *done) {
  return rattn_queue_query(ctx->queue, event, done, ctx->error, sizeof ctx->error);
}

int rattn_cpu_ran(rattn_ctx *ctx, int64_t from, int64_t to, int64_t *began, int64_t *ended) {
  return rattn_queue_ran(ctx->queue, from, to, began, ended);
}

const rattn_backend *rattn_cpu(void) {
  static const rattn_backend table = {
      .version = RATTN_ABI_VERSION,
      .size = sizeof table,
      .open = cpu_open,
      .close = cpu_close,
      .name = cpu_name,
      .error = cpu_error,
      .alloc = cpu_alloc,
      .free = cpu_free,
      .write = cpu_copy,
      .read = cpu_copy,
      .zero = cpu_zero,
      .forward = cpu_forward,
      .delta = cpu_delta,
      .backward = cpu_backward,
      .add = cpu_add,
      .round = cpu_round,
      .add_rounded = cpu_add_rounded,
      .move = cpu_move,
      .record = cpu_record,
      .query = cpu_query,
      .sync = cpu_sync,
  };
  return &table;
}
