// cpu_bf16_table.inc.h: the table of an instruction set's kernels for bf16.
#ifndef RATTN_CPU_BF16_TABLE_INC_H
#define RATTN_CPU_BF16_TABLE_INC_H

#include "cpu_bf16_backward.inc.h"
#include "cpu_bf16_forward.inc.h"

_Static_assert(TILE_ROWS % MR == 0 && NB % NR == 0, "tiles are of whole blocks and panels");

const rattn_kernels KERNELS = {
    .panel = NR,
    .key_step = NR,
    .key_limit = NB,
    .tile_rows = TILE_ROWS,
    .tile_bytes = TILE_BYTES,
    .cell_keys = CELL_KEYS,
    .element = sizeof(uint16_t),
    .depth = NR,
    .workspace = workspace_floats,
    .pack = pack_task,
    .forward = forward_task,
    .backward = backward_task,
    .store = store_task,
    .peak = product_loop,
    .peak_flops = LOOP_FLOPS,
};

#endif
