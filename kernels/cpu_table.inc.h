// cpu_table.inc.h: the instruction set's entry in the dispatch table.
#ifndef RATTN_CPU_TABLE_INC_H
#define RATTN_CPU_TABLE_INC_H

#include "cpu_backward.inc.h"
#include "cpu_forward.inc.h"

const rattn_isa ISA = {
    .name = ISA_NAME,
    .block = MR,
    .panel = NR,
    .key_tile = NB,
    .workspace = workspace_floats,
    .pack = pack_task,
    .forward = forward_task,
    .backward = backward_task,
    .reduce = reduce_task,
    .delta = delta_task,
    .add = add_task,
    .fma = fma_loop,
    .fma_flops = 2.0 * VL * FMA_CHAINS,
};

#endif
