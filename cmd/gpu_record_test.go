package cmd

import (
	"math"
	"testing"
	"time"

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

// A counter that moves every 100 ms, of a GPU that takes 700 W: what is told of it is right
// to 5%, and of a pass that is too short nothing is.
func TestEnergyOfShortTimes(t *testing.T) {
	begun := time.Now()
	reading := func(after time.Duration) energyReading {
		joules := 700 * after.Truncate(100*time.Millisecond).Seconds()
		return energyReading{&joules, begun.Add(after)}
	}
	for from := 50 * time.Millisecond; from < 150*time.Millisecond; from += time.Millisecond {
		for _, took := range []time.Duration{2 * time.Millisecond, 200 * time.Millisecond, 1999 * time.Millisecond} {
			if got := reading(from + took).since(reading(from)); got != nil {
				t.Fatalf("%g J of %v", *got, took)
			}
		}
		for _, took := range []time.Duration{2 * time.Second, 2345 * time.Millisecond, time.Minute} {
			want := 700 * took.Seconds()
			if got := reading(from + took).since(reading(from)); got == nil || math.Abs(*got-want) > 0.05*want {
				t.Fatalf("%v J of %v from %v on, want %g", got, took, from, want)
			}
		}
	}
	for name, pair := range map[string][2]energyReading{
		"no counter before": {{nil, begun}, reading(time.Minute)},
		"no counter after":  {reading(0), {nil, begun.Add(time.Minute)}},
		"nothing timed":     {{}, reading(time.Minute)},
	} {
		if got := pair[1].since(pair[0]); got != nil {
			t.Errorf("%s: %g J", name, *got)
		}
	}
}
