// hopper_forward_d256.cu: the kernels of hopper_forward_d256.cuh, and how they are enqueued.
#include "hopper.h"
#include "hopper_forward_d256_rows.cuh"
#include "tensor_map.h"

namespace rattn {

namespace {

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    hopper_forward_d256_kernel(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap q,
                               const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v) {
  const uint32_t base = tile_memory();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  constexpr int ARRIVALS = 4 * S::GROUPS * WARP_ARRIVALS;  // of warps that compute
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(base + S::K_FULL + 8 * i, 1), mbarrier_init(base + S::K_EMPTY + 8 * i, ARRIVALS);
      mbarrier_init(base + S::V_FULL + 8 * i, 1), mbarrier_init(base + S::V_EMPTY + 8 * i, ARRIVALS);
      mbarrier_init(base + S::V_CLEAN + 8 * i, CLEANERS * WARP_ARRIVALS);
    }
    mbarrier_init(base + S::Q_FULL, 1), mbarrier_init(base + S::Q_EMPTY, ARRIVALS);
    for (int i = 0; i < 2; i++) {
      mbarrier_init(base + S::UNIT_FULL + 8 * i, 1);
      mbarrier_init(base + S::UNIT_EMPTY + 8 * i, ARRIVALS + CLEANERS * WARP_ARRIVALS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp < 4) {
    shrink_registers<S::LOAD_REGISTERS>();
    if (warp > 0)
      clean_units<S>(p, base, warp - 1);
    else if (threadIdx.x == 0)
      load_units<S>(p, &q, &k, &v, base);
  } else {
    grow_registers<S::REGISTERS>();
    attend_units<S>(p, base, warp / 4 - 1);
  }
}

template <class S>
int32_t launch(rattn_ctx *ctx, int32_t dtype, Call c) {
  Params p = {};
  p.group = c.heads / c.kv_heads;
  while (p.pack_bits < 6 && p.group % (2 << p.pack_bits) == 0) p.pack_bits++;
  const int32_t tokens = S::ROWS >> p.pack_bits;
  p.blocks = c.heads >> p.pack_bits;
  c.tiles = (c.rows + tokens - 1) / tokens;
  if ((int64_t)c.tiles * p.blocks > INT_MAX / 2)
    return fail(ctx, RATTN_ERR_ARG, "forward: %lld tiles for %d rows of %d heads",
                (long long)c.tiles * p.blocks, c.rows, c.heads);
  p.units = c.tiles * p.blocks;
  const int64_t block_bytes = c.tokens * (int64_t)c.dim * 4, l2_bytes = 32 << 20;
  p.section = (int32_t)min((int64_t)p.blocks, max((int64_t)1, l2_bytes / block_bytes));

  const int64_t seen_bytes = c.tiles * (int64_t)sizeof(Seen);
  int32_t status = reserve(ctx, &ctx->lists, seen_bytes + 16, "tile lists");
  if (status != RATTN_OK) return status;
  Seen *seen = (Seen *)ctx->lists.p;
  c.seen = seen;
  p.next = (int32_t *)((char *)ctx->lists.p + seen_bytes);
  p.call = c;
  status = check(
      ctx,
      see_rows(ctx->stream, c.lo, c.hi, c.rows, c.tokens, tokens, false, seen, c.tiles, ctx->fault_on_device),
      "tile lists");
  if (status == RATTN_OK) status = check(ctx, cudaMemsetAsync(p.next, 0, 4, ctx->stream), "tile lists");

  CUtensorMap q, k, v;
  if (status == RATTN_OK)
    status = make_tensor_map(ctx, &q, {c.q, dtype, c.dim, c.heads, c.rows, c.stride, c.q_token},
                             1 << p.pack_bits, tokens);
  if (status == RATTN_OK)
    status =
        make_tensor_map(ctx, &k, {c.k, dtype, c.dim, c.kv_heads, c.tokens, c.stride, c.kv_token}, 1, S::KEYS);
  if (status == RATTN_OK)
    status =
        make_tensor_map(ctx, &v, {c.v, dtype, c.dim, c.kv_heads, c.tokens, c.stride, c.kv_token}, 1, S::KEYS);
  if (status != RATTN_OK) return status;

  const auto kernel = hopper_forward_d256_kernel<S>;
  status = check(ctx,
                 cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      S::SHARED_BYTES),
                 "shared memory");
  if (status != RATTN_OK) return status;
  const cudaLaunchConfig_t config = {
      dim3(min(p.units, ctx->processors)), dim3(S::THREADS), S::SHARED_BYTES, ctx->stream, nullptr, 0};
  return check(ctx, cudaLaunchKernelEx(&config, kernel, p, q, k, v), "forward");
}

template <class T>
int32_t launch_any(rattn_ctx *ctx, int32_t dtype, const Call &c) {
  if (c.dim <= 64) return launch<Shape<T, 64, 3, 128>>(ctx, dtype, c);
  if (c.dim <= 96) return launch<Shape<T, 96, 2, 128>>(ctx, dtype, c);
  if (c.dim <= 128) return launch<Shape<T, 128, 2, 128>>(ctx, dtype, c);
  if (c.dim <= 192) return launch<Shape<T, 192, 2, 96>>(ctx, dtype, c);
  return launch<Shape<T, 256, 2, 64>>(ctx, dtype, c);
}

}  // namespace

bool has_hopper_forward_d256(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens) {
  return ctx->architecture == 90 && !ctx->portable && s->dtype != RATTN_F32 && s->head_dim <= 256 &&
         tokens > 0 && ctx->shared_bytes >= 227 * 1024;
}

int32_t hopper_forward_d256(rattn_ctx *ctx, int32_t dtype, Call c) {
  return dtype == RATTN_BF16 ? launch_any<Bf16>(ctx, dtype, c) : launch_any<F16>(ctx, dtype, c);
}

}  // namespace rattn
