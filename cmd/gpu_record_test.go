package cmd

import "testing"

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
