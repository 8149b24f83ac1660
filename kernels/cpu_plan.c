// cpu_plan.c: cuts a call into phases and tasks.
//
// Forward and backward go over the keys block by block (and over groups of KV
// heads), so that packed keys and values take bounded memory. A later block
// folds into what the blocks before left in out and lse, or in dq, just as a
// later call does. All sizes follow from the call alone, never from the number
// of threads: that makes results the same to the bit.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "cpu.h"

// Memory: packed keys and values take block_floats floats, twice that in a backward,
// and its partial dk, dv as much again; more only where one key tile of one head does.
enum {
  TILE_ROWS = 96,       // rows of a tile, so that a pass over packed keys is worth it
  MIN_KEYS = 768,       // keys of a block if there are as many, before more heads are taken
  BACKWARD_TASKS = 64,  // tasks wanted in a backward phase: enough to feed that many threads
  PART_ROWS = 192,      // rows of a part at least, or partial sums cost more than they spare
};

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Finds the keys that any row sees.
static int find_keys(rattn_job *job, int64_t tokens, char *text, size_t size) {
  int64_t begin = INT64_MAX, end = 0;
  for (int64_t t = 0; t < job->rows.n; t++) {
    int64_t lo = job->rows.lo[t], hi = job->rows.hi[t];
    if (lo >= hi) continue;
    if (lo < 0 || hi > tokens) {
      snprintf(text, size, "row %lld sees keys [%lld, %lld) of a chunk of %lld",
               (long long)(job->rows.start + t), (long long)lo, (long long)hi, (long long)tokens);
      return 0;
    }
    begin = min64(begin, lo);
    end = max64(end, hi);
  }
  job->key_begin = begin < end ? begin : 0;
  job->key_end = end;
  return 1;
}

static int64_t begin_attention(rattn_job *job, int64_t tokens, char *text, size_t size) {
  const rattn_isa *isa = job->isa;
  if (!find_keys(job, tokens, text, size)) return -RATTN_ERR_ARG;
  int64_t dim = job->shape.head_dim;
  job->group = job->shape.heads / job->shape.kv_heads;
  job->width = round_up(dim, isa->panel);
  // Where no row sees a key there is nothing to do, unless rows are to be written.
  job->row_count = job->key_end == 0 && !job->first ? 0 : job->rows.n * job->group;
  job->tile_rows = round_up(TILE_ROWS, isa->block);
  job->tiles = ceil_div(job->row_count, job->tile_rows);

  // A block has up to MIN_KEYS keys of as many heads as fit, then more keys.
  int64_t tile = isa->key_tile, copies = job->dout ? 2 : 1;
  int64_t need = max64(1, ceil_div(job->key_end - job->key_begin, tile));
  int64_t tile_floats = tile * (dim + job->width) * copies, budget = job->block_floats * copies;
  int64_t tiles = min64(need, MIN_KEYS / tile);
  tiles = max64(1, min64(tiles, budget / tile_floats));
  job->block_heads = max64(1, min64(job->shape.kv_heads, budget / (tiles * tile_floats)));
  tiles = max64(tiles, min64(need, budget / (job->block_heads * tile_floats)));
  job->parts = 0;
  if (job->dout) {
    job->parts = min64(job->row_count / PART_ROWS, BACKWARD_TASKS / job->block_heads);
    job->parts = max64(1, job->parts);
    int64_t partial = job->block_heads * job->parts * 2 * tile * job->width;
    tiles = max64(1, min64(tiles, 2 * job->block_floats / partial));
  }
  job->block_keys = tiles * tile;

  // Before the first block.
  job->head0 = job->heads = 0;
  job->key0 = job->key_end;
  job->keys = 0;
  return 0;
}

static int grow(rattn_job *job) {
  int64_t dim = job->shape.head_dim, width = job->width, rows = job->block_keys * job->block_heads;
  int64_t copies = job->dout ? 2 : 1, parts = job->block_heads * job->parts;
  int64_t tiles = job->block_heads * (job->block_keys / job->isa->key_tile);
  if (!rattn_buffer_grow(&job->panels, rows * (dim + width) * copies)) return 0;
  if (!rattn_buffer_grow(&job->partials, parts * 2 * job->block_keys * width)) return 0;
  if (!rattn_buffer_grow(&job->flags, ceil_div(tiles * (1 + job->parts), (int64_t)sizeof(float)))) return 0;
  job->kt = job->panels.data;
  job->v = job->kt + rows * dim;
  job->vt = job->v + rows * width;
  job->k = job->dout ? job->vt + rows * dim : NULL;
  job->partial = job->partials.data;
  job->odd = (uint8_t *)job->flags.data;
  job->touched = job->odd + tiles;
  return 1;
}

