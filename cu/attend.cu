// attend.cu: the tensor-core kernels of one dtype (RATTN_T) for head sizes up to
// RATTN_DIM (0: those for little shared memory); compiled once for each.
#include "../kernels/rattn.h"
#include "attend.cuh"

#define JOIN_(a, b, c, d) a##b##c##d
#define JOIN(a, b, c, d) JOIN_(a, b, c, d)

namespace rattn {

constexpr const char *name_of(Kind k) {
  return k == FORWARD ? "forward"
         : k == D_Q   ? "backward dq"
         : k == D_V   ? "backward dv"
         : k == D_K   ? "backward dk"
                      : "backward dk, dv";
}

template <class P>
Kernel kernel() {
  const int32_t dtype = P::T::UNIT == Bf16::UNIT ? RATTN_BF16 : RATTN_F16;
  return {P::KIND,         dtype,      P::DIM,          P::ROWS,
          P::STREAM,       P::THREADS, P::SHARED_BYTES, (const void *)attend<P>,
          name_of(P::KIND)};
}

// Tiles: warps down and across, stream rows, dims of a chunk of scores, rows of a chunk
// to accumulate, slots, blocks of a multiprocessor.
Kernels JOIN(kernels_, RATTN_NAME, _, RATTN_DIM);
const Kernel *JOIN(kernels_, RATTN_NAME, _, RATTN_DIM)(int *count) {
  using T = RATTN_T;
  static const Kernel list[] = {
#if RATTN_DIM == 64
    kernel<Tile<T, FORWARD, 64, 4, 1, 64, 64, 64, 4, 2>>(),
    kernel<Tile<T, D_Q, 64, 4, 1, 64, 64, 64, 4, 2>>(),
    kernel<Tile<T, D_KV, 64, 4, 1, 32, 64, 32, 4, 2>>(),
#elif RATTN_DIM == 128
    kernel<Tile<T, FORWARD, 128, 4, 1, 64, 128, 64, 3, 2>>(),
    kernel<Tile<T, D_Q, 128, 4, 1, 32, 128, 32, 4, 2>>(),
    kernel<Tile<T, D_KV, 128, 4, 2, 64, 128, 64, 4, 1>>(),
#elif RATTN_DIM == 256
    kernel<Tile<T, FORWARD, 256, 4, 2, 64, 256, 64, 2, 1>>(),
    kernel<Tile<T, D_Q, 256, 4, 2, 64, 256, 64, 2, 1>>(),
    kernel<Tile<T, D_V, 256, 4, 2, 64, 256, 64, 2, 1>>(),
    kernel<Tile<T, D_K, 256, 4, 2, 64, 256, 64, 2, 1>>(),
#elif RATTN_DIM == 512
    kernel<Tile<T, FORWARD, 512, 2, 4, 128, 64, 16, 5, 1>>(),
    kernel<Tile<T, D_Q, 512, 2, 4, 128, 64, 16, 5, 1>>(),
    kernel<Tile<T, D_V, 512, 2, 4, 128, 64, 16, 5, 1>>(),
    kernel<Tile<T, D_K, 512, 2, 4, 128, 64, 16, 5, 1>>(),
#elif RATTN_DIM == 0
    // For GPUs with less shared memory than sm_90, in the order of preference.
    kernel<Tile<T, D_KV, 128, 2, 2, 64, 128, 64, 3, 1>>(),
    kernel<Tile<T, FORWARD, 256, 2, 4, 128, 64, 32, 3, 1>>(),
    kernel<Tile<T, D_Q, 256, 2, 4, 128, 64, 32, 4, 1>>(),
    kernel<Tile<T, D_V, 256, 2, 4, 128, 64, 32, 3, 1>>(),
    kernel<Tile<T, D_K, 256, 2, 4, 128, 64, 32, 4, 1>>(),
    kernel<Tile<T, D_Q, 256, 1, 8, 128, 64, 32, 3, 1>>(),
    kernel<Tile<T, D_K, 256, 1, 8, 128, 64, 32, 3, 1>>(),
    kernel<Tile<T, FORWARD, 512, 1, 8, 128, 64, 16, 3, 1>>(),
    kernel<Tile<T, D_Q, 512, 1, 8, 128, 64, 16, 4, 1>>(),
    kernel<Tile<T, D_V, 512, 1, 8, 128, 64, 16, 3, 1>>(),
    kernel<Tile<T, D_K, 512, 1, 8, 128, 64, 16, 4, 1>>(),
    kernel<Tile<T, D_Q, 576, 1, 4, 128, 64, 16, 4, 1>>(),
    kernel<Tile<T, D_K, 576, 1, 4, 128, 64, 16, 4, 1>>(),
#elif RATTN_DIM == 576
    kernel<Tile<T, FORWARD, 576, 2, 4, 128, 64, 16, 4, 1>>(),
    kernel<Tile<T, D_Q, 576, 2, 4, 128, 64, 16, 3, 1>>(),
    kernel<Tile<T, D_V, 576, 2, 4, 128, 64, 16, 4, 1>>(),
    kernel<Tile<T, D_K, 576, 2, 4, 128, 64, 16, 3, 1>>(),
#endif
  };
  *count = sizeof list / sizeof *list;
  return list;
}

}  // namespace rattn
