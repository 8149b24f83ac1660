// cpu_plan.c: cuts a call into phases and tasks.
//
// Forward and backward go over the keys block by block (and over groups of KV
// heads), so that packed keys and values take bounded memory. A later block
// folds into what the blocks before left in out and lse, or in dq, just as a
// later call does.
//
// A row tile of a forward is one task. In a backward dq sums over keys and dk, dv
// over rows, so whoever runs what, two orders must hold: that in which a row tile takes
// its keys, and that in which a key takes its rows. Both follow from diagonals of row
// tiles and strips of keys: those of one diagonal have no row tile and no strip in
// common. A cell is a row tile against one column of keys, which is a strip or a part of
// one; it waits for the cell before it in either order, which as a rule is long done. No
// sum needs an atomic, a lock or a second copy.
//
// All sizes and orders of sums follow from the call alone, never from the number of
// threads: that makes results the same to the bit. The number of threads decides into how
// many columns a strip is cut, since wide cells load their rows less often, and how many
// heads are packed together.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "cpu.h"

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

enum { STRIP_COLUMNS = 4 };  // the most columns of a strip

// The largest piece of at most limit that cuts whole into even parts.
static int64_t even_part(int64_t whole, int64_t limit) {
  return limit >= whole ? whole : ceil_div(whole, ceil_div(whole, limit));
}

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

// Finds the keys that each row tile sees, from the first to the last.
static void find_seen(rattn_job *job) {
  for (int64_t i = 0; i < job->tiles; i++) {
    int64_t t = i * job->tile_rows / job->group;
    int64_t end = ceil_div(min64((i + 1) * job->tile_rows, job->row_count), job->group);
    int32_t first = INT32_MAX, last = 0;
    for (; t < end; t++) {
      int32_t lo = job->rows.lo[t], hi = job->rows.hi[t];
      if (lo >= hi) continue;
      if (lo < first) first = lo;
      if (hi > last) last = hi;
    }
    job->seen[2 * i] = first;
    job->seen[2 * i + 1] = last;
  }
}

static void begin_attention(rattn_job *job) {
  const rattn_kernels *k = job->kernels;
  const int64_t dim = job->shape.head_dim, keys = job->key_end - job->key_begin;
  job->group = job->shape.heads / job->shape.kv_heads;
  job->depth = round_up(dim, k->depth);
  job->width = round_up(dim, k->panel);
  // Where no row sees a key there is nothing to do, unless rows are to be written.
  job->row_count = keys == 0 && !job->first ? 0 : job->rows.n * job->group;
  job->tile_rows = k->tile_rows;
  job->tiles = ceil_div(job->row_count, job->tile_rows);

  // Bytes that are packed or summed for a key of a head.
  int64_t bytes = (job->depth + job->width) * k->element;
  if (job->dout) bytes += job->depth * k->element + 2 * job->width * (int64_t)sizeof(float);
  int64_t tile = k->tile_bytes / bytes / k->key_step * k->key_step;
  job->key_tile = max64(k->key_step, min64(tile, k->key_limit));
  job->narrow_tiles = max64(1, k->cell_keys / job->key_tile);
  job->strip_tiles = job->narrow_tiles * STRIP_COLUMNS;

  // As many heads as fit with all their keys; else one, with as many keys as fit.
  int64_t need = max64(1, ceil_div(keys, job->key_tile)), tile_bytes = job->key_tile * bytes;
  job->block_heads = even_part(job->shape.kv_heads, max64(1, job->block_bytes / (need * tile_bytes)));
  job->block_keys = even_part(need, max64(1, job->block_bytes / tile_bytes)) * job->key_tile;
  if (job->dout && job->tiles) {  // the list of cells is to be small beside that
    int64_t columns = max64(1, job->block_bytes / 16 / (job->tiles * (int64_t)sizeof(rattn_cell)));
    int64_t limit = columns * job->narrow_tiles * job->key_tile;
    if (job->block_keys > limit) job->block_keys = limit;
  }
  // As wide as leaves the threads enough to do at a time: under a causal mask half the
  // columns have a cell then.
  const int64_t strips = ceil_div(job->block_keys, job->strip_tiles * job->key_tile) * job->block_heads;
  int64_t cuts = 1;
  while (job->threads > 1 && cuts < STRIP_COLUMNS && strips * cuts < 4 * job->threads) cuts *= 2;
  job->column_tiles = job->strip_tiles / cuts;

  // Before the first block.
  job->head0 = job->heads = 0;
  job->key0 = job->key_end;
  job->keys = 0;
}

