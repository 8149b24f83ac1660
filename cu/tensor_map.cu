// tensor_map.cu: descriptors of tensors for TMA loads.
#include "tensor_map.h"

namespace rattn {

// cuTensorMapEncodeTiled of the driver, which is not linked: a program that has this code
// in it starts without a driver. NULL where the driver has none.
typedef CUresult (*Encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                           const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                           CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static Encode find_encode() {
  void *p = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &p, cudaEnableDefault, &found);
#endif
  if (status == cudaSuccess && found == cudaDriverEntryPointSuccess) return (Encode)p;
  cudaGetLastError();
  return nullptr;
}

// Describes x as a tensor of rank dimensions; strides, in bytes, are those of all but the first.
static int32_t encode_map(rattn_ctx *ctx, CUtensorMap *map, const TokenMajor &x, int rank,
                          const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box) {
  // Threads that come here together find the same.
  static Encode encode = nullptr;
  if (!encode) encode = find_encode();
  if (!encode)
    return fail(ctx, RATTN_ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled, on %s", ctx->name);
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult status = encode(
      map, x.dtype == RATTN_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      (cuuint32_t)rank, const_cast<void *>(x.base), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    return fail(ctx, RATTN_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d for %d x %d x %d elements, on %s",
                (int)status, x.tokens, x.heads, x.dim, ctx->name);
  return RATTN_OK;
}

int32_t make_tensor_map(rattn_ctx *ctx, CUtensorMap *map, const TokenMajor &x, int32_t box_heads,
                        int32_t box_tokens) {
  const cuuint64_t dims[] = {(cuuint64_t)x.dim, (cuuint64_t)x.heads, (cuuint64_t)x.tokens};
  const cuuint64_t strides[] = {(cuuint64_t)x.head_stride * 2, (cuuint64_t)x.token_stride * 2};
  const cuuint32_t box[] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_tokens};
  return encode_map(ctx, map, x, 3, dims, strides, box);
}

int32_t make_group_map(rattn_ctx *ctx, CUtensorMap *map, const TokenMajor &x, int32_t box_groups,
                       int32_t box_tokens) {
  const bool whole = x.dim % 64 == 0;
  const cuuint64_t dims[] = {(cuuint64_t)(whole ? 64 : x.dim), (cuuint64_t)x.tokens,
                             (cuuint64_t)(whole ? x.dim / 64 : 1), (cuuint64_t)x.heads};
  const cuuint64_t strides[] = {(cuuint64_t)x.token_stride * 2, 128, (cuuint64_t)x.head_stride * 2};
  const cuuint32_t box[] = {64, (cuuint32_t)box_tokens, (cuuint32_t)box_groups, 1};
  return encode_map(ctx, map, x, 4, dims, strides, box);
}

}  // namespace rattn
