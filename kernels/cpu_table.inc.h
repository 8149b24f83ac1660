// cpu_table.inc.h: the table of an instruction set's kernels.
#ifndef RATTN_CPU_TABLE_INC_H
#define RATTN_CPU_TABLE_INC_H

#include "cpu_backward.inc.h"
#include "cpu_forward.inc.h"

enum {
  TILE_ROWS = 96,  // so that a pass over packed keys is worth it
  // With a row tile's it is to fit a second-level cache of 1 MiB.
  TILE_BYTES = 512 << 10,
};

const rattn_kernels KERNELS = {
    .block = MR,
    .panel = NR,
    .key_step = KEY_STEP,
    .key_limit = NB,
    .tile_rows = TILE_ROWS,
    .tile_bytes = TILE_BYTES,
    .element = sizeof(float),
    .depth = 1,
    .workspace = workspace_floats,
    .pack = pack_task,
    .forward = forward_task,
    .backward = backward_task,
    .store = store_task,
    .delta = delta_task,
    .add = add_task,
    .peak = fma_loop,
    .peak_flops = 2.0 * VL * FMA_CHAINS,
};

#endif
