// cpu.h: what the parts of the CPU backend share. Read rattn.h first.
//
//   cpu.c        the table of functions, argument checks, choice of instruction set
//   cpu_queue.c  the context: worker threads and the queue of calls
//   cpu_plan.c   cuts a call into phases and tasks
//   cpu_avx512.c, cpu_avx2.c, cpu_portable.c
//                the kernels, once for each instruction set, from one body:
//   cpu_pack.inc.h      elements to floats, and into the panels that products read
//   cpu_product.inc.h   register-blocked matrix products, exp
//   cpu_forward.inc.h, cpu_backward.inc.h
#ifndef RATTN_CPU_H
#define RATTN_CPU_H

#include <stdint.h>
#include <string.h>

#include "rattn.h"

// One enqueued call.
typedef struct {
  enum { RATTN_OP_FORWARD, RATTN_OP_DELTA, RATTN_OP_BACKWARD, RATTN_OP_ADD, RATTN_OP_ZERO } kind;
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
      void *p;
      int64_t bytes;
    } zero;
  };
} rattn_op;

typedef struct rattn_isa rattn_isa;
typedef struct rattn_job rattn_job;
typedef void rattn_task(const rattn_job *job, float *workspace, int64_t task);

// An instruction set's kernels. Keys are worked on in tiles of key_tile, a
// multiple of panel (columns of a product's block) and of block (its rows).
struct rattn_isa {
  const char *name;
  int64_t block, panel, key_tile;
  int64_t (*workspace)(const rattn_job *job);  // floats that a worker needs for the job
  rattn_task *pack, *forward, *backward, *reduce, *delta, *add;
  double (*fma)(int64_t iterations);  // a chain-free FMA loop, see cpu_product.inc.h
  double fma_flops;                   // FLOPs of one of its iterations
};

extern const rattn_isa rattn_avx512, rattn_avx2, rattn_portable;

// Memory that grows to the largest request and is kept for the next call.
typedef struct {
  float *data;
  int64_t floats;
} rattn_buffer;

// A call in progress. A forward or backward runs as phases, each over a group
// of KV heads and a block of keys: pack the block's keys and values, attend (one
// task a row tile and head), and in the backward reduce the partial dk, dv. The
// tasks of a phase read the job and write disjoint memory.
//
// Rows are (token, query head of the group) pairs of a KV head: row i is token
// i / group, head i % group of the group, so that a tile's rows share keys.
struct rattn_job {
  rattn_op op;
  const rattn_isa *isa;
  int64_t block_floats;  // bound on the packed keys and values of a block

  // What forward and backward have in common.
  rattn_shape shape;
  rattn_rows rows;
  const void *q, *kv, *dout;  // dout is NULL in a forward
  int first;
  int64_t group;               // query heads of a KV head
  int64_t width;               // head_dim rounded up to whole panels
  int64_t row_count;           // rows.n * group
  int64_t tile_rows, tiles;    // rows of a tile; tiles of a KV head
  int64_t parts;               // backward: tasks of a head, each with its own dk, dv
  int64_t key_begin, key_end;  // the keys that any row sees
  int64_t block_keys, block_heads;

  // The current phase.
  enum { RATTN_PACK, RATTN_ATTEND, RATTN_REDUCE, RATTN_PHASES } phase;
  int64_t head0, heads;  // KV heads [head0, head0 + heads)
  int64_t key0, keys;    // keys [key0, key0 + keys)
  int64_t key_tiles;     // of the block
  int first_block;       // nothing of this call was folded into these heads yet
  rattn_task *run;

  // Packed keys and values of the block, for (head, key tile) at
  // (head * key_tiles + tile) * key_tile * (head_dim or width):
  float *kt, *vt;    // [key_tile / panel][head_dim][panel]
  float *k, *v;      // [width / panel][key_tile][panel]
  uint8_t *odd;      // [heads][key_tiles]: RATTN_ODD_K, RATTN_ODD_V
  float *partial;    // [heads][parts][2][key_tiles * key_tile][width]: dk, dv
  uint8_t *touched;  // [heads][parts][key_tiles]: the partial has something there

  rattn_buffer panels, partials, flags;  // own the above
};

// The tile holds an Inf or a NaN, so that 0 times an element need not be 0.
enum { RATTN_ODD_K = 1, RATTN_ODD_V = 2 };

// What a task of delta and of add or zero works on.
enum { RATTN_DELTA_TOKENS = 128, RATTN_ADD_FLOATS = 1 << 16 };

// rattn_job_begin prepares a call; rattn_job_next moves to its next phase and
// gives the number of its tasks, 0 when the call is done. On failure begin returns
// a negative rattn_status and a text of at most size bytes, else 0.
int64_t rattn_job_begin(rattn_job *job, const rattn_op *op, char *text, size_t size);
int64_t rattn_job_next(rattn_job *job);
void rattn_job_free(rattn_job *job);

// Grows b to hold floats; 0 if there is no memory. The content is lost.
int rattn_buffer_grow(rattn_buffer *b, int64_t floats);

// The queue and its threads. rattn_queue_open starts threads workers; block_floats is
// as in a job.
typedef struct rattn_queue rattn_queue;
rattn_queue *rattn_queue_open(const rattn_isa *isa, int32_t threads, int64_t block_floats);
void rattn_queue_close(rattn_queue *q);
void rattn_queue_add(rattn_queue *q, const rattn_op *op);
int64_t rattn_queue_last(rattn_queue *q);
// Status of all that ran, with the text of a failure; done: whether event passed.
int32_t rattn_queue_query(rattn_queue *q, int64_t event, int32_t *done, char *text, size_t size);
int32_t rattn_queue_sync(rattn_queue *q, char *text, size_t size);

// Names of the instruction sets that this CPU can run, best first, ended by NULL.
const char *const *rattn_cpu_isas(void);
// FMA rate of one thread in FLOP/s, measured over about 20 ms; 0 for an isa that
// this CPU lacks.
double rattn_cpu_peak(const char *isa);

#endif
