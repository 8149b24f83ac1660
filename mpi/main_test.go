//go:build mpi && cgo

package mpi

// The conformance suite under a real MPI. Build it once an MPI and run it:
//
//	CGO_CFLAGS=... CGO_LDFLAGS=... go test -c -tags mpi -o mpi.test ./mpi   # the flags of mpi/flags.sh
//	mpirun --oversubscribe -n 3 ./mpi.test
//	RINGATTN_TEST_PIECE_BYTES=1000 mpirun --oversubscribe -n 3 ./mpi.test
//	mpirun --oversubscribe --mca btl self,vader --mca btl_vader_eager_limit 64 -n 2 ./mpi.test
//	mpirun --oversubscribe --mca btl self,tcp --mca btl_tcp_eager_limit 64 -n 2 ./mpi.test
//	GOEXPERIMENT=cgocheck2 go test -c ...;  RINGATTN_TEST_GARBAGE=200 mpirun -n 4 ./mpi.test   # case G3
//
// Without mpirun (go test -tags mpi ./mpi) it is a world of one rank.

import (
	"fmt"
	"os"
	"runtime"
	"testing"
)

func init() { runtime.LockOSThread() }

// onMain is run by the main goroutine, which is locked to the main thread.
var onMain = make(chan func())

// do runs f on the main thread.
func do(f func()) {
	done := make(chan struct{})
	onMain <- func() { f(); close(done) }
	<-done
}

var communicator *Communicator

func TestMain(m *testing.M) {
	c, err := Start()
	if err == nil {
		err = Launched().CheckWorld(WorldSize(), false)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	communicator = c
	code := make(chan int)
	go func() { code <- m.Run() }()
	for {
		select {
		case f := <-onMain:
			f()
		case rc := <-code:
			if rc != 0 {
				Abort(rc)
			}
			if err := Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				rc = 4
			}
			os.Exit(rc)
		}
	}
}
