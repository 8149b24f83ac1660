// hopper.h: the kernels made of what sm_90a alone has (ptx.cuh).
#ifndef RATTN_HOPPER_H
#define RATTN_HOPPER_H

#include "context.h"

namespace rattn {

// Whether hopper_forward computes such a call on this device: bf16 or f16, head_dim in
// (256, 512], at least one key.
bool has_hopper_forward(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens);

// Enqueues a forward. c is complete but for the tile lists.
int32_t hopper_forward(rattn_ctx *ctx, int32_t dtype, Call c);

// The same for head_dim up to 256.
bool has_hopper_forward_d256(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens);
int32_t hopper_forward_d256(rattn_ctx *ctx, int32_t dtype, Call c);

// The same for the backward.
bool has_hopper_backward(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens);
int32_t hopper_backward(rattn_ctx *ctx, int32_t dtype, const Call &c);

// What weights that are kept may take in all, in two buffers.
constexpr int64_t KEPT_BYTES = 4LL << 30;

// The most bytes of workspace, beside tile lists, of a backward of so many rows and keys, or fewer.
int64_t hopper_backward_bytes(const rattn_shape *s, int64_t rows, int64_t tokens);

// And for head_dim in [8, 256].
bool has_hopper_backward_d256(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens);
int32_t hopper_backward_d256(rattn_ctx *ctx, int32_t dtype, const Call &c);
int64_t hopper_backward_d256_bytes(const rattn_shape *s, int64_t rows, int64_t tokens);

}  // namespace rattn

#endif
