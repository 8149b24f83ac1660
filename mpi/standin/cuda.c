// cuda.c: a stand-in for the CUDA driver, for tests on machines without a GPU.
//
// Built as libcuda.so.1 it has what a CUDA-aware Open MPI 4.1 asks of the driver, and the
// few calls that make a context and memory. Device memory is a file without a name that
// is mapped twice: at the device's address nobody may read or write, so that a host's
// access to it ends the process as it would on a machine with a GPU; at another one this
// library copies, and so does whoever asks for it by standin_view.
//
// There is one device. Everything is done when a call returns, so that events and streams
// have nothing to say. Memory of another process is opened by way of /proc.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

typedef int status;  // CUresult
enum { SUCCESS = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201 };
enum { TYPE_CONTEXT = 1, TYPE_MEMORY = 2, TYPE_BUFFER = 7, TYPE_MANAGED = 8 };  // of cuPointerGetAttribute
enum { DEVICE_MEMORY = 2 };
enum { PIECES = 4096 };

typedef uint64_t device_pointer;

typedef struct {
  char *device, *view;
  size_t bytes;
  int fd;
  uint64_t number;  // never that of another piece
  int opened;       // by cuIpcOpenMemHandle
} piece;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static piece pieces[PIECES];
static uint64_t numbers;
static char the_context, the_stream, the_event;
static _Thread_local void *current;

// The piece that an address is in; the lock is held.
static piece *find(const void *p) {
  for (int i = 0; i < PIECES; i++) {
    piece *x = &pieces[i];
    if (x->device && (const char *)p >= x->device && (const char *)p < x->device + x->bytes) return x;
  }
  return NULL;
}

// Maps a file twice; the lock is held.
static piece *map(int fd, size_t bytes) {
  for (int i = 0; i < PIECES; i++) {
    piece *x = &pieces[i];
    if (x->device) continue;
    void *device = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    void *view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (device == MAP_FAILED || view == MAP_FAILED) return NULL;
    *x = (piece){.device = device, .view = view, .bytes = bytes, .fd = fd, .number = ++numbers};
    return x;
  }
  return NULL;
}

static void unmap(piece *x) {
  munmap(x->device, x->bytes);
  munmap(x->view, x->bytes);
  close(x->fd);
  *x = (piece){0};
}

// Where the host reaches n bytes at an address: the address itself if it is the host's,
// NULL if they go beyond a piece of the device's memory.
static char *reach(const void *p, size_t n) {
  pthread_mutex_lock(&lock);
  piece *x = find(p);
  char *at = (char *)p;
  if (x) at = n <= (size_t)(x->device + x->bytes - at) ? x->view + (at - x->device) : NULL;
  pthread_mutex_unlock(&lock);
  return at;
}

// standin_view is where the host reaches what stands at an address of the device, the end
// of a piece included; NULL if it is none.
API void *standin_view(void *p) {
  pthread_mutex_lock(&lock);
  const piece *x = find(p);
  if (!x) x = find((char *)p - 1);
  char *view = x ? x->view + ((char *)p - x->device) : NULL;
  pthread_mutex_unlock(&lock);
  return view;
}

// ---- device and context ----

API status cuInit(unsigned flags) { return flags ? INVALID : SUCCESS; }

API status cuDeviceGetCount(int *n) {
  *n = 1;
  return SUCCESS;
}

API status cuDeviceGet(int *device, int i) {
  *device = 0;
  return i == 0 ? SUCCESS : INVALID;
}

API status cuDeviceCanAccessPeer(int *can, int a, int b) {
  (void)a, (void)b;
  *can = 1;
  return SUCCESS;
}

API status cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = &the_context;
  return device == 0 ? SUCCESS : INVALID;
}

API status cuCtxSetCurrent(void *context) {
  current = context;
  return SUCCESS;
}

API status cuCtxGetCurrent(void **context) {
  *context = current;
  return SUCCESS;
}

API status cuCtxGetDevice(int *device) {
  *device = 0;
  return current ? SUCCESS : NO_CONTEXT;
}

// ---- memory ----

API status cuMemAlloc_v2(device_pointer *p, size_t bytes) {
  if (!current) return NO_CONTEXT;
  if (!bytes) return INVALID;
  const int fd = memfd_create("device memory", MFD_CLOEXEC);
  if (fd < 0) return NO_MEMORY;
  pthread_mutex_lock(&lock);
  const piece *x = ftruncate(fd, (off_t)bytes) == 0 ? map(fd, bytes) : NULL;
  if (x) *p = (device_pointer)x->device;
  pthread_mutex_unlock(&lock);
  if (!x) close(fd);
  return x ? SUCCESS : NO_MEMORY;
}

API status cuMemFree_v2(device_pointer p) {
  pthread_mutex_lock(&lock);
  piece *x = find((void *)p);
  const int known = x && x->device == (char *)p && !x->opened;
  if (known) unmap(x);
  pthread_mutex_unlock(&lock);
  return known ? SUCCESS : INVALID;
}

