// hopper_backward.cu: the backward for head_dim in (256, 512] on sm_90a: its kernels, and
// what a call enqueues.
#include "../kernels/rattn.h"
#include "hopper.h"
#include "hopper_backward.cuh"
#include "hopper_backward_keys.cuh"
#include "hopper_launch.h"
#include "small.h"

namespace rattn {

// The fewest steps of 64 rows of a head that a part of a backward goes over, if there are as many.
constexpr int32_t LEAST_STEPS = 256;

// The maps of a kernel's tensors.
template <class P>
static int32_t make_maps(rattn_ctx *ctx, HopperBackward *a) {
  const int32_t dtype = P::T::UNIT == Bf16::UNIT ? RATTN_BF16 : RATTN_F16;
  const Tensors x(dtype, a->call);
  const TokenMajor &summed = P::KIND == D_V ? x.dout : P::KIND == D_K ? x.q : x.k;
  a->whole = a->call.dim % 64 == 0;
  int32_t status = make_tensor_map(ctx, &a->fixed[0], P::KEYS ? x.k : x.q, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a->fixed[1], P::KEYS ? x.v : x.dout, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a->scores[0], P::KEYS ? x.q : x.k, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a->scores[1], P::KEYS ? x.dout : x.v, 1, 64);
  if (status == RATTN_OK) status = make_group_map(ctx, &a->sums, summed, a->whole ? 4 : 1, 16);
  return status;
}

// One tensor from all rows and keys.
template <class P>
static int32_t launch_one(rattn_ctx *ctx, HopperBackward a, bool follows, const char *name) {
  const int32_t status = make_maps<P>(ctx, &a);
  if (status != RATTN_OK) return status;
  a.call.tiles = (int32_t)ceil_div(P::KEYS ? a.call.tokens : a.call.rows, P::ROWS);
  return launch_backward<P>(ctx, hopper_backward<P>,
                            2 * ceil_div(a.call.tiles, 2) * (P::KEYS ? a.call.kv_heads : a.call.heads),
                            a.call, follows, name, a);
}

// Each tensor by itself: p and ds are computed for each. The kernel of the smallest blocks last.
template <class T>
static int32_t launch_three(rattn_ctx *ctx, const HopperBackward &a) {
  int32_t status = launch_one<Hopper<T, D_K, 16, 5, 2>>(ctx, a, false, "backward dk");
  if (status == RATTN_OK) status = launch_one<Hopper<T, D_V, 16, 4, 4>>(ctx, a, true, "backward dv");
  if (status == RATTN_OK) status = launch_one<Hopper<T, D_Q, 16, 5, 2>>(ctx, a, true, "backward dq");
  return status;
}

// How a backward whose weights are kept goes: so many KV heads, row tiles and keys at a time, of
// weights of so many bytes; all in one part, or in several of about the same size that take
// turns in two buffers. kv_heads is 0 where there is no room for weights.
struct Parts {
  int32_t kv_heads, tiles, keys, width;
  int64_t bytes;
  bool one;
};

// All rows of as many KV heads as there is room for, or of one as many row tiles; where those
// would be too few, with some of the keys that they see. It follows from sizes alone, so that
// results do.
static Parts parts_of(const rattn_ctx *ctx, const Call &c) {
  const int32_t group = c.heads / c.kv_heads;
  const int64_t all_tiles = ceil_div(ceil_div(c.rows, 64), 2) * 2;
  // span keys that begin within a tile reach into one more.
  int64_t width = min(ceil_div(c.tokens, 64), ceil_div(c.span, 64) + 1), keys = c.tokens;
  const int64_t most_width =
      max(ctx->kept_bytes / 2 / (min(ceil_div(LEAST_STEPS, 2 * group) * 2, all_tiles) * group * STORED_BYTES),
          (int64_t)4);
  if (width > most_width) {  // a block of key_sums has 4 tiles of keys
    const int64_t chunks = ceil_div(ceil_div(c.tokens, 64), most_width / 4 * 4);
    width = ceil_div(ceil_div(c.tokens, 64), 4 * chunks) * 4, keys = min(64 * width, keys);
  }
  const int64_t tile_bytes = group * width * STORED_BYTES;
  const int64_t room = ctx->kept_bytes / 2 / tile_bytes / 2 * 2;  // an even number of tiles
  int64_t tiles = all_tiles, kv_heads = 1;
  if (room >= all_tiles)
    kv_heads = min(room / all_tiles, (int64_t)c.kv_heads);
  else if (room > 0)
    tiles = ceil_div(ceil_div(all_tiles, ceil_div(all_tiles, room)), 2) * 2;
  const bool one = tiles == all_tiles && kv_heads == c.kv_heads && keys == c.tokens;
  return {room >= tiles ? (int32_t)kv_heads : 0,
          (int32_t)tiles,
          (int32_t)keys,
          (int32_t)width,
          kv_heads * tiles * tile_bytes,
          one};
}

int32_t list_tiles(rattn_ctx *ctx, const Call &c, int32_t first, int32_t end, int32_t block_keys,
                   const Places *places) {
  Seen *const seen = const_cast<Seen *>(c.seen);
  const int32_t row_tiles = (int32_t)ceil_div(c.rows, 64);
  cudaError_t status = see_rows(ctx->stream, c.lo, c.hi, c.rows, c.tokens, 64, true, seen, row_tiles,
                                ctx->fault_on_device, c.lse, c.heads, first, end);
  if (status == cudaSuccess && places)
    status = place_rows(ctx->stream, seen, row_tiles, places->width, places->room, places->kept,
                        ctx->fault_on_device);
  if (status == cudaSuccess)
    status = see_keys(ctx->stream, seen, row_tiles, block_keys, const_cast<Seers *>(c.seers),
                      (int32_t)ceil_div(c.tokens, block_keys));
  return check(ctx, status, "tile lists");
}

// dq, keeping p and ds, then dk and dv from them, part by part.
template <class T>
static int32_t launch_parts(rattn_ctx *ctx, HopperBackward a, const Parts &parts) {
  using Dq = Hopper<T, D_Q, 16, 5, 2, true>;
  using Keys = KeySums<T>;
  const Call c = a.call;
  const int32_t row_tiles = (int32_t)ceil_div(c.rows, 64), group = c.heads / c.kv_heads;
  a.width = parts.width, a.fault = ctx->fault_on_device;
  int32_t status = make_maps<Dq>(ctx, &a);
  for (int32_t key = 0; key < c.tokens; key += min(parts.keys, c.tokens - key)) {
    if (status == RATTN_OK) status = list_tiles(ctx, a.call, key, key + min(parts.keys, c.tokens - key), 64);
    a.call.first = c.first && key == 0;
    int part = 0;
    for (a.first_kv_head = 0; a.first_kv_head < c.kv_heads; a.first_kv_head += parts.kv_heads)
      for (a.first_tile = 0; a.first_tile < row_tiles; a.first_tile += parts.tiles, part++) {
        if (status != RATTN_OK) return status;
        const int32_t heads = min(parts.kv_heads, c.kv_heads - a.first_kv_head);
        a.call.tiles = min(parts.tiles, row_tiles - a.first_tile);
        a.weights = (uint8_t *)ctx->weights.p + part % 2 * parts.bytes;
        status = launch_backward<Dq>(ctx, hopper_backward<Dq>, 2 * ceil_div(a.call.tiles, 2) * heads * group,
                                     a.call, part > 0, "backward dq", a);
        if (status == RATTN_OK)
          status = launch_backward<Keys>(ctx, key_sums<Keys>, ceil_div(c.tokens, 256) * 8 * heads, a.call,
                                         false, "backward dk, dv", a);
      }
  }
  return status;
}

int64_t hopper_backward_bytes(const rattn_shape *s, int64_t rows, int64_t tokens) {
  const int64_t row_tiles = ceil_div(rows, 64);
  const int64_t weights = ceil_div(row_tiles, 2) * 2 * ceil_div(tokens, 64) * s->heads * STORED_BYTES;
  return row_tiles * s->heads * 512 + (weights <= KEPT_BYTES / 2 ? weights : KEPT_BYTES);
}

bool has_hopper_backward(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens) {
  return ctx->architecture == 90 && !ctx->portable && s->dtype != RATTN_F32 && s->head_dim > 256 &&
         s->head_dim <= 512 && tokens > 0 && ctx->processors > 1;
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
  a.clusters = ctx->processors / 2;
  status = check(ctx, number_rows(ctx->stream, c, (float *)ctx->numbers.p), "lse and delta");
  if (status != RATTN_OK) return status;

  const Parts parts = parts_of(ctx, c);
  if (parts.kv_heads > 0) {
    status = reserve(ctx, &ctx->weights, parts.bytes * (parts.one ? 1 : 2), "weights");
    if (status != RATTN_OK) return status;
    return dtype == RATTN_BF16 ? launch_parts<Bf16>(ctx, a, parts) : launch_parts<F16>(ctx, a, parts);
  }
  status = list_tiles(ctx, a.call, 0, c.tokens, 64);
  if (status != RATTN_OK) return status;
  return dtype == RATTN_BF16 ? launch_three<Bf16>(ctx, a) : launch_three<F16>(ctx, a);
}

}  // namespace rattn
