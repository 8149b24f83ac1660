//go:build standin && cgo

package kernels

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>

static int (*alloc_)(uint64_t *, size_t);
static int (*free_)(uint64_t);
static void *(*view_)(void *);

// Makes the context of the one device the calling thread's; what fails, or NULL.
static const char *standin_open(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!lib) return dlerror();
  view_ = (void *(*)(void *))dlsym(lib, "standin_view");
  if (!view_) return "libcuda.so.1 is not the stand-in";
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
  int (*retain)(void **, int) = (int (*)(void **, int))dlsym(lib, "cuDevicePrimaryCtxRetain");
  int (*set)(void *) = (int (*)(void *))dlsym(lib, "cuCtxSetCurrent");
  alloc_ = (int (*)(uint64_t *, size_t))dlsym(lib, "cuMemAlloc_v2");
  free_ = (int (*)(uint64_t))dlsym(lib, "cuMemFree_v2");
  if (!init || !retain || !set || !alloc_ || !free_) return dlerror();
  void *context;
  return init(0) || retain(&context, 0) || set(context) ? "libcuda.so.1 makes no context" : NULL;
}

static void *standin_alloc(int64_t bytes) {
  uint64_t p;
  return alloc_(&p, (size_t)bytes) == 0 ? (void *)(uintptr_t)p : NULL;
}
static void standin_free(void *p) { free_((uint64_t)(uintptr_t)p); }
static void *standin_view(void *p) { return view_(p); }
*/
import "C"

import (
	"fmt"
	"unsafe"

	"ringattn/ring"
)

// StandIn is device memory of the stand-in for the CUDA driver (mpi/standin): an MPI that
// takes device memory takes it, and a touch by the host ends the process. It is a
// devicetest.Memory.
type StandIn struct{}

// OpenStandIn makes the device the calling thread's, which must be the one that calls MPI.
func OpenStandIn() (StandIn, error) {
	if why := C.standin_open(); why != nil {
		return StandIn{}, fmt.Errorf("kernels: stand-in for the CUDA driver: %s", C.GoString(why))
	}
	return StandIn{}, nil
}

// Alloc returns an address that the host cannot touch.
func (StandIn) Alloc(bytes int64) (unsafe.Pointer, error) {
	p := C.standin_alloc(C.int64_t(max(bytes, 1)))
	if p == nil {
		return nil, fmt.Errorf("%w: the stand-in has none for %d bytes", ring.ErrMemory, bytes)
	}
	return p, nil
}

// Free gives memory of Alloc back.
func (StandIn) Free(p unsafe.Pointer) { C.standin_free(p) }

// View is where the host reaches what stands at such an address, nil where it is none.
func (StandIn) View(p unsafe.Pointer) unsafe.Pointer { return C.standin_view(p) }
