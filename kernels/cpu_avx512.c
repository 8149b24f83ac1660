// cpu_avx512.c: the kernels for AVX-512 (F, VL, DQ, BW): 32 registers of 16 floats.
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "cpu.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw")
#endif

// A product's block is 12 x 32: 24 accumulators, 2 of B, 1 or 2 of A. A panel of B of
// DEPTH steps is 32 KiB.
#define KERNELS rattn_avx512_kernels
#define MR 12
#define NR 32
#define KEY_STEP 96
#define NB 192
#define DEPTH 256
// CPUs with AVX-512 have second-level caches of 1 MiB and more.
#define TILE_ROWS 192
#define CELL_KEYS 384
#define TILE_BYTES (512 << 10)
#define FMA_CHAINS 24

#include "cpu_avx512.inc.h"
#include "cpu_table.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int rattn_avx512_needs_x86_64;
#endif
