// emulate.h: runs blocks of CUDA threads on one CPU thread, to test the kernels' indexes,
// barriers and waits where there is no GPU.
//
// A thread is a fiber that runs until it waits for others; which runs next is random, so
// that a missing barrier shows. Copies by cp.async are done when they are waited for and no
// sooner; what sm_90a does in the background (hopper.cpp) is done at a random time.
#ifndef RATTN_EMULATE_H
#define RATTN_EMULATE_H

#include <cuda_runtime.h>
#include <stdint.h>

#include <functional>

namespace emulate {

struct Index {
  unsigned x;
};
extern Index thread, block, grid;
constexpr int SHARED_BYTES = 256 << 10;
extern char *shared;   // memory of the block
extern unsigned rank;  // of the block in its cluster

// Runs f as every thread of every block; blocks of a cluster run together.
void launch(unsigned blocks, unsigned threads, const std::function<void()> &f, unsigned cluster = 1);
char *shared_of(unsigned rank);
unsigned threads_of_block();

// The current thread waits until done() is true.
void wait_until(const std::function<bool()> &done);
// f happens at some time from now on.
void later(const std::function<void()> &f);
// What hopper.cpp knows of barriers and products is forgotten; one product is computed, if
// there is any whose threads have all come.
void forget_cluster();
bool compute_product();

// All 32 lanes of a warp come here; the last calls f with the arguments of all.
void together(void *argument, void (*f)(void **all));
// Waits until `threads` threads are at barrier id.
void barrier(int id, int threads);
void barrier_arrive(int id, int threads);  // without waiting
// Waits for all threads of the cluster.
void cluster_barrier();
int block_or(int x);
int barrier_or(int id, int threads, int x);

void copy(uint32_t to, const void *from, bool valid, int bytes);
void end_copies();
void wait_copies(int groups);

void require(bool what, const char *text);

float shuffle_xor(float x, int mask);
int32_t shuffle_xor(int32_t x, int mask);
float shuffle(float x, int lane);
int32_t shuffle(int32_t x, int lane);
inline uint32_t shuffle(uint32_t x, int lane) { return (uint32_t)shuffle((int32_t)x, lane); }
int any(int x);

// Blocks of a cluster: what an argument says, else what the launch asks for.
template <class A>
unsigned cluster_of(const cudaLaunchConfig_t *, const A &, decltype(A::CLUSTER)) {
  return A::CLUSTER;
}
template <class A>
unsigned cluster_of(const cudaLaunchConfig_t *c, const A &, ...) {
  const bool said = c->numAttrs && c->attrs[0].id == cudaLaunchAttributeClusterDimension;
  return said ? c->attrs[0].val.clusterDim.x : 1;
}

// cudaLaunchKernelEx, of what the backend asks of it.
template <class A, class... P>
cudaError_t launch_kernel(const cudaLaunchConfig_t *c, void (*kernel)(A, P...), const A &first,
                          const P &...arguments) {
  const unsigned cluster = cluster_of(c, first, 0);
  launch(
      c->gridDim.x, c->blockDim.x, [&] { kernel(first, arguments...); }, cluster);
  return cudaSuccess;
}

}  // namespace emulate

#define LAUNCH(kernel, blocks, stream, ...) \
  ((void)(stream), emulate::launch((unsigned)(blocks), THREADS, [&] { kernel(__VA_ARGS__); }))
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __grid_constant__
#define __grid_constant__
#define threadIdx emulate::thread
#define blockIdx emulate::block
#define gridDim emulate::grid
#define __syncthreads() emulate::barrier(0, (int)emulate::threads_of_block())
#define __syncthreads_or(x) emulate::block_or(x)
#define __shfl_xor_sync(mask, x, k) emulate::shuffle_xor(x, k)
#define __any_sync(mask, x) emulate::any(x)
#define __syncwarp() ((void)emulate::any(0))
#define __shfl_sync(mask, x, lane) emulate::shuffle(x, lane)
#define __ldg(p) (*(p))
#define cudaLaunchKernelEx emulate::launch_kernel
#define atomicAdd(p, x) ((*(p) += (x)) - (x))
#define atomicMin(p, x) (*(p) = *(p) < (x) ? *(p) : (x))
#define atomicMax(p, x) (*(p) = *(p) > (x) ? *(p) : (x))

inline float __int_as_float(int32_t x) {
  float f;
  __builtin_memcpy(&f, &x, 4);
  return f;
}

inline int32_t __float_as_int(float f) {
  int32_t x;
  __builtin_memcpy(&x, &f, 4);
  return x;
}
inline uint32_t __float_as_uint(float f) { return (uint32_t)__float_as_int(f); }

#endif
