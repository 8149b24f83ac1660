// context.h: one GPU, its queue and its workspace.
#ifndef RATTN_CONTEXT_H
#define RATTN_CONTEXT_H

#include "../kernels/rattn.h"
#include "small.h"

namespace rattn {

// Memory that calls use one after the other; it grows and is never given back.
struct Buffer {
  void *p;
  int64_t bytes;
};

// A mark of the queue.
struct Mark {
  int64_t id;
  cudaEvent_t event;
};

// A copy beside the kernels.
struct Copy {
  cudaEvent_t event;
  bool used;
};

// The last kernel that was enqueued: what an error that comes later is likely to be of.
struct Work {
  const char *kernel;
  rattn_shape shape;
  int64_t rows, tokens;
};

}  // namespace rattn

struct rattn_ctx {
  int device;
  char name[128], error[512];
  int32_t shared_bytes, processors;  // shared memory that a block may have
  int32_t architecture;              // 90 for sm_90
  bool portable;                     // no kernels for sm_90a alone; set by the driver
  int64_t kept_bytes;                // for weights of the Hopper backward; set to less by the driver
  cudaStream_t stream;
  rattn::Fault *fault, *fault_on_device;
  rattn::Work work;

  // Marks that were not seen to be passed, oldest first: marks[first_mark, mark_count).
  // Behind them events wait to be used again.
  rattn::Mark *marks;
  int64_t first_mark, mark_count, mark_room;
  cudaEvent_t *spare;
  int64_t spare_count;
  int64_t issued, passed;

  // Where marks are timed: the GPU's event and the host's time, in ns, from which others are
  // counted, and when it came to mark i, at i % TIMES.
  cudaEvent_t anchor;
  int64_t anchor_ns, first_timed;
  int64_t *times;

  rattn::Buffer lists, reach, numbers, weights, q, kv, dout;  // tile lists; lse, delta; p, ds; padded tensors

  // Copies beside the kernels: a stream each way, and what is or was under way.
  cudaStream_t out, in;
  rattn::Copy *copies;
  int64_t copy_count, copy_room;
};

namespace rattn {

// Records an error and returns status.
int32_t fail(rattn_ctx *ctx, int32_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));

// RATTN_OK, or an error that names what was done, the last kernel and the device.
int32_t check(rattn_ctx *ctx, cudaError_t status, const char *what);

int32_t reserve(rattn_ctx *ctx, Buffer *buffer, int64_t bytes, const char *what);

// The table's functions of the same names; close_copies waits for what is under way.
int32_t host_alloc(rattn_ctx *ctx, int64_t bytes, void **p);
void host_free(rattn_ctx *ctx, void *p);
int32_t copy_out(rattn_ctx *ctx, void *host, const void *src, int64_t bytes, int64_t *copy);
int32_t copy_in(rattn_ctx *ctx, void *dst, const void *host, int64_t bytes, int64_t *copy);
int32_t copied(rattn_ctx *ctx, int64_t copy, int32_t *done);
void close_copies(rattn_ctx *ctx);

// Notes when a mark that is passed was, where marks are timed. drop_timing frees what that takes.
void time_mark(rattn_ctx *ctx, const Mark *mark);
void drop_timing(rattn_ctx *ctx);

// Attention; arguments are checked. Enqueue and return.
int32_t enqueue_forward(rattn_ctx *ctx, const rattn_forward_args *a);
int32_t enqueue_backward(rattn_ctx *ctx, const rattn_backward_args *a);

}  // namespace rattn

#endif
