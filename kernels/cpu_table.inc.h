// cpu_table.inc.h: the table of an instruction set's kernels.
#ifndef RATTN_CPU_TABLE_INC_H
#define RATTN_CPU_TABLE_INC_H

#include "cpu_backward.inc.h"
#include "cpu_forward.inc.h"

const rattn_kernels KERNELS = {
    .block = MR,
    .panel = NR,
    .key_step = KEY_STEP,
    .key_limit = NB,
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
