// hopper_forward_d256.cu: the kernels of hopper_forward_d256.cuh, and how they are enqueued.
#include "hopper.h"
#include "hopper_forward_d256_rows.cuh"
#include "hopper_launch.h"

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
int32_t launch_shape(rattn_ctx *ctx, int32_t dtype, Call c) {
  const Packing packing(c, S::ROWS);
  Params p = {};
  p.group = packing.group, p.pack_bits = packing.bits;
  p.blocks = c.heads >> packing.bits;
  c.tiles = (int32_t)ceil_div(c.rows, packing.tokens);
  if ((int64_t)c.tiles * p.blocks > INT_MAX / 2)
    return fail(ctx, RATTN_ERR_ARG, "forward: %lld tiles for %d rows of %d heads",
                (long long)c.tiles * p.blocks, c.rows, c.heads);
  p.units = c.tiles * p.blocks;
  const int64_t block_bytes = c.tokens * (int64_t)c.dim * 4, l2_bytes = 32 << 20;
  p.section = (int32_t)min((int64_t)p.blocks, max((int64_t)1, l2_bytes / block_bytes));
  ForwardParts parts;
  const int32_t status = prepare_forward(ctx, dtype, c, packing, S::KEYS, &parts);
  if (status != RATTN_OK) return status;
  c.seen = parts.seen, p.next = parts.next, p.call = c;
  return launch(ctx, hopper_forward_d256_kernel<S>, min(p.units, ctx->processors), S::THREADS,
                S::SHARED_BYTES, nullptr, "forward", p, parts.q, parts.k, parts.v);
}

template <class T>
int32_t launch_any(rattn_ctx *ctx, int32_t dtype, const Call &c) {
  if (c.dim <= 64) return launch_shape<Shape<T, 64, 3, 128>>(ctx, dtype, c);
  if (c.dim <= 96) return launch_shape<Shape<T, 96, 2, 128>>(ctx, dtype, c);
  if (c.dim <= 128) return launch_shape<Shape<T, 128, 2, 128>>(ctx, dtype, c);
  if (c.dim <= 192) return launch_shape<Shape<T, 192, 2, 96>>(ctx, dtype, c);
  return launch_shape<Shape<T, 256, 2, 64>>(ctx, dtype, c);
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
