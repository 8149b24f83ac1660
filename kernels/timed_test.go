//go:build cgo

package kernels

import (
	"testing"
	"time"
	"unsafe"

	"ringattn/ring"
)

// checkTimed has a backend that knows when its kernels ran tell of some that add numbers: they
// ran after they were enqueued, one after another, and are over.
func checkTimed(t *testing.T, b ring.Backend) {
	t.Helper()
	timed, ok := b.(ring.Timed)
	if !ok {
		t.Fatalf("%s does not know when its kernels ran", b.Name())
	}
	const n = 1 << 20
	var p [2]unsafe.Pointer
	for i := range p {
		var err error
		if p[i], err = b.Alloc(4 * n); err != nil {
			t.Fatal(err)
		}
		defer b.Free(p[i])
	}
	// GPUs' clocks are read some microseconds from the host's.
	const apart = 100 * time.Microsecond
	for range 2 {
		if err := timed.StartTiming(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		type span struct{ begin, end time.Duration } // since start
		var last span
		for i := range 5 {
			enqueued := time.Since(start)
			from, err := b.Record()
			if err == nil && i == 0 {
				err = b.Zero(p[0], 4*n)
			}
			if err == nil {
				err = b.Zero(p[1], 4*n)
			}
			if err == nil {
				err = b.Add(p[0], p[1], n)
			}
			to, err2 := b.Record()
			for done := false; err == nil && err2 == nil && !done; {
				done, err2 = b.Query(to)
			}
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			began, ended, err := timed.Ran(from, to)
			if err != nil {
				t.Fatal(err)
			}
			now := time.Since(start)
			x := span{now - began, now - ended}
			if x.begin >= x.end || x.begin < enqueued-apart || x.end > now+apart || i > 0 && x.begin < last.end {
				t.Errorf("kernel %d was enqueued at %v and over at %v; it ran from %v to %v, the one before until %v", i, enqueued, now, x.begin, x.end, last.end)
			}
			last = x
		}
		event, err := b.Record()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := timed.Ran(event, event+1); err == nil {
			t.Error("a mark that there is not yet has a time")
		}
	}
}

func TestTimed(t *testing.T) {
	for _, threads := range []int{1, 3} {
		b, err := CPU(threads, "")
		if err != nil {
			t.Fatal(err)
		}
		checkTimed(t, b)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Calls that are long over, and whose places others have, have no times.
func TestTimedForgets(t *testing.T) {
	b, err := CPU(1, "")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p, err := b.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free(p)
	for range 3000 {
		if err := b.Zero(p, 64); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	timed := b.(ring.Timed)
	if _, _, err := timed.Ran(0, 1); err == nil {
		t.Error("the first of 3,000 calls has times")
	}
	if _, _, err := timed.Ran(2500, 3000); err != nil {
		t.Error(err)
	}
	if _, _, err := timed.Ran(2999, 2999); err == nil {
		t.Error("no call has times")
	}
}