API status cuMemGetAddressRange_v2(device_pointer *base, size_t *bytes, device_pointer p) {
  pthread_mutex_lock(&lock);
  const piece *x = find((void *)p);
  if (x && base) *base = (device_pointer)x->device;
  if (x && bytes) *bytes = x->bytes;
  pthread_mutex_unlock(&lock);
  return x ? SUCCESS : INVALID;
}

API status cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
  (void)bytes, (void)flags;
  return p ? SUCCESS : INVALID;
}

API status cuMemHostUnregister(void *p) { return p ? SUCCESS : INVALID; }

API status cuPointerGetAttribute(void *data, int attribute, device_pointer p) {
  pthread_mutex_lock(&lock);
  const piece *x = find((void *)p);
  status rc = x ? SUCCESS : INVALID;
  switch (attribute) {
    case TYPE_CONTEXT:
      *(void **)data = x ? &the_context : NULL;
      break;
    case TYPE_MEMORY:
      *(unsigned *)data = x ? DEVICE_MEMORY : 0;
      break;
    case TYPE_BUFFER:
      *(uint64_t *)data = x ? x->number : 0;
      break;
    case TYPE_MANAGED:
      *(unsigned *)data = 0;
      break;
    default:
      rc = INVALID;
  }
  pthread_mutex_unlock(&lock);
  return rc;
}

// Unlike the call for one attribute it succeeds for memory of the host.
API status cuPointerGetAttributes(unsigned n, const int *attributes, void **data, device_pointer p) {
  for (unsigned i = 0; i < n; i++) cuPointerGetAttribute(data[i], attributes[i], p);
  return SUCCESS;
}

API status cuPointerSetAttribute(const void *data, int attribute, device_pointer p) {
  (void)data, (void)attribute, (void)p;
  return SUCCESS;
}

API status cuMemcpy(device_pointer dst, device_pointer src, size_t bytes) {
  char *to = reach((void *)dst, bytes), *from = reach((void *)src, bytes);
  if (!to || !from) return INVALID;
  memmove(to, from, bytes);
  return SUCCESS;
}

API status cuMemcpyAsync(device_pointer dst, device_pointer src, size_t bytes, void *stream) {
  (void)stream;
  return cuMemcpy(dst, src, bytes);
}

// ---- memory of other processes ----

typedef union {
  struct {
    int64_t process, fd;
    uint64_t bytes, number;  // a handle of later memory must differ: MPI keeps what it has opened
  } is;
  char reserved[64];
} handle;

API status cuIpcGetMemHandle(handle *h, device_pointer p) {
  pthread_mutex_lock(&lock);
  const piece *x = find((void *)p);
  memset(h, 0, sizeof *h);
  if (x) h->is.process = getpid(), h->is.fd = x->fd, h->is.bytes = x->bytes, h->is.number = x->number;
  pthread_mutex_unlock(&lock);
  return x ? SUCCESS : INVALID;
}

API status cuIpcOpenMemHandle_v2(device_pointer *p, handle h, unsigned flags) {
  (void)flags;
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)h.is.process, (long long)h.is.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return INVALID;
  pthread_mutex_lock(&lock);
  piece *x = map(fd, h.is.bytes);
  if (x) x->opened = 1, *p = (device_pointer)x->device;
  pthread_mutex_unlock(&lock);
  if (!x) close(fd);
  return x ? SUCCESS : NO_MEMORY;
}

API status cuIpcCloseMemHandle(device_pointer p) {
  pthread_mutex_lock(&lock);
  piece *x = find((void *)p);
  const int known = x && x->opened;
  if (known) unmap(x);
  pthread_mutex_unlock(&lock);
  return known ? SUCCESS : INVALID;
}

API status cuIpcGetEventHandle(handle *h, void *event) {
  (void)event;
  memset(h, 0, sizeof *h);
  return SUCCESS;
}

API status cuIpcOpenEventHandle(void **event, handle h) {
  (void)h;
  *event = &the_event;
  return SUCCESS;
}

// ---- streams and events ----

API status cuStreamCreate(void **stream, unsigned flags) {
  (void)flags;
  *stream = &the_stream;
  return current ? SUCCESS : NO_CONTEXT;
}

API status cuStreamDestroy_v2(void *stream) { return stream ? SUCCESS : INVALID; }

API status cuStreamSynchronize(void *stream) {
  (void)stream;
  return SUCCESS;
}

API status cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  (void)stream, (void)event, (void)flags;
  return SUCCESS;
}

API status cuEventCreate(void **event, unsigned flags) {
  (void)flags;
  *event = &the_event;
  return current ? SUCCESS : NO_CONTEXT;
}

API status cuEventDestroy_v2(void *event) { return event ? SUCCESS : INVALID; }

API status cuEventRecord(void *event, void *stream) {
  (void)event, (void)stream;
  return SUCCESS;
}

API status cuEventQuery(void *event) { return event ? SUCCESS : INVALID; }

API status cuEventSynchronize(void *event) { return event ? SUCCESS : INVALID; }
