// rattn_cuda.h: what cu/'s archive offers beside the table of rattn_cuda(): which GPUs
// there are, and copies between ranks of one process.
//
// Without a driver every function still returns: it says why there is no GPU.
#ifndef RATTN_CUDA_H
#define RATTN_CUDA_H

#include "rattn.h"

#ifdef __cplusplus
extern "C" {
#endif

// The largest head_dim that the kernels take, in either pass.
#define RATTN_CUDA_MAX_HEAD_DIM 576

// CUDA as this process finds it; versions are 1000 major + 10 minor.
typedef struct {
  int32_t devices;     // that the process may use, CUDA_VISIBLE_DEVICES applied
  int32_t built_with;  // the version of the runtime in the archive
  int32_t driver;      // the newest version that the driver knows, 0: there is no driver
  char why[320];       // why devices is 0; else empty
} rattn_cuda_facts;

// Looks for GPUs. Makes no context on any.
void rattn_cuda_look(rattn_cuda_facts *facts);

typedef struct {
  char name[96];
  char uuid[48];         // GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, as the driver's tools write it
  char pci[32];          // domain:bus:device.function
  int32_t major, minor;  // compute capability
  int64_t total_bytes, free_bytes;  // of its memory, now
} rattn_cuda_device;

// Makes a device the calling thread's own, with a context, and describes it. An MPI that
// takes device memory looks at the thread's device when it starts. Fails for a device
// that the kernels do not run on. why has the text of an error.
int32_t rattn_cuda_select(int32_t device, rattn_cuda_device *d, char *why, int64_t size);

// Copies between memories of contexts of this process, on whichever devices; returns
// when the copy is complete. It waits for nothing that is enqueued in a context, and may
// be called from any thread.
int32_t rattn_cuda_copy(void *dst, const void *src, int64_t bytes, char *why, int64_t size);

// The most bytes that a context takes of a device beside what it was asked for: tile
// lists, and tensors copied to be padded, converted or negated. rows and tokens are those
// of the largest call.
int64_t rattn_cuda_workspace(int32_t device, const rattn_shape *shape, int64_t rows, int64_t tokens,
                             int32_t backward);

// From now on marks of a context of rattn_cuda() know when the GPU came to them; what is in
// flight is waited for. Events of the GPU are put on the host's clock by one that is waited
// for here, so that calls close to the work are the better ones.
int32_t rattn_cuda_timing(rattn_ctx *ctx);

// How many ns ago the GPU came to two marks, which query has reported as passed, of the last
// few thousand since rattn_cuda_timing. What was enqueued between them ran between them.
int32_t rattn_cuda_ran(rattn_ctx *ctx, int64_t from, int64_t to, int64_t *began, int64_t *ended);

#ifdef __cplusplus
}
#endif
#endif
