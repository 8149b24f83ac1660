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
  const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &p, cudaEnableDefault, &found);
  if (status == cudaSuccess && found == cudaDriverEntryPointSuccess) return (Encode)p;
  cudaGetLastError();
  return nullptr;
}

int32_t make_tensor_map(rattn_ctx *ctx, CUtensorMap *map, const TokenMajor &x, int32_t box_heads,
                        int32_t box_tokens) {
  // Threads that come here together find the same.
  static Encode encode = nullptr;
  if (!encode) encode = find_encode();
  if (!encode)
    return fail(ctx, RATTN_ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled, on %s", ctx->name);
  const cuuint64_t dims[3] = {(cuuint64_t)x.dim, (cuuint64_t)x.heads, (cuuint64_t)x.tokens};
  const cuuint64_t strides[2] = {(cuuint64_t)x.head_stride * 2, (cuuint64_t)x.token_stride * 2};
  const cuuint32_t box[3] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_tokens}, steps[3] = {1, 1, 1};
  const CUresult status = encode(
      map, x.dtype == RATTN_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
      const_cast<void *>(x.base), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    return fail(ctx, RATTN_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d for %d x %d x %d elements, on %s",
                (int)status, x.tokens, x.heads, x.dim, ctx->name);
  return RATTN_OK;
}

int32_t make_group_map(rattn_ctx *ctx, CUtensorMap *map, const TokenMajor &x, int32_t box_groups,
                       int32_t box_tokens) {
  const Encode encode = find_encode();
  if (!encode)
    return fail(ctx, RATTN_ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled, on %s", ctx->name);
  const bool whole = x.dim % 64 == 0;
  const cuuint64_t dims[4] = {(cuuint64_t)(whole ? 64 : x.dim), (cuuint64_t)x.tokens,
                              (cuuint64_t)(whole ? x.dim / 64 : 1), (cuuint64_t)x.heads};
  const cuuint64_t strides[3] = {(cuuint64_t)x.token_stride * 2, 128, (cuuint64_t)x.head_stride * 2};
  const cuuint32_t box[4] = {64, (cuuint32_t)box_tokens, (cuuint32_t)box_groups, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult status = encode(
      map, x.dtype == RATTN_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      const_cast<void *>(x.base), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    return fail(ctx, RATTN_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d for %d x %d x %d elements, on %s",
                (int)status, x.tokens, x.heads, x.dim, ctx->name);
  return RATTN_OK;
}

}  // namespace rattn
