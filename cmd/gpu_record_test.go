package cmd

import (
	"testing"

	"ringattn/gpu"
)

// People read what was found, and why the rest was not.
func TestGPUText(t *testing.T) {
	driver, clock, power := "550.54", 1980, 112.5
	r := gpuRecord{Name: "H200", UUID: "GPU-1", PCI: "0:1", Capability: "sm_90", NVML: gpu.Facts{Driver: &driver, SMClockMHz: &clock, PowerW: &power}}
	if got, want := r.text(2), "H200, sm_90, GPU-1, 0:1, driver 550.54, 1980 MHz, 112 W, shared by 2 ranks"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r.NVML = gpu.Facts{Unread: map[string]string{"nvml": "no library"}}
	if got, want := r.text(1), "H200, sm_90, GPU-1, 0:1, no more: no library"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Energy is of all GPUs, or not known.
func TestEnergyPerToken(t *testing.T) {
	of := func(joules ...float64) (ranks []benchRank) {
		for _, j := range joules {
			x := benchRank{EnergyJ: &j}
			if j < 0 {
				x.EnergyJ = nil
			}
			ranks = append(ranks, x)
		}
		return ranks
	}
	if got := perToken(of(30, 0, 20), 100); got == nil || *got != 0.5 {
		t.Errorf("50 J of 100 tokens: %v", got)
	}
	for name, ranks := range map[string][]benchRank{"no GPU": of(0, 0), "one that is not read": of(30, -1)} {
		if got := perToken(ranks, 100); got != nil {
			t.Errorf("%s: %g", name, *got)
		}
	}
}
