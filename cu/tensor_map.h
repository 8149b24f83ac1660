// tensor_map.h: descriptors of tensors for TMA loads (sm_90).
#ifndef RATTN_TENSOR_MAP_H
#define RATTN_TENSOR_MAP_H

#include <cuda.h>

#include "context.h"

namespace rattn {

// A token-major tensor of 16-bit elements [tokens, heads, dim]: q and dout, or the keys or
// the values of kv. Strides in elements: multiples of 8, and base a multiple of 16 bytes.
struct TokenMajor {
  const void *base;
  int32_t dtype, dim, heads, tokens;
  int64_t head_stride, token_stride;
};

// Fills map for boxes of 64 elements of box_heads heads of box_tokens tokens, which land as
// [token][head][64], rows of 128 bytes, swizzled (see ptx.cuh). Coordinates are (element,
// head, token); what lies outside the tensor becomes 0. Host code only: nothing is
// allocated or enqueued, and the map goes to the kernel as a __grid_constant__ parameter.
int32_t make_tensor_map(rattn_ctx *ctx, CUtensorMap *map, const TokenMajor &x, int32_t box_heads,
                        int32_t box_tokens);

// The same for boxes of box_groups groups of 64 elements of one head of box_tokens tokens,
// which land as [group][token][64]. Coordinates are (0, token, group, head) where dim is a
// multiple of 64; elsewhere box_groups is 1 and they are (element, token, 0, head).
int32_t make_group_map(rattn_ctx *ctx, CUtensorMap *map, const TokenMajor &x, int32_t box_groups,
                       int32_t box_tokens);

}  // namespace rattn

#endif
