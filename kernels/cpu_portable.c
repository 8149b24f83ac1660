// cpu_portable.c: the kernels for any CPU, by the compiler's vectors of 4 floats
// (SSE2 on x86-64, NEON on arm64).
#include <math.h>

#include "cpu.h"

// A product's block is 4 x 8: 8 accumulators, 2 of B, 1 or 2 of A.
#define KERNELS rattn_portable_kernels
#define MR 4
#define NR 8
#define KEY_STEP 48
#define NB 192
#define DEPTH 256
#define TILE_ROWS 96
#define CELL_KEYS 384
#define TILE_BYTES (512 << 10)
#define FMA_CHAINS 8

#include "cpu_portable.inc.h"
#include "cpu_table.inc.h"
