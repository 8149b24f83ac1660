package late_test

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/ring/devicetest"
	"ringattn/ring/late"
)

func floats(t *testing.T, b ring.Backend, n int64) (unsafe.Pointer, []float32) {
	p, err := b.Alloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	return p, unsafe.Slice((*float32)(p), n)
}

// Kernels run late, one after another and in order, and not before they are asked for.
func TestLate(t *testing.T) {
	const by = 20 * time.Millisecond
	b := late.New(kernels.Reference(), by)
	p, x := floats(t, b, 1)
	q, y := floats(t, b, 1)
	x[0], y[0] = 5, 1
	start := time.Now()
	var events []ring.Event
	for _, kernel := range []func() error{
		func() error { return b.Zero(p, 4) },
		func() error { return b.Add(p, q, 1) },
		func() error { return b.Add(p, p, 1) },
	} {
		if err := kernel(); err != nil {
			t.Fatal(err)
		}
		e, err := b.Record()
		if err != nil || e == 0 {
			t.Fatal(e, err)
		}
		events = append(events, e)
	}
	for i, want := range []float32{0, 1, 2} {
		for done := false; !done; {
			before, err := x[0], error(nil)
			if done, err = b.Query(events[i]); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); before == want && took < time.Duration(i+1)*by {
				t.Fatalf("kernel %d has run after %v", i, took)
			}
		}
		if x[0] != want {
			t.Fatalf("after kernel %d there is %v, want %v", i, x[0], want)
		}
	}
	if err := b.Zero(p, 4); err != nil || x[0] != 2 {
		t.Errorf("a kernel ran when it was enqueued: %v, %v", x[0], err)
	}
	var got [4]byte
	if err := b.Read(got[:], p); err != nil || got != [4]byte{} {
		t.Errorf("Read did not wait: %v, %v", got, err)
	}
}

var errBroken = errors.New("broken")

type broken struct{ ring.Backend }

func (broken) Zero(unsafe.Pointer, int64) error { return errBroken }

// The error of a kernel comes back from whatever is called when it has run, and after.
func TestError(t *testing.T) {
	b := late.New(broken{kernels.Reference()}, time.Millisecond)
	p, _ := floats(t, b, 1)
	if err := b.Zero(p, 4); err != nil {
		t.Errorf("the error came at once: %v", err)
	}
	if err := b.Sync(); !errors.Is(err, errBroken) {
		t.Errorf("Sync: %v", err)
	}
	if _, err := b.Query(1); !errors.Is(err, errBroken) {
		t.Errorf("Query: %v", err)
	}
	if err := b.Add(p, p, 1); !errors.Is(err, errBroken) {
		t.Errorf("the next kernel: %v", err)
	}
}

func TestKind(t *testing.T) {
	if _, ok := late.New(kernels.Reference(), 0).(ring.Device); ok {
		t.Error("host memory has become a device's")
	}
	if _, ok := late.New(devicetest.New(kernels.Reference(), devicetest.Mapped()), 0).(ring.Device); !ok {
		t.Error("a device is none any more")
	}
}
