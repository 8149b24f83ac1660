// cpu_table.inc.h: the table of an instruction set's kernels.
#ifndef RATTN_CPU_TABLE_INC_H
#define RATTN_CPU_TABLE_INC_H

#include "cpu_backward.inc.h"
#include "cpu_forward.inc.h"

// A cell of n rows and m keys loads and stores some (7 m + 4 n) head_dim floats to
// multiply 5 n m head_dim. Square cells give many that depend on nothing for that, but
// what is packed of TILE_ROWS rows is to fit the second-level cache beside TILE_BYTES.
_Static_assert(TILE_ROWS % MR == 0 && KEY_STEP % MR == 0 && KEY_STEP % NR == 0 && NB % KEY_STEP == 0,
               "tiles are of whole blocks and panels");

const rattn_kernels KERNELS = {
    .panel = NR,
    .key_step = KEY_STEP,
    .key_limit = NB,
    .tile_rows = TILE_ROWS,
    .tile_bytes = TILE_BYTES,
    .cell_keys = CELL_KEYS,
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
