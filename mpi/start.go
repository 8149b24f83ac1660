//go:build mpi && cgo

package mpi

// #include "shim.h"
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Built says whether the binary was built with MPI.
const Built = true

var (
	world   C.rmpi_world
	started *Communicator
)

// Start starts MPI and returns a communicator of all ranks, a duplicate of
// MPI_COMM_WORLD on which errors are returned. It refuses beforehand where the
// environment is one in which MPI_Init would abort the process. What it changes
// is one variable: UCX_ERROR_SIGNALS becomes empty unless it is set, so that UCX
// leaves the signal handlers of the Go runtime alone; those of HUP, INT, TERM and USR1
// are as before when it returns. Where UCX is linked and not
// loaded by MPI_Init, it came before the Go runtime and does no harm.
func Start() (*Communicator, error) {
	if started != nil {
		return nil, errors.New("mpi: Start was called twice")
	}
	piece, err := pieceBytes(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	if err := checkEnvironment(os.LookupEnv, isConnection, isOpenMPI(), isMPICH()); err != nil {
		return nil, err
	}
	if !loaded("libucs.so") { // else it has read its variables, and would warn of a late one
		C.rmpi_prepare()
	}
	if C.rmpi_start(C.int64_t(piece), &world) != C.RMPI_OK {
		return nil, lastError("MPI_Init_thread", -1)
	}
	if world.thread_level < ThreadFunneled {
		return nil, fmt.Errorf("mpi: %s gives thread level MPI_THREAD_SINGLE; a Go program has several threads "+
			"and needs MPI_THREAD_FUNNELED at least: use an MPI built with thread support", Version()) //nolint:misspell // MPI's own name
	}
	started = &Communicator{rank: int(world.rank), size: int(world.size), tagMax: int(world.tag_ub)}
	return started, nil
}

// Stop ends MPI. It waits for the other ranks, so it is for the good path alone:
// after an error call Abort, or just exit.
func Stop() error {
	if started == nil {
		return nil
	}
	rank := started.rank
	started = nil
	if C.rmpi_stop() != C.RMPI_OK {
		return lastError("MPI_Finalize", rank)
	}
	return nil
}

// Abort ends all processes of the job with the exit code, where MPI has been
// started, and else returns.
func Abort(code int) {
	if started != nil {
		C.rmpi_abort(C.int(code))
	}
}

// WorldRank is this process's rank; 0 before Start.
func WorldRank() int { return int(world.rank) }

// WorldSize is the number of ranks; 1 before Start.
func WorldSize() int { return max(1, int(world.size)) }

// LocalRank is this process's number among those that share its memory.
func LocalRank() int { return int(world.local_rank) }

// LocalSize is the number of ranks that share this process's memory.
func LocalSize() int { return max(1, int(world.local_size)) }

// ThreadLevel is what MPI_Init_thread gave, ThreadFunneled at least.
func ThreadLevel() int { return int(world.thread_level) }

// Hostname is MPI's name of this node; empty before Start.
func Hostname() string {
	if started == nil {
		return ""
	}
	var name [256]C.char
	C.rmpi_hostname(&name[0], C.int(len(name)))
	return C.GoString(&name[0])
}

// Version names the library and the headers that it was built with. It may be
// called before Start.
func Version() string {
	// Open MPI goes on with who packaged it and when.
	library, _, _ := strings.Cut(libraryVersion(), ", ")
	if library == "" {
		library = "unknown MPI"
	}
	return fmt.Sprintf("%s (headers: %s)", library, C.GoString(C.rmpi_header_version()))
}

func libraryVersion() string {
	var text [512]C.char
	C.rmpi_library_version(&text[0], C.int(len(text)))
	return strings.Join(strings.Fields(C.GoString(&text[0])), " ")
}

// TakesDeviceMemory says whether messages may be a GPU's memory. Call it after Start.
func TakesDeviceMemory() DeviceMemory {
	return deviceMemory(deviceFacts{
		version: libraryVersion(), query: int(C.rmpi_cuda_support()), enabled: int(C.rmpi_cuda_enabled()),
		lookup: os.LookupEnv, mapped: loaded,
	})
}

// loaded reports whether a library of that name is mapped into this process.
func loaded(library string) bool {
	maps, err := os.ReadFile("/proc/self/maps")
	return err == nil && bytes.Contains(maps, []byte(library))
}

func isOpenMPI() bool { return C.rmpi_is_open_mpi() != 0 }

func isMPICH() bool { return C.rmpi_is_mpich() != 0 }

// lastError makes an error of what the shim remembers; op is empty for a message.
func lastError(op string, rank int) error {
	f := C.rmpi_last_failure()
	e := &Error{Rank: rank, Op: op, Peer: -1, Class: C.GoString(&f.class_name[0]), Text: C.GoString(&f.text[0])}
	switch f.code {
	case C.RMPI_NO_MEMORY:
		e.Text = "out of memory"
	case C.RMPI_SHORT:
		e.Text = fmt.Sprintf("got %d", int64(f.got))
	case C.RMPI_NO_REQUEST:
		e.Op, e.Text = "test", "there is no such request"
		return e
	}
	if op == "" {
		e.Op = opReceive
		if f.is_send != 0 {
			e.Op = opSend
		}
		e.Peer, e.Tag, e.Bytes = int(f.peer), int(f.tag), int64(f.bytes)
		if f.code > 0 && f.got > 0 {
			e.Text += fmt.Sprintf(" (got at least %d)", int64(f.got))
		}
	}
	return e
}
