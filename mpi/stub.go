//go:build !mpi || !cgo

package mpi

import (
	"time"
	"unsafe"

	"ringattn/ring"
)

// Built says whether the binary was built with MPI.
const Built = false

// Start fails: the binary was built without MPI.
func Start() (*Communicator, error) { return nil, ErrNoMPI }

// Stop does nothing.
func Stop() error { return nil }

// Abort does nothing.
func Abort(code int) {}

// WorldRank is 0.
func WorldRank() int { return 0 }

// WorldSize is 1.
func WorldSize() int { return 1 }

// LocalRank is 0.
func LocalRank() int { return 0 }

// LocalSize is 1.
func LocalSize() int { return 1 }

// ThreadLevel is ThreadSingle.
func ThreadLevel() int { return ThreadSingle }

// Hostname is empty.
func Hostname() string { return "" }

// Version says that there is no MPI.
func Version() string { return "none" }

// TakesDeviceMemory says no.
func TakesDeviceMemory() DeviceMemory {
	return DeviceMemory{DeviceNo, "this binary was built without MPI"}
}

func isOpenMPI() bool { return false }

func isMPICH() bool { return false }

// Communicator is a ring.Transport; in this build there is none.
type Communicator struct{}

var _ ring.Transport = (*Communicator)(nil)

// Rank is 0.
func (c *Communicator) Rank() int { return 0 }

// Size is 1.
func (c *Communicator) Size() int { return 1 }

// Alloc fails.
func (c *Communicator) Alloc(bytes int64) (unsafe.Pointer, error) { return nil, ErrNoMPI }

// Free does nothing.
func (c *Communicator) Free(p unsafe.Pointer) {}

// Irecv fails.
func (c *Communicator) Irecv(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	return 0, ErrNoMPI
}

// Isend fails.
func (c *Communicator) Isend(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	return 0, ErrNoMPI
}

// Test fails.
func (c *Communicator) Test(r ring.Request) (bool, error) { return false, ErrNoMPI }

// Pause sleeps.
func (c *Communicator) Pause(d time.Duration) { time.Sleep(d) }

// Describe says that there is no MPI.
func (c *Communicator) Describe() string { return "no MPI" }