// Lays out what a block needs, for the largest block.
static int grow(rattn_job *job) {
  const int64_t element = job->kernels->element, keys = job->block_keys * job->block_heads;
  const int64_t tiles = job->block_keys / job->key_tile;
  if (!rattn_buffer_grow(&job->panels, keys * (job->depth * (job->dout ? 2 : 1) + job->width) * element))
    return 0;
  job->kt = job->panels.data;
  job->vt = job->dout ? (char *)job->kt + keys * job->depth * element : NULL;
  char *rows = (char *)job->kt + keys * job->depth * element * (job->dout ? 2 : 1);
  job->k = job->dout ? rows : NULL;
  job->v = job->dout ? NULL : rows;
  if (job->dout && !rattn_buffer_grow(&job->sums, keys * 2 * job->width * (int64_t)sizeof(float))) return 0;
  job->grads = job->dout ? job->sums.data : NULL;

  int64_t counts = (2 + job->block_heads) * job->tiles + job->block_heads * tiles;
  int64_t size = counts * (int64_t)sizeof(int32_t) + job->block_heads * tiles;
  if (!rattn_buffer_grow(&job->lists, size)) return 0;
  job->seen = job->lists.data;
  job->row_done = job->seen + 2 * job->tiles;
  job->column_done = job->row_done + job->block_heads * job->tiles;
  job->odd = (uint8_t *)(job->column_done + job->block_heads * tiles);

  find_seen(job);
  const int64_t columns = ceil_div(tiles, job->column_tiles), column_keys = job->column_tiles * job->key_tile;
  int64_t cells = 0;
  for (int64_t i = 0; i < job->tiles; i++) {
    int64_t span = job->seen[2 * i + 1] - (int64_t)job->seen[2 * i];
    cells += job->dout && span > 0 ? min64(columns, span / column_keys + 2) : 1;
  }
  const int64_t stages = max64(max64(cells, job->tiles), columns) + 1;
  size = 2 * cells * (int64_t)sizeof(rattn_cell) + stages * (int64_t)sizeof(int32_t);
  if (!rattn_buffer_grow(&job->cell_list, size)) return 0;
  job->cells = job->cell_list.data;
  job->unsorted = job->cells + cells;
  job->stages = (int32_t *)(job->unsorted + cells);
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
  job->key_tiles = ceil_div(job->keys, job->key_tile);
  job->columns = ceil_div(job->key_tiles, job->column_tiles);
  return 1;
}

// Finds the key tiles of the block that row tile i sees, from the first to the last.
static int seen_tiles(const rattn_job *job, int64_t i, int32_t *begin, int32_t *end) {
  int64_t lo = max64(job->seen[2 * i] - job->key0, 0),
          hi = min64(job->seen[2 * i + 1] - job->key0, job->keys);
  *begin = *end = 0;
  if (lo >= hi) return 0;
  *begin = (int32_t)(lo / job->key_tile);
  *end = (int32_t)ceil_div(hi, job->key_tile);
  return 1;
}

// The diagonal of a row tile and a strip: different for those of one row tile and for
// those of one strip.
static int64_t diagonal_of(int64_t row, int64_t rows, int64_t strip, int64_t strips) {
  if (rows >= strips) return (row - strip * rows / strips + rows) % rows;
  return (row * strips / rows - strip + strips) % strips;
}

