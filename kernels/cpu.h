// cpu.h: what the parts of the CPU backend share. Read rattn.h first.
//
//   cpu.c        the table of functions, argument checks
//   cpu_isa.c    which kernels this CPU can run
//   cpu_queue.c  the context: worker threads and the queue of calls
//   cpu_plan.c   cuts a call into phases and tasks
//   cpu_move.c   tasks that copy, round or clear
//   cpu_avx512.c, cpu_avx2.c, cpu_portable.c
//                the kernels, once for each instruction set, from one body
//                (vectors in cpu_avx512.inc.h, cpu_portable.inc.h where bf16 shares them):
//   cpu_pack.inc.h      elements to floats, and into the panels that products read
//   cpu_product.inc.h   register-blocked matrix products, exp
//   cpu_tile.inc.h, cpu_forward.inc.h, cpu_backward.inc.h, cpu_table.inc.h
//   cpu_amx.c, cpu_avx512bf16.c, cpu_portable_bf16.c
//                kernels for bf16 that multiply in bf16, from another body:
//   cpu_bf16_pack.inc.h     elements into panels
//   cpu_stream.inc.h        prefetches
//   cpu_bf16_product.inc.h  runs of products, exp2
//   cpu_bf16_tile.inc.h, cpu_bf16_forward.inc.h, cpu_bf16_backward.inc.h,
//   cpu_bf16_table.inc.h
//   cpu_rows.inc.h has what both bodies share.
#ifndef RATTN_CPU_H
#define RATTN_CPU_H

#include <stdint.h>
#include <string.h>

#include "rattn.h"

// One enqueued call.
typedef struct {
  enum {
    RATTN_OP_FORWARD,
    RATTN_OP_DELTA,
    RATTN_OP_BACKWARD,
    RATTN_OP_ADD,
    RATTN_OP_ROUND,
    RATTN_OP_ADD_ROUNDED,
    RATTN_OP_MOVE,
    RATTN_OP_ZERO
  } kind;
  union {
    rattn_forward_args forward;
    rattn_delta_args delta;
    rattn_backward_args backward;
    struct {
      float *dst;
      const float *src;
      int64_t n;
    } add;
    struct {
      uint16_t *dst;
      const float *src;
      int64_t n;
    } round;
    struct {
      float *dst;
      const uint16_t *src;
      int64_t n;
    } add_rounded;
    rattn_move_args move;
    struct {
      void *p;
      int64_t bytes;
    } zero;
  };
} rattn_op;

typedef struct rattn_kernels rattn_kernels;
typedef struct rattn_job rattn_job;
typedef void rattn_task(const rattn_job *job, float *workspace, int64_t task);

// Kernels for one dtype. Keys go in tiles of a multiple of key_step, itself a multiple
// of panel, up to key_limit.
struct rattn_kernels {
  int64_t panel, key_step, key_limit;
  int64_t tile_rows;                           // rows of a tile
  int64_t tile_bytes;                          // what is packed and summed for a key tile, at most
  int64_t cell_keys;                           // keys of a cell of the backward, at least
  int64_t element;                             // bytes of a packed element: 4 or 2
  int64_t depth;                               // packed columns are padded to a multiple of it
  int64_t (*workspace)(const rattn_job *job);  // floats that a worker needs for the job
  rattn_task *pack, *forward, *backward, *store, *delta, *add;
  double (*peak)(int64_t iterations);  // a loop of independent multiply-adds and nothing else
  double peak_flops;                   // FLOPs of one of its iterations
};

// An instruction set: kernels for each rattn_dtype. Those of f32 do delta and add for
// all.
typedef struct {
  const char *name;
  const rattn_kernels *kernels[3];
} rattn_isa;

extern const rattn_kernels rattn_avx512_kernels, rattn_avx2_kernels, rattn_portable_kernels;
extern const rattn_kernels rattn_amx_kernels, rattn_avx512bf16_kernels, rattn_portable_bf16_kernels;

// Compilers before these know neither AMX nor AVX512-BF16.
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define RATTN_HAVE_BF16 1
#else
#define RATTN_HAVE_BF16 0
#endif

// Memory that grows to the largest request and is kept for the next call.
typedef struct {
  void *data;
  int64_t bytes;
} rattn_buffer;

// A piece of work of the attend phase: row tile `tile` against key tiles [begin, end)
// of the block, for every head. A cell of a backward adds to dq of its rows and to
// dk, dv of its keys, so it waits for the cells that come before it in either
// order: `row_before` of its row tile, `column_before` of its column. stage is when it
// could run if every cell took as long.
typedef struct {
  int32_t tile, begin, end;
  int32_t column, row_before, column_before, stage;
} rattn_cell;

// A call in progress. A forward or backward runs as phases, each over a group
// of KV heads and a block of keys: pack the block's keys and values, attend (a task
// for each cell and head), and in the backward store dk and dv. The tasks of a phase read
// the job and write disjoint memory, cells in the order said above.
//
// Rows are (token, query head of the group) pairs of a KV head: row i is token
// i / group, head i % group of the group, so that a tile's rows share keys.
struct rattn_job {
  rattn_op op;
  const rattn_isa *isa;
  const rattn_kernels *kernels;
  int64_t block_bytes;  // bound on what is packed of a block
  int32_t threads;

