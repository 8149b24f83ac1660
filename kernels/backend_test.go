//go:build cgo

package kernels

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"ringattn/ring"
	"ringattn/ring/backendtest"
)

func opener(threads int, isa string) func(t *testing.T) ring.Backend {
	return func(t *testing.T) ring.Backend {
		b, err := CPU(threads, isa)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// suite is the conformance suite for an isa: those that multiply bf16 round p and ds.
func suite(isa string) func(t *testing.T, open func(t *testing.T) ring.Backend) {
	if slices.Contains([]string{"amx", "avx512bf16", "portable-bf16"}, isa) {
		return backendtest.RunRounded
	}
	return backendtest.Run
}

func TestCPU(t *testing.T) {
	for _, isa := range ISAs() {
		for _, threads := range []int{1, 2, 5} {
			t.Run(fmt.Sprintf("%s/%d", isa, threads), func(t *testing.T) { suite(isa)(t, opener(threads, isa)) })
		}
	}
}

// The result does not depend on the number of threads, to the bit.
func TestThreads(t *testing.T) {
	for _, isa := range ISAs() {
		t.Run(isa, func(t *testing.T) {
			backendtest.Same(t, opener(1, isa), opener(2, isa), opener(5, isa), opener(16, isa))
		})
	}
}

// Small blocks of keys, and of heads, give what large ones do.
func TestBlocks(t *testing.T) {
	t.Setenv("RINGATTN_TEST_BLOCK_BYTES", "1")
	for _, isa := range ISAs() {
		t.Run(isa, func(t *testing.T) { suite(isa)(t, opener(2, isa)) })
	}
}

// The emulation of bf16 products is there for tests: it comes last.
func TestPreferred(t *testing.T) {
	isas := ISAs()
	if last := isas[len(isas)-1]; last != "portable-bf16" || len(isas) < 2 {
		t.Errorf("isas are %v, want portable-bf16 last", isas)
	}
}

// Nor does it where cells are wide for few threads and narrow for many, and keys of all heads
// are packed together for few: several strips of keys, written and then added to.
func TestStrips(t *testing.T) {
	const tokens = 4000
	for _, isa := range ISAs() {
		for _, dtype := range []ring.DType{ring.F32, ring.BF16} {
			t.Run(fmt.Sprintf("%s/%v", isa, dtype), func(t *testing.T) {
				shape := ring.Shape{DType: dtype, Heads: 2, KVHeads: 2, HeadDim: 8, Scale: -0.3}
				var want [2][]uint32
				for _, threads := range []int{1, 4, 16} {
					j := newBenchJob(t, opener(threads, isa)(t), shape, tokens, window(3000))
					for i := range want {
						err := errors.Join(j.backend.Backward(shape, &j.t, j.chunk, j.rows, j.dkv, i == 0), j.backend.Sync())
						if err != nil {
							t.Fatal(err)
						}
						n := tokens * shape.Heads * shape.HeadDim
						got := slices.Concat(unsafe.Slice((*uint32)(j.t.Out), n), unsafe.Slice((*uint32)(j.t.DQ), n), unsafe.Slice((*uint32)(j.dkv), 2*n))
						if threads == 1 {
							want[i] = got
						} else if !slices.Equal(got, want[i]) {
							t.Errorf("call %d: %d threads give other bits than 1", i, threads)
						}
					}
					j.close()
				}
			})
		}
	}
}
