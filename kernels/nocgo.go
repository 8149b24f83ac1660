//go:build !cgo

package kernels

import (
	"errors"
	"sync"
	"unsafe"

	"ringattn/ring"
)

var errNoCgo = errors.New("kernels: open: the CPU kernels are in C, and this program was built without cgo; --backend ref is there, and slow")

// CPU needs cgo, which this build is without.
func CPU(threads int, isa string) (ring.Backend, error) { return nil, errNoCgo }

// ISAs is empty in a build without cgo.
func ISAs() []string { return nil }

// PeakFLOPS is 0 in a build without cgo.
func PeakFLOPS(threads int, isa string, dtype ring.DType) float64 { return 0 }

// The reference backend's memory: Go memory, kept alive here until it is freed.
// The collector does not move it.
var (
	hostMutex  sync.Mutex
	hostPieces = map[unsafe.Pointer][]byte{}
)

func hostAlloc(bytes int64) (unsafe.Pointer, error) {
	piece := make([]byte, bytes+64)
	p := unsafe.Pointer(unsafe.SliceData(piece))
	p = unsafe.Add(p, -uintptr(p)&63)
	hostMutex.Lock()
	hostPieces[p] = piece
	hostMutex.Unlock()
	return p, nil
}

func hostFree(p unsafe.Pointer) {
	hostMutex.Lock()
	delete(hostPieces, p)
	hostMutex.Unlock()
}
