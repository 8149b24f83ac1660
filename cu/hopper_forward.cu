// hopper_forward.cu: the kernel of hopper_forward.cuh, and how it is enqueued.
#include "hopper.h"
#include "hopper_forward_scores.cuh"
#include "hopper_forward_values.cuh"
#include "hopper_launch.h"

namespace rattn {

namespace {

template <class T>
__global__ void __launch_bounds__(128 * WARPGROUPS, 1)
    hopper_forward_kernel(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap q,
                          const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v) {
  const uint32_t base = tile_memory();
  const int rank = cluster_rank();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) {
      mbarrier_init(base + K_FULL + 8 * i, 1), mbarrier_init(base + K_EMPTY + 8 * i, 2 * 4);
      mbarrier_init(base + V_FULL + 8 * i, 1), mbarrier_init(base + V_EMPTY + 8 * i, 2 * 4);
    }
    for (int i = 0; i < 2; i++) {
      mbarrier_init(base + P_FULL + 8 * i, 4 * WARP_ARRIVALS);
      mbarrier_init(base + P_EMPTY + 8 * i, 8 * WARP_ARRIVALS);
      mbarrier_init(base + P_GO + 8 * i, 4 * WARP_ARRIVALS);
      mbarrier_init(base + Q_FULL + 8 * i, 1), mbarrier_init(base + Q_EMPTY + 8 * i, 4 * WARP_ARRIVALS);
      mbarrier_init(base + UNIT_FULL + 8 * i, 1), mbarrier_init(base + UNIT_EMPTY + 8 * i, 2 * READERS);
      store_shared(base + ODD_AT + 8 * i, INT_MAX), store_shared(base + ODD_AT + 8 * i + 4, 0);
    }
    mbarrier_init(base + RESULT_FULL, 4 * WARP_ARRIVALS);
    mbarrier_init(base + RESULT_EMPTY, 8 * WARP_ARRIVALS);
    fence_mbarrier_init();
  }
  __syncthreads();
  cluster_sync();
  if (warp < 4) {
    shrink_registers<LOAD_REGISTERS>();
    if (lane == 0) {
      if (warp == 0) load_ring<false>(p, &k, base, rank);
      if (warp == 1) load_ring<true>(p, &v, base, rank);
      if (warp == 2) load_q(p, &q, base, rank);
      if (warp == 3) draw_units(p, base, rank);
    }
    __syncwarp();
  } else if (warp < 8) {
    grow_registers<SCORE_REGISTERS>();
    score_tiles<T>(p, base, rank);
  } else {
    grow_registers<VALUE_REGISTERS>();
    add_values<T>(p, base, rank, warp / 4 - 2);
  }
  // Nobody may leave while the other block arrives at its barriers, or loads for it.
  __syncwarp();
  cluster_sync();
}

}  // namespace

bool has_hopper_forward(const rattn_ctx *ctx, const rattn_shape *s, int64_t tokens) {
  return ctx->architecture == 90 && !ctx->portable && s->dtype != RATTN_F32 && s->head_dim > 256 &&
         s->head_dim <= 512 && tokens > 0 && ctx->processors > 1 &&
         (int32_t)SHARED_BYTES <= ctx->shared_bytes;
}

int32_t prepare_forward(rattn_ctx *ctx, int32_t dtype, const Call &c, const Packing &packing, int32_t keys,
                        ForwardParts *parts) {
  const int64_t seen_bytes = c.tiles * (int64_t)sizeof(Seen);
  int32_t status = reserve(ctx, &ctx->lists, seen_bytes + 16, "tile lists");
  if (status != RATTN_OK) return status;
  Seen *seen = (Seen *)ctx->lists.p;
  parts->seen = seen, parts->next = (int32_t *)((char *)ctx->lists.p + seen_bytes);
  status = check(ctx,
                 see_rows(ctx->stream, c.lo, c.hi, c.rows, c.tokens, packing.tokens, false, seen, c.tiles,
                          ctx->fault_on_device),
                 "tile lists");
  if (status == RATTN_OK) status = check(ctx, cudaMemsetAsync(parts->next, 0, 4, ctx->stream), "tile lists");
  const Tensors x(dtype, c);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &parts->q, x.q, 1 << packing.bits, packing.tokens);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &parts->k, x.k, 1, keys);
  if (status == RATTN_OK) status = make_tensor_map(ctx, &parts->v, x.v, 1, keys);
  return status;
}

int32_t hopper_forward(rattn_ctx *ctx, int32_t dtype, Call c) {
  const Packing packing(c, ROWS);
  Params p = {};
  p.group = packing.group, p.pack_bits = packing.bits;
  p.pairs = (int32_t)ceil_div(c.rows, 2 * packing.tokens);
  c.tiles = 2 * p.pairs;
  const int64_t units = (int64_t)p.pairs * (c.heads >> packing.bits);
  if (units > INT_MAX - 2048)
    return fail(ctx, RATTN_ERR_ARG, "forward: %lld pairs of tiles for %d rows of %d heads", (long long)units,
                c.rows, c.heads);
  p.units = (int32_t)units;
  ForwardParts parts;
  const int32_t status = prepare_forward(ctx, dtype, c, packing, KEYS, &parts);
  if (status != RATTN_OK) return status;
  c.seen = parts.seen, p.next = parts.next, p.call = c;

  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  const int32_t clusters = p.units < ctx->processors / 2 ? p.units : ctx->processors / 2;
  const auto kernel = dtype == RATTN_BF16 ? hopper_forward_kernel<Bf16> : hopper_forward_kernel<F16>;
  return launch(ctx, kernel, 2 * clusters, 128 * WARPGROUPS, SHARED_BYTES, &cluster, "forward", p, parts.q,
                parts.k, parts.v);
}

}  // namespace rattn
