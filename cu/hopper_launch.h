// hopper_launch.h: what host code has ready for the kernels for sm_90a, and how it launches them.
#ifndef RATTN_HOPPER_LAUNCH_H
#define RATTN_HOPPER_LAUNCH_H

#include <limits.h>

#include "context.h"
#include "tensor_map.h"

namespace rattn {

// The tensors of a call, by TMA.
struct Tensors {
  TokenMajor q, k, v, dout;
  Tensors(int32_t dtype, const Call &c)
      : q{c.q, dtype, c.dim, c.heads, c.rows, c.stride, c.q_token},
        k{c.k, dtype, c.dim, c.kv_heads, c.tokens, c.stride, c.kv_token},
        v(k),
        dout(q) {
    v.base = c.v, dout.base = c.dout;
  }
};

// Enqueues a kernel, with an attribute or none.
template <class... A>
int32_t launch(rattn_ctx *ctx, void (*kernel)(A...), int64_t blocks, int threads, int32_t shared_bytes,
               cudaLaunchAttribute *attribute, const char *name, const A &...arguments) {
  const int32_t status = check(
      ctx,
      cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      "shared memory");
  if (status != RATTN_OK) return status;
  const cudaLaunchConfig_t config = {
      dim3((unsigned)blocks), dim3((unsigned)threads), (size_t)shared_bytes, ctx->stream, attribute,
      attribute ? 1u : 0u};
  return check(ctx, cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

// Enqueues a kernel of the backward. One that follows may start beside the last blocks of the
// kernel before, which have no use for all multiprocessors.
template <class P, class... A>
int32_t launch_backward(rattn_ctx *ctx, void (*kernel)(A...), int64_t blocks, const Call &call, bool follows,
                        const char *name, const A &...arguments) {
  if (blocks > INT_MAX)
    return fail(ctx, RATTN_ERR_ARG, "%s: %lld blocks for %d rows, %d keys, %d/%d heads", name,
                (long long)blocks, call.rows, call.tokens, call.heads, call.kv_heads);
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  return launch(ctx, kernel, blocks, P::THREADS, P::SHARED_BYTES, follows ? &overlap : nullptr, name,
                arguments...);
}

// Where what is kept of pairs of row tiles goes: see place_rows.
struct Places {
  Kept *kept;
  int32_t width;
  int64_t room;
};

// Lists of a backward for the keys in [first, end): what tiles of 64 rows see and, if there are
// places, where what is kept of them goes; and who sees tiles of block_keys keys.
int32_t list_tiles(rattn_ctx *ctx, const Call &c, int32_t first, int32_t end, int32_t block_keys,
                   const Places *places = nullptr);

// What a forward goes by: query heads of a KV head in a tile, as a power of 2, and tokens.
struct Packing {
  int32_t group, bits, tokens;
  Packing(const Call &c, int32_t rows) : group(c.heads / c.kv_heads), bits(0) {
    while (bits < 6 && group % (2 << bits) == 0) bits++;
    tokens = rows >> bits;
  }
};

// What a forward is launched with: tile lists and a counter of units that is 0, in the
// workspace, and descriptors of boxes of 64 elements.
struct ForwardParts {
  const Seen *seen;  // [c.tiles]
  int32_t *next;
  CUtensorMap q, k, v;
};

// Enqueues what fills them, for c.tiles tiles of query rows and tiles of `keys` keys.
int32_t prepare_forward(rattn_ctx *ctx, int32_t dtype, const Call &c, const Packing &packing, int32_t keys,
                        ForwardParts *parts);

}  // namespace rattn

#endif
