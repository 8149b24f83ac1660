// emulate.h: runs blocks of CUDA threads on one CPU thread, to test the kernels' indexes,
// barriers and waits where there is no GPU.
//
// A thread is a fiber that runs until it waits for others; which runs next is random, so
// that a missing barrier shows. Copies in the background are done when they are waited
// for and no sooner.
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
extern char *const shared;  // memory of the block

// Runs f as every thread of every block.
void launch(unsigned blocks, unsigned threads, const std::function<void()> &f);

// All 32 lanes of a warp come here; the last calls f with the arguments of all.
void together(void *argument, void (*f)(void **all));
// Waits until `threads` threads are at barrier id.
void barrier(int id, int threads);
int block_or(int x);

void copy(uint32_t to, const void *from, bool valid, int bytes);
void end_copies();
void wait_copies(int groups);

void require(bool what, const char *text);

float shuffle_xor(float x, int mask);
int32_t shuffle_xor(int32_t x, int mask);
int any(int x);
unsigned threads_of_block();

}  // namespace emulate

#define LAUNCH(kernel, blocks, stream, ...) \
  ((void)(stream), emulate::launch((unsigned)(blocks), THREADS, [&] { kernel(__VA_ARGS__); }))
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#define threadIdx emulate::thread
#define blockIdx emulate::block
#define gridDim emulate::grid
#define __syncthreads() emulate::barrier(0, (int)emulate::threads_of_block())
#define __syncthreads_or(x) emulate::block_or(x)
#define __shfl_xor_sync(mask, x, k) emulate::shuffle_xor(x, k)
#define __any_sync(mask, x) emulate::any(x)
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

#endif
