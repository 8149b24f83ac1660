// hopper_backward_d256.cu: the backward for head sizes up to 256 on sm_90a: what a call
// enqueues.
#include "../kernels/rattn.h"
#include "hopper.h"
#include "hopper_backward_d256.cuh"
#include "hopper_backward_d256_rows.cuh"
#include "hopper_launch.h"
#include "small.h"

namespace rattn {

// The fewest steps of 64 rows of a head for which dk and dv are worth another reading and writing.
constexpr int32_t LEAST_STEPS = 32;

// What a launch is of at most.
struct Part {
  int32_t kv_heads, members, tiles;
  int64_t bytes;
};

// All rows of as many query heads as there is room for: of so many KV heads that their keys are
// blocks enough, and then of whole groups. Or as many rows of whole groups. Parts are of about the
// same size; tiles is 0 where so few rows are not worth it.
static Part split(const rattn_ctx *ctx, const Call &c) {
  const int32_t row_tiles = (int32_t)ceil_div(c.rows, 64), key_tiles = (int32_t)ceil_div(c.tokens, 64);
  const int32_t group = c.heads / c.kv_heads;
  const auto even = [](int32_t all, int64_t most) { return (int32_t)ceil_div(all, ceil_div(all, most)); };
  const int64_t room = ctx->kept_bytes / 2 / KEPT_TILE_BYTES, heads = room / kept_tiles(row_tiles, key_tiles);
  // KV heads for about so many blocks for each multiprocessor.
  const auto kv_heads_for = [&](int32_t rounds) {
    return min(ceil_div(rounds * ctx->processors, ceil_div(key_tiles, 2)), (int64_t)c.kv_heads);
  };
  Part p = {1, group, row_tiles, 0};
  if (heads > 0) {
    p.kv_heads = (int32_t)min(kv_heads_for(4), heads);
    p.members = even(group, min(heads / p.kv_heads, (int64_t)group));
    p.kv_heads = even(c.kv_heads, min(heads / p.members, (int64_t)c.kv_heads));
  } else {
    p.kv_heads = (int32_t)kv_heads_for(1);
    p.tiles = (int32_t)(room / kept_tiles(KEPT_SIDE, key_tiles) * KEPT_SIDE / p.kv_heads / group);
    if (p.tiles == 0 || (p.tiles * group < LEAST_STEPS && ctx->kept_bytes == KEPT_BYTES)) return {};
    p.tiles = (int32_t)ceil_div(even(row_tiles, p.tiles), 2) * 2;
  }
  p.bytes = p.kv_heads * kept_tiles((int64_t)p.tiles * p.members, key_tiles) * KEPT_TILE_BYTES;
  return p;
}

// dk, dv and ds, then dq from ds, part by part.
template <class T, int DIM>
static int32_t launch_parts(rattn_ctx *ctx, HopperKept a, const Part &most) {
  using Keys = KeptKeys<T, DIM, DIM == 256 ? 2 : DIM == 128 ? 3 : 6>;
  using Rows = KeptRows<T, DIM, DIM == 256 ? 4 : DIM == 128 ? 6 : 8>;
  uint8_t *const kept = (uint8_t *)ctx->weights.p;
  const int32_t row_tiles = (int32_t)ceil_div(a.call.rows, 64);
  const int32_t key_tiles = (int32_t)ceil_div(a.call.tokens, Keys::ROWS);
  int32_t status = check(
      ctx,
      see_keys(ctx->stream, a.call.seen, row_tiles, Keys::ROWS, const_cast<Seers *>(a.call.seers), key_tiles),
      "tile lists");
  int part = 0;
  for (a.first_kv_head = 0; a.first_kv_head < a.call.kv_heads; a.first_kv_head += most.kv_heads)
    for (a.first_member = 0; a.first_member < a.group; a.first_member += most.members)
      for (a.first_tile = 0; a.first_tile < row_tiles; a.first_tile += most.tiles, part++) {
        if (status != RATTN_OK) return status;
        a.kv_heads = min(most.kv_heads, a.call.kv_heads - a.first_kv_head);
        a.members = min(most.members, a.group - a.first_member);
        a.call.tiles = min(most.tiles, row_tiles - a.first_tile);
        a.ds = kept + part % 2 * most.bytes;
        status = launch_backward<Keys>(ctx, kept_keys<Keys>, (int64_t)key_tiles * a.kv_heads, a, part > 0,
                                       "backward dk, dv");
        if (status == RATTN_OK)
          status =
              launch_backward<Rows>(ctx, kept_rows<Rows>, ceil_div(a.call.tiles, 2) * a.kv_heads * a.members,
                                    a, false, "backward dq");
      }
  return status;
}

template <class T>
static int32_t launch_dim(rattn_ctx *ctx, const HopperKept &a, const Part &most) {
  if (a.call.dim <= 64) return launch_parts<T, 64>(ctx, a, most);
  if (a.call.dim <= 128) return launch_parts<T, 128>(ctx, a, most);
  return launch_parts<T, 256>(ctx, a, most);
}

int64_t hopper_backward_d256_bytes(const rattn_shape *s, int64_t rows, int64_t tokens) {
  const int64_t row_tiles = ceil_div(rows, 64);
  const int64_t ds =
      s->kv_heads * KEPT_TILE_BYTES * kept_tiles(row_tiles * (s->heads / s->kv_heads), ceil_div(tokens, 64));
  return row_tiles * s->heads * 512 + (ds <= KEPT_BYTES / 2 ? ds : KEPT_BYTES);
}

bool has_hopper_backward_d256(const rattn_ctx *ctx, const rattn_shape *s, const Call &c) {
  return ctx->architecture == 90 && !ctx->portable && s->dtype != RATTN_F32 && s->head_dim >= 8 &&
         s->head_dim <= 256 && c.tokens > 0 && split(ctx, c).tiles > 0;
}

int32_t hopper_backward_d256(rattn_ctx *ctx, int32_t dtype, const Call &c) {
  const int32_t row_tiles = (int32_t)ceil_div(c.rows, 64), key_tiles = (int32_t)ceil_div(c.tokens, 64);
  const Part most = split(ctx, c);
  const bool one =
      most.kv_heads == c.kv_heads && most.members * c.kv_heads == c.heads && most.tiles >= row_tiles;
  int32_t status = reserve(ctx, &ctx->weights, most.bytes * (one ? 1 : 2), "ds");
  if (status == RATTN_OK)
    status = reserve(ctx, &ctx->numbers, (int64_t)row_tiles * c.heads * 512, "lse and delta");
  if (status == RATTN_OK)
    status = reserve(ctx, &ctx->lists, row_tiles * (int64_t)sizeof(Seen) + key_tiles * (int64_t)sizeof(Seers),
                     "tile lists");
  if (status != RATTN_OK) return status;
  Seen *seen = (Seen *)ctx->lists.p;
  HopperKept a = {};
  a.call = c, a.call.seen = seen, a.call.seers = (Seers *)(seen + row_tiles);
  a.group = c.heads / c.kv_heads;
  a.numbers = (const float *)ctx->numbers.p;
  status = check(ctx,
                 see_rows(ctx->stream, c.lo, c.hi, c.rows, c.tokens, 64, true, seen, row_tiles,
                          ctx->fault_on_device, c.lse, c.heads),
                 "tile lists");
  if (status == RATTN_OK)
    status = check(ctx, number_rows(ctx->stream, c, (float *)ctx->numbers.p), "lse and delta");
  const Tensors x(dtype, c);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a.q, x.q, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a.k, x.k, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a.v, x.v, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a.dout, x.dout, 1, 64);
  if (status != RATTN_OK) return status;
  return dtype == RATTN_BF16 ? launch_dim<Bf16>(ctx, a, most) : launch_dim<F16>(ctx, a, most);
}

}  // namespace rattn
