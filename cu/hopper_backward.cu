// hopper_backward.cu: the backward for head_dim in (256, 512] on sm_90a: its kernels, and
// what a call enqueues.
#include "../kernels/rattn.h"
#include "hopper.h"
#include "hopper_backward.cuh"
#include "small.h"
#include "tensor_map.h"

namespace rattn {

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class P>
static int32_t launch(rattn_ctx *ctx, HopperBackward *a, bool follows, const char *name) {
  const int32_t dtype = P::T::UNIT == Bf16::UNIT ? RATTN_BF16 : RATTN_F16;
  Call *c = &a->call;
  const TokenMajor q = {c->q, dtype, c->dim, c->heads, c->rows, c->stride, c->q_token};
  const TokenMajor k = {c->k, dtype, c->dim, c->kv_heads, c->tokens, c->stride, c->kv_token};
  TokenMajor v = k, dout = q;
  v.base = c->v, dout.base = c->dout;
  const TokenMajor &summed = P::KIND == D_V ? dout : P::KIND == D_K ? q : k;
  a->whole = c->dim % 64 == 0;
  int32_t status = make_tensor_map(ctx, &a->fixed[0], P::KEYS ? k : q, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a->fixed[1], P::KEYS ? v : dout, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a->scores[0], P::KEYS ? q : k, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a->scores[1], P::KEYS ? dout : v, 1, 64);
  if (status == RATTN_OK) status = make_group_map(ctx, &a->sums, summed, a->whole ? 4 : 1, 16);
  if (status != RATTN_OK) return status;

  c->tiles = (int32_t)ceil_div(P::KEYS ? c->tokens : c->rows, P::ROWS);
  const int64_t blocks = ceil_div(c->tiles, 2) * 2 * (P::KEYS ? c->kv_heads : c->heads);
  if (blocks > INT_MAX)
    return fail(ctx, RATTN_ERR_ARG, "%s: %lld blocks of threads for %d rows, %d keys, %d/%d heads", name,
                (long long)blocks, c->rows, c->tokens, c->heads, c->kv_heads);
  const auto kernel = hopper_backward<P>;
  status = check(ctx,
                 cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      P::SHARED_BYTES),
                 "shared memory");
  if (status != RATTN_OK) return status;
  // A kernel starts beside the last blocks of the one before, which have no use for all
  // multiprocessors: they write other tensors.
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {
      dim3((unsigned)blocks), dim3(P::THREADS), P::SHARED_BYTES, ctx->stream, &overlap, follows ? 1u : 0u};
  return check(ctx, cudaLaunchKernelEx(&config, kernel, *a), name);
}

bool has_hopper_backward(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens) {
  return ctx->architecture == 90 && ctx->variant == 0 && s->dtype != RATTN_F32 && s->head_dim > 256 &&
         s->head_dim <= 512 && tokens > 0;
}

template <class T>
static int32_t launch_all(rattn_ctx *ctx, HopperBackward *a) {
  // The one with the smallest blocks last.
  int32_t status = launch<Hopper<T, D_K, 16, 5, 2>>(ctx, a, false, "backward dk");
  if (status == RATTN_OK) status = launch<Hopper<T, D_V, 16, 4, 4>>(ctx, a, true, "backward dv");
  if (status == RATTN_OK) status = launch<Hopper<T, D_Q, 16, 5, 2>>(ctx, a, true, "backward dq");
  return status;
}

int32_t hopper_backward(rattn_ctx *ctx, int32_t dtype, const Call &c) {
  const int32_t row_tiles = (int32_t)ceil_div(c.rows, 64), key_tiles = (int32_t)ceil_div(c.tokens, 64);
  int32_t status = reserve(ctx, &ctx->numbers, (int64_t)row_tiles * c.heads * 512, "lse and delta");
  if (status == RATTN_OK)
    status = reserve(ctx, &ctx->lists, row_tiles * (int64_t)sizeof(Seen) + key_tiles * (int64_t)sizeof(Seers),
                     "tile lists");
  if (status != RATTN_OK) return status;
  Seen *seen = (Seen *)ctx->lists.p;
  Seers *seers = (Seers *)(seen + row_tiles);
  HopperBackward a = {};
  a.call = c, a.call.seen = seen, a.call.seers = seers;
  a.numbers = (const float *)ctx->numbers.p;
  a.clusters = ctx->processors > 1 ? ctx->processors / 2 : 1;
  status = check(ctx,
                 see_rows(ctx->stream, c.lo, c.hi, c.rows, c.tokens, 64, true, seen, row_tiles,
                          ctx->fault_on_device, c.lse, c.heads),
                 "tile lists");
  if (status == RATTN_OK)
    status = check(ctx, see_keys(ctx->stream, seen, row_tiles, 64, seers, key_tiles), "tile lists");
  if (status != RATTN_OK) return status;
  status = check(ctx, number_rows(ctx->stream, c, (float *)ctx->numbers.p), "lse and delta");
  if (status != RATTN_OK) return status;
  return dtype == RATTN_BF16 ? launch_all<Bf16>(ctx, &a) : launch_all<F16>(ctx, &a);
}

}  // namespace rattn
