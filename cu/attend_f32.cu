// attend_f32.cu: the f32 kernels.
#include "../kernels/rattn.h"
#include "attend_f32.cuh"

namespace rattn {

template <Kind KIND, int DIM>
Kernel kernel_f32(const char *name) {
  using P = TileF32<KIND, DIM>;
  return {KIND, RATTN_F32, DIM, P::ROWS, P::STREAM, P::THREADS, P::SHARED_BYTES, (const void *)attend_f32<P>,
          name};
}

#define ALL_KINDS(dim)                                                      \
  kernel_f32<FORWARD, dim>("forward"), kernel_f32<D_Q, dim>("backward dq"), \
      kernel_f32<D_V, dim>("backward dv"), kernel_f32<D_K, dim>("backward dk")

const Kernel *kernels_f32(int *count) {
  static const Kernel list[] = {ALL_KINDS(64), ALL_KINDS(128), ALL_KINDS(256), ALL_KINDS(576)};
  *count = sizeof list / sizeof *list;
  return list;
}

}  // namespace rattn
