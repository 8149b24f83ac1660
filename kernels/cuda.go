//go:build cuda && cgo

package kernels

/*
#cgo LDFLAGS: -L${SRCDIR}/../cu/build -lringattn_cuda -lcudart_static -ldl -lrt -lpthread
#include <stdlib.h>
#include "rattn_cuda.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"ringattn/ring"
)

// The two constants are one; else this does not compile.
var _ [0]struct{} = [MaxCUDAHeadDim - C.RATTN_CUDA_MAX_HEAD_DIM]struct{}{}

// CUDABuilt says whether the binary has the CUDA kernels.
const CUDABuilt = true

// archive tells one build of cu/'s archive from another; the Makefile sets it, which
// also makes the Go tool link anew where only the archive has changed.
var archive = "unknown"

// CUDA returns a backend of the kernels in cu/ on one of CUDAFacts.Devices GPUs. It is a
// ring.Device: its memory is the GPU's, of plain cudaMalloc, which every CUDA-aware MPI
// knows. Calls on it may come from any thread, one at a time.
func CUDA(device int) (ring.Backend, error) {
	t, err := openTable(C.rattn_cuda(), device, 1, "")
	if err != nil {
		return nil, err
	}
	return cudaTable{deviceTable{t}}, nil
}

// cudaTable is a GPU's table, whose events know when the GPU came to them.
type cudaTable struct{ deviceTable }

var _ ring.Timed = cudaTable{}

// StartTiming has events timed from now on, and puts them on the host's clock.
func (t cudaTable) StartTiming() error { return t.check("timing", C.rattn_cuda_timing(t.ctx)) }

// Ran tells how long ago the GPU came to two marks.
func (t cudaTable) Ran(from, to ring.Event) (began, ended time.Duration, err error) {
	b, e := &t.args.began, &t.args.ended
	if err := t.check("ran", C.rattn_cuda_ran(t.ctx, C.int64_t(from), C.int64_t(to), b, e)); err != nil {
		return 0, 0, err
	}
	return time.Duration(*b), time.Duration(*e), nil
}

// CUDAArchive says which build of the kernels the binary has.
func CUDAArchive() string { return archive }

// LookCUDA says what CUDA there is for this process. It takes nothing of any GPU.
func LookCUDA() CUDAFacts {
	var c C.rattn_cuda_facts
	C.rattn_cuda_look(&c)
	f := CUDAFacts{
		Devices: int(c.devices), BuiltWith: cudaVersion(c.built_with), Driver: cudaVersion(c.driver), Archive: archive,
	}
	if f.Devices == 0 {
		f.Why = errors.New("kernels: " + C.GoString(&c.why[0]))
	}
	return f
}

func cudaVersion(v C.int32_t) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}

// SelectCUDA makes a GPU, with a context, that of the calling thread, and describes it.
// An MPI that takes device memory looks at the thread's GPU when it starts.
func SelectCUDA(device int) (CUDADevice, error) {
	var c C.rattn_cuda_device
	var why [320]C.char
	if C.rattn_cuda_select(C.int32_t(device), &c, &why[0], C.int64_t(len(why))) != C.RATTN_OK {
		return CUDADevice{}, errors.New("kernels: " + C.GoString(&why[0]))
	}
	return CUDADevice{
		Index: device, Name: C.GoString(&c.name[0]), UUID: C.GoString(&c.uuid[0]), PCI: C.GoString(&c.pci[0]),
		Capability: fmt.Sprintf("sm_%d%d", c.major, c.minor), TotalBytes: int64(c.total_bytes), FreeBytes: int64(c.free_bytes),
	}, nil
}

// CopyCUDA copies between memories of this process, GPUs' or its own, and returns when
// the copy is complete. It waits for no kernel. Any thread may call it.
func CopyCUDA(dst, src unsafe.Pointer, bytes int64) error {
	var why [320]C.char
	if C.rattn_cuda_copy(dst, src, C.int64_t(bytes), &why[0], C.int64_t(len(why))) != C.RATTN_OK {
		return errors.New("kernels: " + C.GoString(&why[0]))
	}
	return nil
}

// WorkspaceCUDA is the most bytes that a backend on a GPU takes of it beside what Alloc
// was asked for, when its largest calls are of so many rows and of chunks of so many
// tokens.
func WorkspaceCUDA(device int, s ring.Shape, rows, tokens int64, backward bool) int64 {
	shape := cShape(s)
	return int64(C.rattn_cuda_workspace(C.int32_t(device), &shape, C.int64_t(rows), C.int64_t(tokens), flag(backward)))
}
