//go:build cgo

package kernels

import (
	"fmt"
	"slices"
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
