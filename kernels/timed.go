//go:build cgo

package kernels

// #include "cpu.h"
import "C"

import (
	"errors"
	"time"

	"ringattn/ring"
)

// cpuTable is the CPU's table, whose queue knows when each call ran.
type cpuTable struct{ *table }

var _ ring.Timed = cpuTable{}

// StartTiming has nothing to do: the queue always looks at the clock.
func (cpuTable) StartTiming() error { return nil }

// errRan is for marks that were not passed, or whose calls are long over.
var errRan = errors.New("kernels: when calls between two marks ran is not known")

// Ran tells how long ago what was enqueued between two marks began and ended.
func (t cpuTable) Ran(from, to ring.Event) (began, ended time.Duration, err error) {
	b, e := &t.args.began, &t.args.ended
	if C.rattn_cpu_ran(t.ctx, C.int64_t(from), C.int64_t(to), b, e) == 0 {
		return 0, 0, errRan
	}
	return time.Duration(*b), time.Duration(*e), nil
}
