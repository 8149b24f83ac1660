// hopper_backward_d256.cu: the backward for head sizes up to 256 on sm_90a: what a call
// enqueues.
#include "../kernels/rattn.h"
#include "hopper.h"
#include "hopper_backward_d256.cuh"
#include "hopper_launch.h"
#include "small.h"

namespace rattn {

// What a launch is of at most: so many KV heads, query heads of each, tiles of query rows, and
// keys. Its pairs of row tiles touch so many tiles of keys each, and so many in all, of which a
// query head's ds has room for.
struct Part {
  int32_t kv_heads, members, tiles, keys, width;
  int64_t room;
  int64_t bytes() const { return 2 * room * kv_heads * members * KEPT_TILE_BYTES; }
};

// All rows and keys of as many query heads as there is room for: of so many KV heads that their
// keys are blocks enough, and then of whole groups. Or some rows of one head, with all keys that
// they see or as many as are some rounds of blocks. Parts are of about the same size.
static Part split(const rattn_ctx *ctx, const Call &c, int32_t block_keys) {
  const int64_t row_pairs = ceil_div(c.rows, 128), key_tiles = ceil_div(c.tokens, 64),
                group = c.heads / c.kv_heads;
  const int64_t most_blocks = 4 * ctx->processors;
  const auto even = [](int64_t all, int64_t most) { return ceil_div(all, ceil_div(all, most)); };
  const int64_t room = max(ctx->kept_bytes / 2 / (2 * KEPT_TILE_BYTES), (int64_t)block_keys / 64);
  const int64_t heads = room / c.touched;
  if (heads > 0) {
    int64_t kv_heads =
        min(ceil_div(most_blocks, ceil_div(c.tokens, block_keys)), min((int64_t)c.kv_heads, heads));
    const int64_t members = even(group, min(heads / kv_heads, group));
    kv_heads = even(c.kv_heads, min(heads / members, (int64_t)c.kv_heads));
    return {(int32_t)kv_heads, (int32_t)members,   (int32_t)(2 * row_pairs),
            c.tokens,          (int32_t)key_tiles, c.touched};
  }
  // span keys that begin within a tile reach into one more.
  int64_t width = min(key_tiles, ceil_div(c.span, 64) + 1), keys = c.tokens;
  const int64_t most_keys = min(most_blocks, room * 64 / block_keys) * block_keys;
  if (64 * width > most_keys)
    keys = ceil_div(even(keys, most_keys), block_keys) * block_keys, width = keys / 64;
  const int64_t pairs = even(row_pairs, room / width);
  return {1, 1, (int32_t)(2 * pairs), (int32_t)keys, (int32_t)width, pairs * width};
}

// Launches dk, dv and ds of a part (keys), dq of another (rows), or both: dq then by `workers`
// blocks as far as they have time for it.
template <class Keys, class Rows>
static int32_t launch_part(rattn_ctx *ctx, const HopperKept *keys, const HopperKept *rows, int workers,
                           bool follows) {
  const int64_t units = rows ? ceil_div(rows->call.tiles, 2) * rows->kv_heads * rows->members : 0;
  const int64_t key_blocks = keys ? ceil_div(keys->call.tokens, Keys::ROWS) * keys->kv_heads : 0;
  if (!keys || !rows) workers = 0;
  const int64_t early = workers > 0 ? 3 * units / 5 : 0;
  const HopperKept &some = keys ? *keys : *rows;
  const Shares shares = {workers, (int)early, (int)key_blocks};
  return launch_backward<KeptBoth<Keys, Rows>>(ctx, kept_both<Keys, Rows>,
                                               workers + key_blocks + units - early, some.call, follows,
                                               !rows   ? "backward dk, dv"
                                               : !keys ? "backward dq"
                                                       : "backward",
                                               some, rows ? *rows : some, shares);
}

// dk, dv and ds, then dq from ds, part by part: up to 128, where memory is the limit of dq, beside
// the next part's dk and dv.
template <class T, int DIM>
static int32_t launch_parts(rattn_ctx *ctx, HopperKept a) {
  using Keys = KeptKeys<T, DIM, DIM == 256 ? 2 : DIM == 128 ? 3 : 6>;
  using Rows = KeptRows<T, DIM, DIM == 256 ? 4 : DIM == 128 ? 6 : 8>;
  const Call c = a.call;
  const int32_t row_tiles = (int32_t)ceil_div(c.rows, 64);
  // A multiprocessor that has dq to itself draws more than twice its share of memory's rate: 28 of
  // 132 have done 3 / 5 of it, the units that see most, before the others are done with dk and dv.
  const int workers = DIM == 256 ? 0 : max(7 * ctx->processors / 33, 1);
  const Part most = split(ctx, c, Keys::ROWS);
  const bool one = most.bytes() == 2 * c.touched * c.heads * KEPT_TILE_BYTES;
  int32_t status = reserve(ctx, &ctx->weights, most.bytes() * (one ? 1 : 2), "ds");
  a.head_room = most.room;
  const Places places = {const_cast<Kept *>(a.kept), most.width,
                         most.tiles < row_tiles ? INT64_MAX : most.room};
  for (int32_t key = 0; key < c.tokens; key += min(most.keys, c.tokens - key)) {
    if (status == RATTN_OK)
      status = list_tiles(ctx, a.call, key, key + min(most.keys, c.tokens - key), Keys::ROWS, &places);
    a.call.first = c.first && key == 0;
    HopperKept before = {};  // the part whose dq is to be computed yet
    int part = 0;
    for (a.first_kv_head = 0; a.first_kv_head < c.kv_heads; a.first_kv_head += most.kv_heads)
      for (a.first_member = 0; a.first_member < a.group; a.first_member += most.members)
        for (a.first_tile = 0; a.first_tile < row_tiles; a.first_tile += most.tiles, part++) {
          if (status != RATTN_OK) return status;
          a.kv_heads = min(most.kv_heads, c.kv_heads - a.first_kv_head);
          a.members = min(most.members, a.group - a.first_member);
          a.call.tiles = min(most.tiles, row_tiles - a.first_tile);
          a.ds = (uint8_t *)ctx->weights.p + part % 2 * most.bytes();
          status = launch_part<Keys, Rows>(ctx, &a, part > 0 && workers > 0 ? &before : NULL, workers,
                                           part > 0 && workers == 0);
          if (status == RATTN_OK && workers == 0) status = launch_part<Keys, Rows>(ctx, NULL, &a, 0, false);
          before = a;
        }
    if (status == RATTN_OK && workers > 0) status = launch_part<Keys, Rows>(ctx, NULL, &before, 0, false);
  }
  return status;
}

template <class T>
static int32_t launch_dim(rattn_ctx *ctx, const HopperKept &a) {
  if (a.call.dim <= 64) return launch_parts<T, 64>(ctx, a);
  if (a.call.dim <= 128) return launch_parts<T, 128>(ctx, a);
  return launch_parts<T, 256>(ctx, a);
}

int64_t hopper_backward_d256_bytes(const rattn_shape *s, int64_t rows, int64_t tokens) {
  const int64_t ds = 2 * ceil_div(rows, 128) * ceil_div(tokens, 64) * s->heads * KEPT_TILE_BYTES;
  return ceil_div(rows, 64) * s->heads * 512 + (ds <= KEPT_BYTES / 2 ? ds : KEPT_BYTES);
}

bool has_hopper_backward_d256(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens) {
  return ctx->architecture == 90 && !ctx->portable && s->dtype != RATTN_F32 && s->head_dim >= 8 &&
         s->head_dim <= 256 && tokens > 0;
}

int32_t hopper_backward_d256(rattn_ctx *ctx, int32_t dtype, const Call &c) {
  const int64_t row_tiles = ceil_div(c.rows, 64), pairs = ceil_div(c.rows, 128),
                key_tiles = ceil_div(c.tokens, 64);
  int32_t status = reserve(ctx, &ctx->numbers, row_tiles * c.heads * 512, "lse and delta");
  if (status == RATTN_OK)
    status = reserve(ctx, &ctx->lists,
                     row_tiles * (int64_t)sizeof(Seen) + pairs * (int64_t)sizeof(Kept) +
                         key_tiles * (int64_t)sizeof(Seers),
                     "tile lists");
  if (status != RATTN_OK) return status;
  Seen *const seen = (Seen *)ctx->lists.p;
  Kept *const kept = (Kept *)(seen + row_tiles);
  HopperKept a = {};
  a.call = c, a.call.seen = seen, a.kept = kept, a.call.seers = (Seers *)(kept + pairs);
  a.group = c.heads / c.kv_heads;
  a.numbers = (const float *)ctx->numbers.p;
  status = check(ctx, number_rows(ctx->stream, c, (float *)ctx->numbers.p), "lse and delta");
  const Tensors x(dtype, c);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a.q, x.q, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a.k, x.k, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a.v, x.v, 1, 64);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &a.dout, x.dout, 1, 64);
  if (status != RATTN_OK) return status;
  return dtype == RATTN_BF16 ? launch_dim<Bf16>(ctx, a) : launch_dim<F16>(ctx, a);
}

}  // namespace rattn
