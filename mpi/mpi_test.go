//go:build mpi && cgo

package mpi

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"ringattn/ring"
	"ringattn/ring/transporttest"
)

func TestTransport(t *testing.T) {
	garbage, _ := strconv.Atoi(os.Getenv("RINGATTN_TEST_GARBAGE"))
	transporttest.Run(t, func(*testing.T) transporttest.World {
		return transporttest.World{Endpoints: []ring.Transport{communicator}, Do: do, Garbage: garbage}
	})
}

func TestWorld(t *testing.T) {
	do(func() {
		if communicator.Rank() != WorldRank() || communicator.Size() != WorldSize() {
			t.Errorf("rank %d of %d, world %d of %d", communicator.Rank(), communicator.Size(), WorldRank(), WorldSize())
		}
		if LocalRank() < 0 || LocalRank() >= LocalSize() || LocalSize() > WorldSize() {
			t.Errorf("local rank %d of %d, world of %d", LocalRank(), LocalSize(), WorldSize())
		}
		if l := Launched(); l.Size > 0 && (l.Rank != WorldRank() || l.LocalRank != LocalRank()) {
			t.Errorf("the launcher says rank %d, local %d; MPI says %d, %d", l.Rank, l.LocalRank, WorldRank(), LocalRank())
		}
		if Hostname() == "" || ThreadLevel() < ThreadFunneled {
			t.Errorf("host %q, thread level %d", Hostname(), ThreadLevel())
		}
		if v := Version(); !strings.Contains(v, "MPI") || strings.ContainsAny(v, "\n\t") {
			t.Errorf("version %q", v)
		}
		if _, err := Start(); err == nil {
			t.Error("a second Start is no error")
		}
		if WorldRank() == 0 {
			t.Logf("%s, thread level %d, CUDA %d, host %s, %+v", Version(), ThreadLevel(), CUDASupport(), Hostname(), Launched())
		}
	})
}

// TestTag sends with the greatest tag, and is refused the one after it.
func TestTag(t *testing.T) {
	do(func() {
		c := communicator
		in, err := c.Irecv(nil, 0, c.rank, c.tagMax)
		if err != nil {
			t.Error(err)
			return
		}
		out, err := c.Isend(nil, 0, c.rank, c.tagMax)
		if err != nil {
			t.Error(err)
			return
		}
		for _, r := range []ring.Request{out, in} {
			for done := false; !done && err == nil; {
				done, err = c.Test(r)
			}
			if err != nil {
				t.Error(err)
			}
		}
		var e *Error
		if _, err := c.Isend(nil, 0, c.rank, c.tagMax+1); !errors.As(err, &e) || !strings.Contains(err.Error(), "MPI_TAG_UB") {
			t.Errorf("tag beyond MPI_TAG_UB: got error %v", err)
		}
	})
}

func TestPause(t *testing.T) {
	start := time.Now()
	for range 20 {
		communicator.Pause(100 * time.Microsecond)
	}
	if took := time.Since(start); took < 2*time.Millisecond {
		t.Errorf("20 pauses of 100 us took %v", took)
	}
}