// Moves to the next block of keys, or to the first block of the next heads.
static int next_block(rattn_job *job) {
  job->key0 += job->keys;
  job->first_block = 0;
  if (job->key0 >= job->key_end) {
    job->head0 += job->heads;
    if (job->head0 == job->shape.kv_heads) return 0;
    job->heads = min64(job->block_heads, job->shape.kv_heads - job->head0);
    job->key0 = job->key_begin;
    job->first_block = 1;
  }
  job->keys = min64(job->block_keys, job->key_end - job->key0);
  job->key_tiles = ceil_div(job->keys, job->isa->key_tile);
  return 1;
}

// A forward or backward goes through pack, attend and reduce, block by block.
static int64_t next_attention(rattn_job *job) {
  for (;;) {
    if (++job->phase >= RATTN_PHASES) {
      if (!next_block(job)) return 0;
      job->phase = RATTN_PACK;
    }
    int64_t n = 0;
    if (job->phase == RATTN_PACK) {
      job->run = job->isa->pack;
      n = job->heads * job->key_tiles;
    } else if (job->phase == RATTN_ATTEND) {
      job->run = job->dout ? job->isa->backward : job->isa->forward;
      n = job->heads * (job->dout ? job->parts : job->tiles);
    } else if (job->dout) {
      job->run = job->isa->reduce;
      n = job->heads * job->key_tiles;
    }
    if (n > 0) return n;
  }
}

static void zero_task(const rattn_job *job, float *workspace, int64_t task) {
  (void)workspace;
  int64_t piece = RATTN_ADD_FLOATS * (int64_t)sizeof(float), at = task * piece;
  memset((char *)job->op.zero.p + at, 0, (size_t)min64(piece, job->op.zero.bytes - at));
}

int64_t rattn_job_begin(rattn_job *job, const rattn_op *op, char *text, size_t size) {
  job->op = *op;
  job->phase = RATTN_PHASES;  // before the first phase
  int64_t tokens;
  if (op->kind == RATTN_OP_FORWARD) {
    const rattn_forward_args *a = &op->forward;
    job->shape = a->shape, job->rows = a->rows, job->first = a->first, tokens = a->tokens;
    job->q = a->q, job->kv = a->kv, job->dout = NULL;
  } else if (op->kind == RATTN_OP_BACKWARD) {
    const rattn_backward_args *a = &op->backward;
    job->shape = a->shape, job->rows = a->rows, job->first = a->first, tokens = a->tokens;
    job->q = a->q, job->kv = a->kv, job->dout = a->dout;
  } else {
    job->shape = op->kind == RATTN_OP_DELTA ? op->delta.shape : (rattn_shape){0};
    job->dout = NULL;
    return 0;
  }
  int64_t status = begin_attention(job, tokens, text, size);
  if (status < 0 || grow(job)) return status;
  snprintf(text, size, "no memory for blocks of %lld keys and %lld heads at head_dim %d",
           (long long)job->block_keys, (long long)job->block_heads, job->shape.head_dim);
  return -RATTN_ERR_MEMORY;
}

int64_t rattn_job_next(rattn_job *job) {
  if (job->op.kind == RATTN_OP_FORWARD || job->op.kind == RATTN_OP_BACKWARD) return next_attention(job);
  if (job->phase != RATTN_PHASES) return 0;
  job->phase = RATTN_ATTEND;  // the others have one phase
  switch (job->op.kind) {
    case RATTN_OP_DELTA:
      job->run = job->isa->delta;
      return ceil_div(job->op.delta.tokens, RATTN_DELTA_TOKENS);
    case RATTN_OP_ADD:
      job->run = job->isa->add;
      return ceil_div(job->op.add.n, RATTN_ADD_FLOATS);
    default:
      job->run = zero_task;
      return ceil_div(job->op.zero.bytes, RATTN_ADD_FLOATS * (int64_t)sizeof(float));
  }
}

void rattn_job_free(rattn_job *job) {
  free(job->panels.data);
  free(job->partials.data);
  free(job->flags.data);
}
