//go:build mpi && cgo

package mpi

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/ring/devicetest"
	"ringattn/ring/staged"
	"ringattn/ring/transporttest"
)

func TestTransport(t *testing.T) {
	garbage, _ := strconv.Atoi(os.Getenv("RINGATTN_TEST_GARBAGE"))
	transporttest.Run(t, func(*testing.T) transporttest.World {
		return transporttest.World{Endpoints: []ring.Transport{communicator}, Do: do, Garbage: garbage}
	})
}

// sameMemory is device memory that the host reaches at the same address, since the suite
// fills messages itself.
type sameMemory struct{ ring.Backend }

func (sameMemory) View(p unsafe.Pointer) unsafe.Pointer { return p }

// Ranks whose messages pass through host memory, copied late, beside ranks whose do not.
func TestStaged(t *testing.T) {
	const pieceBytes = 1 << 16
	var copier ring.Copier
	if b := kernels.Reference(); communicator.Rank()%2 == 0 {
		copier = devicetest.New(b, sameMemory{b})
	}
	transporttest.Run(t, func(*testing.T) transporttest.World {
		return transporttest.World{Endpoints: []ring.Transport{staged.New(communicator, copier, pieceBytes)}, Do: do}
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
		m := TakesDeviceMemory()
		if m.Why == "" {
			t.Errorf("device memory: %v, without a reason", m.State)
		}
		if WorldRank() == 0 {
			t.Logf("%s, thread level %d, device memory: %v (%s), host %s, %+v", Version(), ThreadLevel(), m.State, m.Why, Hostname(), Launched())
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