  // What forward and backward have in common.
  rattn_shape shape;
  rattn_rows rows;
  const void *q, *kv, *dout;  // dout is NULL in a forward
  int first;
  int64_t group;               // query heads of a KV head
  int64_t depth;               // head_dim rounded up to what packed columns have
  int64_t width;               // head_dim rounded up to whole panels
  int64_t row_count;           // rows.n * group
  int64_t tile_rows, tiles;    // rows of a tile; tiles of a KV head
  int64_t key_tile;            // keys of a tile
  int64_t strip_tiles;         // key tiles of a strip of the backward
  int64_t narrow_tiles;        // and of the narrowest column
  int64_t column_tiles;        // and of a column of this call; a strip has a whole number
  int64_t key_begin, key_end;  // the keys that any row sees
  int64_t block_keys, block_heads;
  int32_t *seen;  // [tiles][2]: the keys that a row tile sees, from the first to the last

  // The current phase.
  enum { RATTN_PACK, RATTN_ATTEND, RATTN_STORE, RATTN_PHASES } phase;
  int64_t head0, heads;  // KV heads [head0, head0 + heads)
  int64_t key0, keys;    // keys [key0, key0 + keys)
  int64_t key_tiles;     // of the block
  int64_t pack_heads;    // heads that a task of the pack phase takes
  int first_block;       // nothing of this call was folded into these heads yet
  rattn_task *run;
  // Task i of the attend phase is, forward, head i / cell_count and cell i % cell_count,
  // so that threads share a head's keys; backward cell i / heads and head i % heads.
  rattn_cell *cells, *unsorted;
  int64_t cell_count;
  int64_t columns;
  int32_t *row_done, *column_done;  // [heads][tiles], [heads][columns]: cells that have run
  int32_t *stages;                  // for sorting cells: how many come before a diagonal or stage

  // Packed keys and values of the block, for (head, key tile) at (head * key_tiles +
  // tile) * key_tile * (depth or width) elements:
  void *kt, *vt;  // columns [key_tile / panel][depth][panel]; vt in a backward
  void *k, *v;    // rows [width / panel][key_tile][panel]; v in a forward, k in a backward
  uint8_t *odd;   // [heads][key_tiles]: RATTN_ODD_K, RATTN_ODD_V, RATTN_SUMMED
  float *grads;   // [heads][key_tiles][2][key_tile * width]: sums of dk and dv, as the kernels like

  rattn_buffer panels, sums, lists, cell_list;  // own the above
};

// Of a key tile: it holds an Inf or a NaN, so that 0 times an element need not be 0; its
// grads have something in them.
enum { RATTN_ODD_K = 1, RATTN_ODD_V = 2, RATTN_SUMMED = 4 };

// What a task of delta and of add, round or zero works on.
enum { RATTN_DELTA_TOKENS = 128, RATTN_ADD_FLOATS = 1 << 16 };

// Tasks of calls that are the same for every instruction set (cpu_move.c), and how many of
// them a move has.
rattn_task rattn_round_task, rattn_add_rounded_task, rattn_move_task, rattn_zero_task;
int64_t rattn_move_tasks(const rattn_move_args *a);

// rattn_job_begin prepares a call; rattn_job_next moves to its next phase and
// gives the number of its tasks, 0 when the call is done. On failure begin returns
// a negative rattn_status and a text of at most size bytes, else 0.
int64_t rattn_job_begin(rattn_job *job, const rattn_op *op, char *text, size_t size);
int64_t rattn_job_next(rattn_job *job);
void rattn_job_free(rattn_job *job);

// Tasks are taken in order. One that is not ready waits for earlier ones to be done.
int rattn_job_ready(const rattn_job *job, int64_t task);
void rattn_job_done(rattn_job *job, int64_t task);

// Grows b to hold bytes; 0 if there is no memory. The content is lost.
int rattn_buffer_grow(rattn_buffer *b, int64_t bytes);

// The queue and its threads. rattn_queue_open starts threads workers; block_bytes is
// as in a job.
typedef struct rattn_queue rattn_queue;
rattn_queue *rattn_queue_open(const rattn_isa *isa, int32_t threads, int64_t block_bytes);
void rattn_queue_close(rattn_queue *q);
void rattn_queue_add(rattn_queue *q, const rattn_op *op);
int64_t rattn_queue_last(rattn_queue *q);
// Status of all that ran, with the text of a failure; done: whether event passed.
int32_t rattn_queue_query(rattn_queue *q, int64_t event, int32_t *done, char *text, size_t size);
int32_t rattn_queue_sync(rattn_queue *q, char *text, size_t size);
// How many ns ago the first and the last of the calls that were enqueued between two marks
// began and ended; 0 is returned where that is not known: not done, or long over.
int rattn_queue_ran(rattn_queue *q, int64_t from, int64_t to, int64_t *began, int64_t *ended);
// The same of a context of rattn_cpu().
int rattn_cpu_ran(rattn_ctx *ctx, int64_t from, int64_t to, int64_t *began, int64_t *ended);

// The instruction set of that name, or the best; NULL if this CPU lacks it.
const rattn_isa *rattn_find_isa(const char *name);
// Names of the instruction sets that this CPU can run, best first, ended by NULL.
const char *const *rattn_cpu_isas(void);
// Multiply-add rate of one thread for operands of dtype in FLOP/s, measured over at
// least so many seconds; 0 for an isa that this CPU lacks.
double rattn_cpu_rate(const char *isa, int32_t dtype, double seconds);

#endif
