// emulate.cpp: fibers, warps, barriers, background copies, and the few calls of the CUDA
// runtime that the backend makes.
#include "emulate.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "../hopper.h"

namespace rattn {
alignas(1024) uint8_t memory[2 * emulate::SHARED_BYTES];
alignas(1024) float shared_f32[64 << 10];
}  // namespace rattn

namespace emulate {

Index thread, block, grid;
char *shared = (char *)rattn::memory;
unsigned rank;

namespace {

struct Copy {
  uint32_t to;
  const void *from;
  bool valid;
  int bytes;
};

#ifdef __x86_64__
// Saves the registers that a call keeps and the stack pointer, and takes another's.
extern "C" void emulate_switch(void **from, void *to);
asm(R"(
.text
.globl emulate_switch
emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#error "the emulator's fibers are for x86-64"
#endif

enum { STACK = 256 << 10 };

struct Fiber {
  std::vector<char> stack;
  void *sp;
  bool done;
  const int64_t *wait_for;  // a generation that must change, or NULL
  int64_t generation;
  std::function<bool()> until;  // what must become true, or empty
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
};

struct Warp {
  int arrived;
  int64_t generation;
  void *arguments[32];
};

struct Barrier {
  int arrived, value, result;
  int64_t generation;
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
Barrier barriers[2][16], of_cluster;  // of the blocks of a cluster, and of all
std::vector<std::function<void()>> background;
std::mt19937 rng;
unsigned current, block_threads, cluster_threads;
void *scheduler;
const std::function<void()> *body;

void yield_until_changed(const int64_t *generation) {
  Fiber &f = fibers[current];
  f.wait_for = generation, f.generation = *generation;
  emulate_switch(&f.sp, scheduler);
}

void start() {
  (*body)();
  fibers[current].done = true;
  emulate_switch(&fibers[current].sp, scheduler);
  abort();
}

void arrive(Barrier *b, int threads, int value, bool wait = true) {
  b->value = b->arrived == 0 ? value : b->value | value;
  if (++b->arrived == threads) {
    b->arrived = 0, b->result = b->value;
    b->generation++;
  } else if (wait) {
    yield_until_changed(&b->generation);
  }
}

}  // namespace

unsigned threads_of_block() { return block_threads; }
char *shared_of(unsigned rank) { return (char *)rattn::memory + rank * SHARED_BYTES; }

void wait_until(const std::function<bool()> &done) {
  // Now and then others go on first, though it need not be.
  if (done() && rng() % 64) return;
  Fiber &f = fibers[current];
  f.until = done;
  emulate_switch(&f.sp, scheduler);
  f.until = nullptr;
}

void later(const std::function<void()> &f) { background.push_back(f); }

void require(bool what, const char *text) {
  if (what) return;
  fprintf(stderr, "emulator: %s, thread %u of block %u\n", text, thread.x, block.x);
  abort();
}

void together(void *argument, void (*f)(void **all)) {
  Warp &w = warps[current / 32];
  w.arguments[current % 32] = argument;
  if (++w.arrived == 32) {
    w.arrived = 0;
    f(w.arguments);
    w.generation++;
  } else {
    yield_until_changed(&w.generation);
  }
}

void barrier(int id, int threads) { arrive(&barriers[rank][id], threads, 0); }
void barrier_arrive(int id, int threads) { arrive(&barriers[rank][id], threads, 0, false); }
void cluster_barrier() { arrive(&of_cluster, (int)cluster_threads, 0); }

int barrier_or(int id, int threads, int x) {
  Barrier *b = &barriers[rank][id];
  arrive(b, threads, x != 0);
  return b->result;
}
int block_or(int x) { return barrier_or(0, (int)block_threads, x); }

void copy(uint32_t to, const void *from, bool valid, int bytes) {
  require((uintptr_t)from % bytes == 0 && to % bytes == 0, "copy of unaligned bytes");
  fibers[current].open.push_back({to, from, valid, bytes});
}

void end_copies() {
  Fiber &f = fibers[current];
  f.groups.push_back(f.open);
  f.open.clear();
}

void wait_copies(int n) {
  Fiber &f = fibers[current];
  while ((int)f.groups.size() > n) {
    for (const Copy &c : f.groups.front())
      if (c.valid)
        memcpy(shared + c.to, c.from, c.bytes);
      else
        memset(shared + c.to, 0, c.bytes);
    f.groups.pop_front();
  }
}

// What lane `from` of the warp has.
template <class T>
static T exchange(T x, int from) {
  struct Args {
    T x, y;
    int from;
  } mine = {x, x, from};
  together(&mine, [](void **all) {
    for (int lane = 0; lane < 32; lane++) {
      Args *a = (Args *)all[lane];
      a->y = ((const Args *)all[a->from % 32])->x;
    }
  });
  return mine.y;
}
float shuffle_xor(float x, int mask) { return exchange(x, (int)(current % 32) ^ mask); }
int32_t shuffle_xor(int32_t x, int mask) { return exchange(x, (int)(current % 32) ^ mask); }
float shuffle(float x, int lane) { return exchange(x, lane); }
int32_t shuffle(int32_t x, int lane) { return exchange(x, lane); }

int any(int x) {
  together(&x, [](void **all) {
    int sum = 0;
    for (int lane = 0; lane < 32; lane++) sum |= *(const int *)all[lane];
    for (int lane = 0; lane < 32; lane++) *(int *)all[lane] = sum;
  });
  return x;
}

// One thing of the background, any; false where there is none.
static bool do_background() {
  const bool computed = compute_product();
  if (background.empty()) return computed;
  const size_t i = rng() % background.size();
  const std::function<void()> f = background[i];
  background.erase(background.begin() + i);
  f();
  return true;
}

void launch(unsigned blocks, unsigned threads, const std::function<void()> &f, unsigned cluster) {
  const unsigned all = cluster * threads;
  require(blocks > 0, "a launch of no blocks");
  require(cluster <= 2 && blocks % cluster == 0, "a cluster of more than 2 blocks, or a part of one");
  body = &f, block_threads = threads, cluster_threads = all, grid.x = blocks;
  if (fibers.size() < all) fibers.resize(all);
  warps.resize((all + 31) / 32);
  for (unsigned b = 0; b < blocks; b += cluster) {
    // What a block before has left, or nobody has written, must not matter.
    memset(rattn::memory, 0xff, sizeof rattn::memory);
    memset(rattn::shared_f32, 0xff, sizeof rattn::shared_f32);
    for (Warp &w : warps) w = {};
    of_cluster = {};
    for (auto &of_block : barriers)
      for (Barrier &x : of_block) x = {};
    forget_cluster();
    std::vector<unsigned> order(all);
    for (unsigned t = 0; t < all; t++) {
      Fiber &x = fibers[t];
      if (x.stack.empty()) x.stack.resize(STACK);
      void **top = (void **)((uintptr_t)(x.stack.data() + STACK) & ~(uintptr_t)15);
      top[-2] = (void *)start;  // returned to, with the stack as after a call
      x.sp = top - 8;
      x.done = false, x.wait_for = nullptr, x.until = nullptr;
      x.groups.clear(), x.open.clear();
      order[t] = t;
    }
    // From one cluster to the next the background is quick or slow, or waits until no thread
    // can go on without it.
    const unsigned slow = 1 + rng() % 200;
    const bool last = rng() % 4 == 0;
    for (unsigned left = all; left > 0;) {
      std::shuffle(order.begin(), order.end(), rng);
      bool ran = false;
      for (unsigned t : order) {
        if (!last && rng() % slow == 0) ran |= do_background();
        Fiber &x = fibers[t];
        if (x.done || (x.wait_for && *x.wait_for == x.generation) || (x.until && !x.until())) continue;
        x.wait_for = nullptr;
        current = t;
        rank = t / threads, thread.x = t % threads, block.x = b + rank, shared = shared_of(rank);
        ran = true;
        emulate_switch(&scheduler, x.sp);
        left -= x.done;
      }
      if (!ran) require(do_background(), "all threads wait");
    }
    require(background.empty(), "a block ended before what it started in the background");
  }
}

}  // namespace emulate

// The runtime, as far as the backend uses it: memory is the host's, all calls are done
// when they return.
extern "C" {
cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { return *v = 12040, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = 12040, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return "an error"; }
const char *cudaGetErrorName(cudaError_t) { return "an error"; }
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) {
  return *value = 227 << 10, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "emulator");
  const char *kib = getenv("EMULATE_SHARED_KIB"), *major = getenv("EMULATE_MAJOR"),
             *processors = getenv("EMULATE_PROCESSORS");
  p->major = major ? atoi(major) : 9, p->multiProcessorCount = processors ? atoi(processors) : 2,
  p->sharedMemPerBlockOptin = (kib ? atoi(kib) : 227) << 10;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { return *s = (cudaStream_t)1, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMalloc(void **p, size_t n) {
  *p = aligned_alloc(256, (n + 255) / 256 * 256);
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) { return free(p), cudaSuccess; }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) { return cudaMalloc(p, n); }
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
cudaError_t cudaHostGetDevicePointer(void **p, void *host, unsigned) { return *p = host, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *a, size_t *b) { return *a = *b = 0, cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind, cudaStream_t) {
  return memcpy(dst, src, n), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int x, size_t n, cudaStream_t) { return memset(p, x, n), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return *e = (cudaEvent_t)1, cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaLaunchKernel(const void *entry, dim3 blocks, dim3 threads, void **arguments, size_t,
                             cudaStream_t) {
  const rattn::Call call = *(const rattn::Call *)arguments[0];
  emulate::launch(blocks.x, threads.x, [&] { ((void (*)(rattn::Call))entry)(call); });
  return cudaSuccess;
}
}