// Lists the cells of a backward in an order that has the orders of every row tile and of
// every key in it: by diagonals of row tiles and strips, of which each is cut at columns.
static void list_by_diagonal(rattn_job *job) {
  int32_t begin, end;
  int64_t row0 = 0, rows = 0;
  for (int64_t i = 0; i < job->tiles; i++) {
    if (!seen_tiles(job, i, &begin, &end)) continue;
    if (rows == 0) row0 = i;
    rows = i + 1 - row0;
  }
  const int64_t strips = ceil_div(job->key_tiles, job->strip_tiles), diagonals = max64(rows, strips);
  const int32_t wide = (int32_t)job->strip_tiles, per = (int32_t)job->column_tiles;
  memset(job->stages, 0, (size_t)(diagonals + 1) * sizeof(int32_t));
  for (int placing = 0; placing < 2; placing++) {  // count, then place
    for (int64_t i = row0; i < row0 + rows; i++) {
      if (!seen_tiles(job, i, &begin, &end)) continue;
      for (int32_t c = begin / per; c <= (end - 1) / per; c++) {
        int64_t diagonal = diagonal_of(i - row0, rows, c * per / wide, strips);
        if (!placing) {
          job->stages[diagonal + 1]++;
          continue;
        }
        rattn_cell *cell = &job->unsorted[job->stages[diagonal]++];
        *cell = (rattn_cell){.tile = (int32_t)i, .begin = c * per, .end = (c + 1) * per, .column = c};
        if (cell->begin < begin) cell->begin = begin;
        if (cell->end > end) cell->end = end;
      }
    }
    if (placing) break;
    for (int64_t s = 0; s < diagonals; s++) job->stages[s + 1] += job->stages[s];
  }
  job->cell_count = diagonals ? job->stages[diagonals - 1] : 0;
}

// Sorts the listed cells by the earliest time at which each can run if all take as long,
// so that those that wait for each other come apart.
static void sort_by_stage(rattn_job *job) {
  int32_t *row = job->row_done, *column = job->column_done;  // first stage after the last cell
  memset(row, 0, (size_t)job->tiles * sizeof(int32_t));
  memset(column, 0, (size_t)job->columns * sizeof(int32_t));
  memset(job->stages, 0, (size_t)(job->cell_count + 1) * sizeof(int32_t));
  for (rattn_cell *c = job->unsorted; c < job->unsorted + job->cell_count; c++) {
    c->stage = row[c->tile] > column[c->column] ? row[c->tile] : column[c->column];
    row[c->tile] = column[c->column] = c->stage + 1;
    job->stages[c->stage + 1]++;
  }
  for (int64_t s = 0; s < job->cell_count; s++) job->stages[s + 1] += job->stages[s];
  for (rattn_cell *c = job->unsorted; c < job->unsorted + job->cell_count; c++)
    job->cells[job->stages[c->stage]++] = *c;
}

// Lists the cells of the attend phase.
static void list_cells(rattn_job *job) {
  int32_t begin, end;
  if (job->dout) {
    list_by_diagonal(job);
    sort_by_stage(job);
  } else {
    // The last tiles first, which under a causal mask have the most to do.
    job->cell_count = 0;
    for (int64_t i = job->tiles - 1; i >= 0; i--)
      if (seen_tiles(job, i, &begin, &end))
        job->cells[job->cell_count++] = (rattn_cell){.tile = (int32_t)i, .begin = begin, .end = end};
  }
  if (job->first && job->first_block)  // rows that see nothing here are written all the same
    for (int64_t i = 0; i < job->tiles; i++)
      if (!seen_tiles(job, i, &begin, &end)) job->cells[job->cell_count++] = (rattn_cell){.tile = (int32_t)i};
  memset(job->row_done, 0, (size_t)(job->heads * job->tiles) * sizeof(int32_t));
  memset(job->column_done, 0, (size_t)(job->heads * job->columns) * sizeof(int32_t));
  if (!job->dout) return;
  for (rattn_cell *c = job->cells; c < job->cells + job->cell_count; c++) {
    c->row_before = job->row_done[c->tile]++;
    if (c->begin < c->end) c->column_before = job->column_done[c->column]++;
  }
  memset(job->row_done, 0, (size_t)job->tiles * sizeof(int32_t));
  memset(job->column_done, 0, (size_t)job->columns * sizeof(int32_t));
}

