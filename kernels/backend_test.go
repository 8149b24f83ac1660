//go:build cgo

package kernels

import (
	"fmt"
	"testing"

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

func TestCPU(t *testing.T) {
	for _, isa := range ISAs() {
		for _, threads := range []int{1, 2, 5} {
			t.Run(fmt.Sprintf("%s/%d", isa, threads), func(t *testing.T) { backendtest.Run(t, opener(threads, isa)) })
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
	backendtest.Run(t, opener(2, ""))
}
