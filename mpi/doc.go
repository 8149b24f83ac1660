// Package mpi is a thin binding of what this program needs of MPI: start and
// stop, non-blocking messages of raw host or device pointers as a
// ring.Transport, errors as Go errors, and what the launcher said.
//
// It has no collectives (ring.Comm makes them of messages), no data types and
// no windows. Names follow github.com/sbromberger/gompi where both have a thing.
//
// With the build tag mpi it is cgo over shim.c, the only file that knows
// <mpi.h>. The compiler's flags come from the environment; flags.sh prints them
// for any MPI compiler wrapper, and make sets them.
//
// Without the tag Start fails and says how to build with MPI.
//
// # Threads
//
// All calls but Abort must come from the thread that called Start: the main
// package calls runtime.LockOSThread in an init function, so that its main
// goroutine is the main thread of the process, and calls Start from there. Abort
// may come from any goroutine if ThreadLevel is ThreadMultiple.
package mpi

import (
	"errors"
	"fmt"
	"strconv"
)

// ThreadLevel values, as MPI orders them.
const (
	ThreadSingle = iota
	ThreadFunneled
	ThreadSerialized
	ThreadMultiple
)

// PieceBytes is the size of the pieces that messages are cut into, as MPI counts
// in an int. A message ends with the first piece that is shorter.
const PieceBytes = 256 << 20

// PieceBytesEnv names the environment variable that lowers PieceBytes, for
// tests. It must be the same on all ranks.
const PieceBytesEnv = "RINGATTN_TEST_PIECE_BYTES"

// pieceBytes is what PieceBytesEnv asks for.
func pieceBytes(lookup Lookup) (int64, error) {
	text, set := lookup(PieceBytesEnv)
	if !set || text == "" {
		return PieceBytes, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > PieceBytes {
		return 0, fmt.Errorf("mpi: %s=%s: want a number of bytes from 1 to %d", PieceBytesEnv, text, PieceBytes)
	}
	return n, nil
}

// ErrNoMPI is what every call returns in a binary that was built without MPI.
var ErrNoMPI = errors.New("mpi: this binary was built without MPI: build it with `make MPICC=mpicc` " +
	"(go build -tags mpi), or give --ranks N to run in one process")

const (
	opReceive = "receive from"
	opSend    = "send to"
)

// Error is a failure that MPI reported. The job can only be aborted after it.
type Error struct {
	Rank  int
	Op    string // "receive from", "send to", or the name of an MPI function
	Peer  int    // of a message; else -1
	Tag   int
	Bytes int64
	Class string // for instance "MPI_ERR_TRUNCATE"
	Text  string // of MPI_Error_string, or this package's own
}

func (e *Error) Error() string {
	what := e.Op
	if e.Peer >= 0 {
		verb := "wanted"
		if e.Op == opSend {
			verb = "sent"
		}
		what = fmt.Sprintf("%s rank %d, tag %d: %s %d bytes", e.Op, e.Peer, e.Tag, verb, e.Bytes)
	}
	if e.Class == "" {
		return fmt.Sprintf("mpi: rank %d: %s, %s", e.Rank, what, e.Text)
	}
	return fmt.Sprintf("mpi: rank %d: %s, %s: %s", e.Rank, what, e.Class, e.Text)
}
