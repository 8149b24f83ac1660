// cpu_isa.c: which kernels this CPU can run.
#define _DEFAULT_SOURCE  // syscall
#include <time.h>

#include "cpu.h"
#if RATTN_HAVE_BF16
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { MOST = 8 };

#define ISA(id, text, f32, bf16)     \
  static const rattn_isa id = {text, \
                               {&rattn_##f32##_kernels, &rattn_##bf16##_kernels, &rattn_##f32##_kernels}}

#if RATTN_HAVE_BF16
// What __builtin_cpu_supports of some compilers does not know.
static int has_bf16(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1;
}

static int is_amd(void) {
  unsigned a, b, c, d;
  return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx &&
         d == signature_AMD_edx;
}

// Whether there is AMX with bf16 and this process may use it: its 8 KiB of state are
// saved for those alone that have asked.
static int has_amx(void) {
#if defined(__linux__)
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;  // xgetbv
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 22 & 1)) return 0;
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  if ((a >> 17 & 3) != 3) return 0;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
#else
  return 0;
#endif
}
#endif

// The instruction sets that this CPU and its operating system have, best first, ended
// by NULL. __builtin_cpu_supports asks cpuid, and xgetbv whether the system saves the
// registers.
static int find_isas(const rattn_isa *found[MOST]) {
  ISA(portable, "portable", portable, portable);
  ISA(portable_bf16, "portable-bf16", portable, portable_bf16);
  int n = 0;
#if defined(__x86_64__)
  ISA(avx512, "avx512", avx512, avx512);
  ISA(avx2, "avx2", avx2, avx2);
  __builtin_cpu_init();
  const int has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#if RATTN_HAVE_BF16
  // AVX512-BF16 has twice the rate of f32 on AMD's CPUs (Zen 4 and later). Intel's do
  // it at half the rate of f32 (measured on a Sapphire Rapids): there widening to f32 is
  // faster.
  ISA(amx, "amx", avx512, amx);
  ISA(avx512bf16, "avx512bf16", avx512, avx512bf16);
  const int bf16 = has_avx512 && has_bf16();
  if (bf16 && has_amx()) found[n++] = &amx;
  if (bf16 && is_amd()) found[n++] = &avx512bf16;
#endif
  if (has_avx512) found[n++] = &avx512;
#if RATTN_HAVE_BF16
  if (bf16 && !is_amd()) found[n++] = &avx512bf16;
#endif
  // Every CPU with AVX2 and FMA has F16C, which old compilers cannot ask for.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found[n++] = &avx2;
#endif
  found[n++] = &portable;
  found[n++] = &portable_bf16;
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
