package inproc

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"ringattn/ring/transporttest"
)

func newWorld(n int, opts ...Option) transporttest.World {
	var w transporttest.World
	for _, e := range New(n, opts...) {
		w.Endpoints = append(w.Endpoints, e)
	}
	return w
}

// jitter is a delay that differs from message to message but not from run to run.
func jitter(src, dst, tag int, bytes int64) time.Duration {
	return time.Duration((src*31+dst*17+tag*7+int(bytes))%5) * 200 * time.Microsecond
}

func TestTransport(t *testing.T) {
	for _, variant := range []struct {
		name string
		opts []Option
	}{
		{"plain", nil},
		{"late and out of order", []Option{Delay(jitter), Reorder(1)}},
		{"pieces", []Option{PieceBytes(1000), Reorder(2)}},
	} {
		for _, n := range []int{1, 2, 3, 5, 8} {
			t.Run(fmt.Sprintf("%s/%d ranks", variant.name, n), func(t *testing.T) {
				transporttest.Run(t, func(*testing.T) transporttest.World { return newWorld(n, variant.opts...) })
			})
		}
	}
}

// copyMarked is a copy of the caller's.
func copyMarked(dst, src unsafe.Pointer, n int64) error {
	copied.Add(n)
	return copyHost(dst, src, n)
}

var copied atomic.Int64

func TestCopy(t *testing.T) {
	transporttest.Run(t, func(*testing.T) transporttest.World { return newWorld(2, Copy(copyMarked)) })
	if copied.Load() == 0 {
		t.Error("nothing was copied by the caller's function")
	}
}