// Heads that a task of the pack phase takes. Those of a token lie side by side, and memory is
// read fastest in order: so as many as the caches hold of a panel of keys, if that leaves the
// threads enough tasks.
static int64_t heads_to_pack(const rattn_job *job) {
  enum { PANEL_BYTES = 128 << 10 };
  const int64_t size = job->shape.dtype == RATTN_F32 ? sizeof(float) : sizeof(uint16_t);
  const int64_t bytes = 2 * job->kernels->panel * job->shape.head_dim * size;  // of a head
  if (job->key_tiles < 4 * job->threads) return 1;
  return max64(1, min64(job->heads, PANEL_BYTES / bytes));
}

// A forward or backward goes through pack, attend and store, block by block.
static int64_t next_attention(rattn_job *job) {
  for (;;) {
    if (++job->phase >= RATTN_PHASES) {
      if (!next_block(job)) return 0;
      job->phase = RATTN_PACK;
    }
    int64_t n = 0;
    if (job->phase == RATTN_PACK) {
      list_cells(job);
      job->run = job->kernels->pack;
      job->pack_heads = heads_to_pack(job);
      n = ceil_div(job->heads, job->pack_heads) * job->key_tiles;
    } else if (job->phase == RATTN_ATTEND) {
      job->run = job->dout ? job->kernels->backward : job->kernels->forward;
      n = job->heads * job->cell_count;
    } else if (job->dout) {
      job->run = job->kernels->store;
      n = job->heads * job->key_tiles;
    }
    if (n > 0) return n;
  }
}

int rattn_job_ready(const rattn_job *job, int64_t task) {
  if (job->run != job->kernels->backward) return 1;
  const rattn_cell *c = &job->cells[task / job->heads];
  const int64_t head = task % job->heads;
  if (job->row_done[head * job->tiles + c->tile] != c->row_before) return 0;
  return c->begin == c->end || job->column_done[head * job->columns + c->column] == c->column_before;
}

void rattn_job_done(rattn_job *job, int64_t task) {
  if (job->run != job->kernels->backward) return;
  const rattn_cell *c = &job->cells[task / job->heads];
  const int64_t head = task % job->heads;
  job->row_done[head * job->tiles + c->tile]++;
  if (c->begin < c->end) job->column_done[head * job->columns + c->column]++;
}

int64_t rattn_job_begin(rattn_job *job, const rattn_op *op, char *text, size_t size) {
  job->op = *op;
  job->phase = RATTN_PHASES;  // before the first phase
  job->kernels = job->isa->kernels[RATTN_F32];
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
  job->kernels = job->isa->kernels[job->shape.dtype];
  if (!find_keys(job, tokens, text, size)) return -RATTN_ERR_ARG;
  begin_attention(job);
  if (grow(job)) return 0;
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
      job->run = job->kernels->delta;
      return ceil_div(job->op.delta.tokens, RATTN_DELTA_TOKENS);
    case RATTN_OP_ADD:
      job->run = job->kernels->add;
      return ceil_div(job->op.add.n, RATTN_ADD_FLOATS);
    case RATTN_OP_ROUND:
      job->run = rattn_round_task;
      return ceil_div(job->op.round.n, RATTN_ADD_FLOATS);
    case RATTN_OP_ADD_ROUNDED:
      job->run = rattn_add_rounded_task;
      return ceil_div(job->op.add_rounded.n, RATTN_ADD_FLOATS);
    case RATTN_OP_MOVE:
      job->run = rattn_move_task;
      return rattn_move_tasks(&job->op.move);
    default:
      job->run = rattn_zero_task;
      return ceil_div(job->op.zero.bytes, RATTN_ADD_FLOATS * (int64_t)sizeof(float));
  }
}

void rattn_job_free(rattn_job *job) {
  free(job->panels.data);
  free(job->sums.data);
  free(job->lists.data);
  free(job->cell_list.data);
}
