// devices.cu: what rattn_cuda.h offers: which GPUs there are, and copies between
// contexts.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/rattn_cuda.h"
#include "context.h"
#include "hopper.h"

namespace rattn {

__attribute__((format(printf, 4, 5))) static int32_t explain(char *why, int64_t size, int32_t status,
                                                             const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(why, (size_t)size, format, args);
  va_end(args);
  cudaGetLastError();  // an error that is not sticky is over
  return status;
}

// A UUID as the driver's tools write it.
static void write_uuid(char *text, size_t size, const cudaUUID_t &uuid) {
  const unsigned char *b = (const unsigned char *)uuid.bytes;
  snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
           b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

}  // namespace rattn

using namespace rattn;

extern "C" void rattn_cuda_look(rattn_cuda_facts *facts) {
  memset(facts, 0, sizeof *facts);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&facts->driver);
  cudaRuntimeGetVersion(&facts->built_with);
  if (status == cudaSuccess && count > 0) {
    facts->devices = count;
    return;
  }
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (facts->driver == 0)
    explain(facts->why, sizeof facts->why, 0,
            "no NVIDIA driver on this machine: libcuda.so.1 is not there, or does not load");
  else
    explain(facts->why, sizeof facts->why, 0,
            "no CUDA device: %s (driver for CUDA %d.%d, built with %d.%d, CUDA_VISIBLE_DEVICES %s%.80s)",
            status == cudaSuccess ? "the driver counts none" : cudaGetErrorString(status),
            facts->driver / 1000, facts->driver % 1000 / 10, facts->built_with / 1000,
            facts->built_with % 1000 / 10, visible ? "is " : "is not set", visible ? visible : "");
}

extern "C" int32_t rattn_cuda_select(int32_t device, rattn_cuda_device *d, char *why, int64_t size) {
  memset(d, 0, sizeof *d);
  cudaDeviceProp p;
  cudaError_t status = cudaGetDeviceProperties(&p, device);
  if (status != cudaSuccess)
    return explain(why, size, RATTN_ERR_DEVICE, "cuda device %d: %s", device, cudaGetErrorString(status));
  snprintf(d->name, sizeof d->name, "%.95s", p.name);
  write_uuid(d->uuid, sizeof d->uuid, p.uuid);
  snprintf(d->pci, sizeof d->pci, "%08x:%02x:%02x.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
  d->major = p.major, d->minor = p.minor;
  if (p.major < 8)
    return explain(why, size, RATTN_ERR_DEVICE, "cuda device %d, %.95s, is sm_%d%d, older than sm_80", device,
                   p.name, p.major, p.minor);
  // A call that allocates nothing makes the context, which cudaSetDevice may leave for later.
  status = cudaSetDevice(device);
  if (status == cudaSuccess) status = cudaFree(NULL);
  size_t unused = 0, all = 0;
  if (status == cudaSuccess) status = cudaMemGetInfo(&unused, &all);
  d->free_bytes = (int64_t)unused, d->total_bytes = (int64_t)all;
  int count;
  cudaFuncAttributes attributes;
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, kernels_f32(&count)->entry);
  if (status == cudaSuccess) return RATTN_OK;
  return explain(why, size, RATTN_ERR_DEVICE, "cuda device %d, %.95s, sm_%d%d: %s", device, p.name, p.major,
                 p.minor, cudaGetErrorString(status));
}

extern "C" int32_t rattn_cuda_copy(void *dst, const void *src, int64_t bytes, char *why, int64_t size) {
  if (bytes == 0) return RATTN_OK;
  // The thread's own stream waits for no other, and other ranks' streams not for it.
  cudaError_t status = cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, cudaStreamPerThread);
  if (status == cudaSuccess) status = cudaStreamSynchronize(cudaStreamPerThread);
  if (status == cudaSuccess) return RATTN_OK;
  return explain(why, size, RATTN_ERR_DEVICE, "copy of %lld bytes: %s", (long long)bytes,
                 cudaGetErrorString(status));
}

// Keep in step with what launch.cu reserves.
extern "C" int64_t rattn_cuda_workspace(int32_t device, const rattn_shape *s, int64_t rows, int64_t tokens,
                                        int32_t backward) {
  // Tiles have 32 rows or keys at least.
  int64_t bytes = 64 + (rows / 32 + 1) * (int64_t)sizeof(Seen) + (tokens / 32 + 1) * (int64_t)sizeof(Seers);
  int shared_bytes = 0, major = 0;
  cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  // Tensors become f32 where no kernel of their dtype fits the GPU's shared memory (with
  // 99 KB, on sm_86 and sm_89, that begins above head_dim 256), and backward below 8.
  const bool convert = s->dtype != RATTN_F32 &&
                       ((s->head_dim > 256 && shared_bytes < (128 << 10)) || (s->head_dim < 8 && backward));
  const int32_t size = s->dtype == RATTN_F32 || convert ? 4 : 2, step = 16 / size;
  const int64_t row = (int64_t)(s->head_dim + step - 1) / step * 16;
  const int64_t q = rows * s->heads * row, kv = tokens * 2 * s->kv_heads * row;
  if (convert || s->head_dim % step)
    bytes += q + kv + (backward ? q : 0);
  else if (s->dtype != RATTN_F32 && s->scale < 0)
    bytes += q;
  if (backward && major == 9 && s->dtype != RATTN_F32 && s->head_dim >= 8 && s->head_dim <= 512)
    bytes += s->head_dim > 256 ? hopper_backward_bytes(s, rows, tokens)
                               : hopper_backward_d256_bytes(s, rows, tokens);
  return bytes;
}
