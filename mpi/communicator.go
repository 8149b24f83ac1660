//go:build mpi && cgo

package mpi

// #include "shim.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"ringattn/ring"
)

// Communicator is a ring.Transport over all ranks of the job. Its messages take
// host memory of Alloc, other C memory, or device memory where MPI knows it;
// never Go memory.
type Communicator struct {
	rank, size, tagMax int
}

var (
	_ ring.Transport = (*Communicator)(nil)
	_ ring.Pauser    = (*Communicator)(nil)
)

// Rank is this process's number.
func (c *Communicator) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Communicator) Size() int { return c.size }

// Describe names the MPI library.
func (c *Communicator) Describe() string { return "MPI: " + Version() }

// Alloc returns zeroed C memory, aligned to 64 bytes.
func (c *Communicator) Alloc(bytes int64) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	if bytes >= 0 {
		p = C.rmpi_alloc(C.int64_t(bytes))
	}
	if p == nil {
		return nil, fmt.Errorf("mpi: rank %d: cannot allocate %d bytes of message memory", c.rank, bytes)
	}
	return p, nil
}

// Free gives memory of Alloc back; nil is allowed.
func (c *Communicator) Free(p unsafe.Pointer) { C.rmpi_free(p) }

// Irecv starts a receive of exactly bytes bytes: MPI_Irecv of each piece.
func (c *Communicator) Irecv(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	if !c.valid(p, bytes, peer, tag) {
		return 0, c.invalid(opReceive, p, bytes, peer, tag)
	}
	r := C.rmpi_irecv(p, C.int64_t(bytes), C.int(peer), C.int(tag))
	if r == 0 {
		return 0, lastError("", c.rank)
	}
	return ring.Request(r), nil
}

// Isend starts a send: MPI_Isend of each piece.
func (c *Communicator) Isend(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	if !c.valid(p, bytes, peer, tag) {
		return 0, c.invalid(opSend, p, bytes, peer, tag)
	}
	r := C.rmpi_isend(p, C.int64_t(bytes), C.int(peer), C.int(tag))
	if r == 0 {
		return 0, lastError("", c.rank)
	}
	return ring.Request(r), nil
}

func (c *Communicator) valid(p unsafe.Pointer, bytes int64, peer, tag int) bool {
	return peer >= 0 && peer < c.size && tag >= 0 && tag <= c.tagMax && bytes >= 0 && (p != nil || bytes == 0)
}

func (c *Communicator) invalid(op string, p unsafe.Pointer, bytes int64, peer, tag int) error {
	why := "no memory"
	switch {
	case peer < 0 || peer >= c.size:
		why = fmt.Sprintf("there are %d ranks", c.size)
	case tag < 0 || tag > c.tagMax:
		why = fmt.Sprintf("tags go from 0 to %d (MPI_TAG_UB)", c.tagMax)
	case bytes < 0:
		why = "negative size"
	}
	return &Error{Rank: c.rank, Op: op, Peer: peer, Tag: tag, Bytes: bytes, Text: why}
}

// Test is MPI_Test of the pieces that are not done yet. It drives all other
// transfers of this process forward as well.
func (c *Communicator) Test(r ring.Request) (bool, error) {
	switch C.rmpi_test(C.int64_t(r)) {
	case C.RMPI_PENDING:
		return false, nil
	case C.RMPI_DONE:
		return true, nil
	}
	return false, lastError("", c.rank)
}

// Pause sleeps in C: time.Sleep takes 1.1 ms at least in an idle process. For 0 it is
// sched_yield.
func (c *Communicator) Pause(d time.Duration) { C.rmpi_pause(C.int64_t(d.Nanoseconds())) }
