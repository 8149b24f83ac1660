// launch.cu: which kernels a call is made of, their tiles and tile lists.
#include <float.h>
#include <limits.h>

#include "hopper.h"

namespace rattn {

// The first kernel for the least head_dim that has room for dim and fits the device; NULL
// if there is none.
static const Kernel *find_kernel(const rattn_ctx *ctx, Kind kind, int32_t dtype, int32_t dim) {
  static Kernels *const all[] = {
      kernels_f32,      kernels_bf16_64, kernels_bf16_128, kernels_bf16_256, kernels_bf16_512,
      kernels_bf16_576, kernels_bf16_0,  kernels_f16_64,   kernels_f16_128,  kernels_f16_256,
      kernels_f16_512,  kernels_f16_576, kernels_f16_0,
  };
  const Kernel *best = nullptr;
  for (Kernels *kernels : all) {
    int count;
    const Kernel *k = kernels(&count);
    for (int i = 0; i < count; i++)
      if (k[i].kind == kind && k[i].dtype == dtype && k[i].dim >= dim &&
          k[i].shared_bytes <= ctx->shared_bytes && (!best || k[i].dim < best->dim))
        best = k + i;
  }
  return best;
}

// The tensors of a call as kernels want them: rows that start on 16 bytes, a scale that
// is not negative (tensor cores' maximum is taken before the scale), and f32 where no
// other kernel fits.
static int32_t prepare_tensors(rattn_ctx *ctx, const rattn_shape *s, int32_t dtype, const void *q,
                               const void *kv, const void *dout, Call *c) {
  const int64_t size = dtype == RATTN_F32 ? 4 : 2;
  const int32_t step = (int32_t)(16 / size);
  const bool negate = dtype != RATTN_F32 && s->scale < 0;
  const bool convert = dtype != s->dtype;
  const auto is_padded = [&](const void *p) { return s->head_dim % step == 0 && (uintptr_t)p % 16 == 0; };

  const bool padded = is_padded(q) && is_padded(kv) && (!dout || is_padded(dout)) && !convert;
  const int32_t stride = padded ? s->head_dim : (int32_t)ceil_div(s->head_dim, step) * step;
  const int64_t rows = (int64_t)c->rows * s->heads, keys = (int64_t)c->tokens * 2 * s->kv_heads;
  const auto pad = [&](Buffer *buffer, const void **p, int64_t n, bool sign) -> int32_t {
    if ((padded && !sign) || n == 0) return RATTN_OK;
    int32_t status = reserve(ctx, buffer, n * stride * size, "a padded tensor");
    if (status != RATTN_OK) return status;
    status = check(ctx,
                   pad_rows(ctx->stream, ctx->processors * 16, s->dtype, convert, sign, *p, buffer->p, n,
                            s->head_dim, stride),
                   "padding");
    *p = buffer->p;
    return status;
  };
  int32_t status = pad(&ctx->q, &q, rows, negate);
  if (status == RATTN_OK) status = pad(&ctx->kv, &kv, keys, false);
  if (status == RATTN_OK && dout) status = pad(&ctx->dout, &dout, rows, false);

  c->q = q, c->k = kv, c->dout = dout;
  c->v = (const char *)kv + s->kv_heads * stride * size;
  c->stride = stride;
  c->q_token = (int64_t)s->heads * stride;
  c->kv_token = (int64_t)2 * s->kv_heads * stride;
  c->heads = s->heads, c->kv_heads = s->kv_heads, c->dim = s->head_dim;
  c->gradient = s->scale;
  c->scale = negate ? -s->scale : s->scale;
  // Times -Inf it must not be NaN: scores of a scale of 0 are as good as 0.
  c->exponent = c->scale * 1.4426950408889634f;
  if (c->exponent == 0) c->exponent = FLT_MIN;
  return status;
}

// Builds the kernel's tile lists and enqueues it.
static int32_t launch(rattn_ctx *ctx, const Kernel *k, Call c) {
  const bool keys = k->kind == D_V || k->kind == D_K || k->kind == D_KV;
  const int32_t row_tile = keys ? k->stream : k->stationary;
  const int32_t row_tiles = (int32_t)ceil_div(c.rows, row_tile);
  c.tiles = (int32_t)ceil_div(keys ? c.tokens : c.rows, k->stationary);
  const int64_t blocks = (int64_t)c.tiles * (keys ? c.kv_heads : c.heads);
  if (blocks == 0) return RATTN_OK;
  if (blocks > INT_MAX)
    return fail(ctx, RATTN_ERR_ARG, "%s: %lld blocks of threads for %d rows, %d keys, %d/%d heads", k->name,
                (long long)blocks, c.rows, c.tokens, c.heads, c.kv_heads);

  const int64_t seen_bytes = row_tiles * (int64_t)sizeof(Seen);
  int32_t status =
      reserve(ctx, &ctx->lists, seen_bytes + (keys ? c.tiles * (int64_t)sizeof(Seers) : 0), "tile lists");
  if (status != RATTN_OK) return status;
  Seen *seen = (Seen *)ctx->lists.p;
  Seers *seers = (Seers *)((char *)ctx->lists.p + seen_bytes);
  c.seen = seen, c.seers = seers;
  status = check(ctx,
                 see_rows(ctx->stream, c.lo, c.hi, c.rows, c.tokens, row_tile, keys, seen, row_tiles,
                          ctx->fault_on_device, k->kind == FORWARD ? nullptr : c.lse, c.heads),
                 "tile lists");
  if (status == RATTN_OK && keys)
    status = check(ctx, see_keys(ctx->stream, seen, row_tiles, k->stationary, seers, c.tiles), "tile lists");
  if (status != RATTN_OK) return status;

  void *arguments[] = {&c};
  status =
      check(ctx, cudaFuncSetAttribute(k->entry, cudaFuncAttributeMaxDynamicSharedMemorySize, k->shared_bytes),
            "shared memory");
  if (status == RATTN_OK)
    status = check(ctx, cudaFuncSetAttribute(k->entry, cudaFuncAttributePreferredSharedMemoryCarveout, 100),
                   "shared memory");
  if (status != RATTN_OK) return status;
  return check(ctx,
               cudaLaunchKernel(k->entry, dim3((unsigned)blocks), dim3(k->threads), arguments,
                                k->shared_bytes, ctx->stream),
               k->name);
}

static Call call_of(const rattn_shape *s, const rattn_rows *rows, int64_t tokens, int32_t first) {
  (void)s;
  Call c = {};
  c.rows = (int32_t)rows->n, c.tokens = (int32_t)tokens;
  c.lo = rows->lo, c.hi = rows->hi;
  c.span = (int32_t)(rows->span > 0 && rows->span < tokens ? rows->span : tokens);
  const int64_t all = ceil_div(rows->n, 128) * ceil_div(tokens, 64);
  c.touched = rows->tiles > 0 && rows->tiles < all ? rows->tiles : all;
  c.first = first != 0;
  return c;
}

// Element (start, 0, 0) of a tensor of tokens of heads * head_dim elements.
static const void *from_row(const void *p, const rattn_shape *s, int64_t start) {
  return (const char *)p + start * s->heads * s->head_dim * (s->dtype == RATTN_F32 ? 4 : 2);
}

int32_t enqueue_forward(rattn_ctx *ctx, const rattn_forward_args *a) {
  const rattn_shape *s = &a->shape;
  ctx->work = {"forward", *s, a->rows.n, a->tokens};
  int32_t dtype = s->dtype;
  const Kernel *k = find_kernel(ctx, FORWARD, dtype, s->head_dim);
  if (!k) k = find_kernel(ctx, FORWARD, dtype = RATTN_F32, s->head_dim);
  if (!k)
    return fail(ctx, RATTN_ERR_DEVICE, "forward: no kernel of head_dim %d fits %s", s->head_dim, ctx->name);
  Call c = call_of(s, &a->rows, a->tokens, a->first);
  const int64_t row = a->rows.start * s->heads;
  c.out = a->out + row * s->head_dim, c.lse = a->lse + row;
  const int32_t status = prepare_tensors(ctx, s, dtype, from_row(a->q, s, a->rows.start), a->kv, nullptr, &c);
  if (status != RATTN_OK) return status;
  if (has_hopper_forward(ctx, s, a->tokens)) return hopper_forward(ctx, dtype, c);
  if (has_hopper_forward_d256(ctx, s, a->tokens)) return hopper_forward_d256(ctx, dtype, c);
  return launch(ctx, k, c);
}

int32_t enqueue_backward(rattn_ctx *ctx, const rattn_backward_args *a) {
  const rattn_shape *s = &a->shape;
  ctx->work = {"backward", *s, a->rows.n, a->tokens};
  // Terms of dq cancel, since ds of a row sum to 0. In a row of few elements nothing may
  // be left beside its terms but the rounding of ds to 16 bits, so these go through f32.
  int32_t dtype = s->head_dim < 8 ? (int32_t)RATTN_F32 : s->dtype;
  // dk and dv in one kernel, or in two.
  const Kernel *list[3];
  int count = 0;
  const auto find = [&] {
    count = 0;
    list[count++] = find_kernel(ctx, D_Q, dtype, s->head_dim);
    const Kernel *both = find_kernel(ctx, D_KV, dtype, s->head_dim),
                 *dv = find_kernel(ctx, D_V, dtype, s->head_dim);
    if (both && (!dv || both->dim <= dv->dim)) {
      list[count++] = both;
    } else {
      list[count++] = dv;
      list[count++] = find_kernel(ctx, D_K, dtype, s->head_dim);
    }
    for (int i = 0; i < count; i++)
      if (!list[i]) return false;
    return true;
  };
  if (!find()) {
    dtype = RATTN_F32;
    if (!find())
      return fail(ctx, RATTN_ERR_DEVICE, "backward: no kernel of head_dim %d fits %s", s->head_dim,
                  ctx->name);
  }

  Call c = call_of(s, &a->rows, a->tokens, a->first);
  const int64_t row = a->rows.start * s->heads;
  c.lse = const_cast<float *>(a->lse) + row, c.delta = a->delta + row;
  c.dq = a->dq + row * s->head_dim, c.dkv = a->dkv;
  int32_t status = prepare_tensors(ctx, s, dtype, from_row(a->q, s, a->rows.start), a->kv,
                                   from_row(a->dout, s, a->rows.start), &c);
  if (status == RATTN_OK && dtype == RATTN_F16) {
    status = reserve(ctx, &ctx->reach, 64, "ranges");
    c.reach = (const float *)ctx->reach.p;
    if (status == RATTN_OK) status = check(ctx, find_reach(ctx->stream, c, (float *)ctx->reach.p), "ranges");
  }
  if (status == RATTN_OK && has_hopper_backward(ctx, s, a->tokens)) return hopper_backward(ctx, dtype, c);
  if (status == RATTN_OK && has_hopper_backward_d256(ctx, s, a->tokens))
    return hopper_backward_d256(ctx, dtype, c);
  for (int i = 0; i < count && status == RATTN_OK; i++) status = launch(ctx, list[i], c);
  return status;
}

}  // namespace rattn
