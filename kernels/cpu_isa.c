// cpu_isa.c: which kernels this CPU can run.
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "cpu.h"

enum { MOST = 8 };

// The instruction sets that this CPU and its operating system have, best first, ended
// by NULL. __builtin_cpu_supports asks cpuid, and xgetbv whether the system saves the
// registers.
static int find_isas(const rattn_isa *found[MOST]) {
  static const rattn_isa portable = {
      "portable", {&rattn_portable_kernels, &rattn_portable_kernels, &rattn_portable_kernels}};
  int n = 0;
#if defined(__x86_64__)
  static const rattn_isa avx512 = {"avx512",
                                   {&rattn_avx512_kernels, &rattn_avx512_kernels, &rattn_avx512_kernels}};
  static const rattn_isa avx2 = {"avx2", {&rattn_avx2_kernels, &rattn_avx2_kernels, &rattn_avx2_kernels}};
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
    found[n++] = &avx512;
  // Every CPU with AVX2 and FMA has F16C, which old compilers cannot ask for.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found[n++] = &avx2;
#endif
  found[n++] = &portable;
  found[n] = NULL;
  return n;
}

const rattn_isa *rattn_find_isa(const char *name) {
  const rattn_isa *found[MOST];
  find_isas(found);
  if (!name || !*name) return found[0];
  for (int i = 0; found[i]; i++)
    if (!strcmp(found[i]->name, name)) return found[i];
  return NULL;
}

const char *const *rattn_cpu_isas(void) {
  static _Thread_local const char *names[MOST];
  const rattn_isa *found[MOST];
  int n = find_isas(found);
  for (int i = 0; i < n; i++) names[i] = found[i]->name;
  names[n] = NULL;
  return names;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double rattn_cpu_rate(const char *name, int32_t dtype, double seconds) {
  const rattn_isa *isa = rattn_find_isa(name);
  if (!isa) return 0;
  const int64_t step = 50000;
  volatile double sink = 0;
  double begin = now(), end, iterations = 0;
  do {
    sink = sink + isa->kernels[dtype]->peak(step);
    iterations += step;
    end = now();
  } while (end - begin < seconds);
  return iterations * isa->kernels[dtype]->peak_flops / (end - begin);
}
