package report

import "slices"

// Sections are the parts of a step's time, in the order of Breakdown.
var Sections = []string{"kernel", "exposed wait", "staging", "sync", "other"}

// Breakdown is where the time of a step goes, in seconds over ranks, means over repeats; on
// every rank the parts add up to the step's time, the slowest rank's.
type Breakdown struct {
	Kernel  Spread `json:"kernel"`       // some kernel was in flight
	Wait    Spread `json:"exposed_wait"` // none was, and the rank waited for a message on its way
	Staging Spread `json:"staging"`      // none was, and it waited for a message that was copied between device and host
	Sync    Spread `json:"sync"`         // it was done, and waited for the slowest rank
	Other   Spread `json:"other"`
}

// List is the parts, in the order of Sections.
func (b *Breakdown) List() []*Spread {
	return []*Spread{&b.Kernel, &b.Wait, &b.Staging, &b.Sync, &b.Other}
}

// Step is the time of a step: what the parts add up to on every rank.
func (b *Breakdown) Step() float64 {
	sum := 0.0
	for _, s := range b.List() {
		sum += s.Mean
	}
	return sum
}

// Spread is a time over ranks.
type Spread struct {
	Min       float64  `json:"min"`
	Mean      float64  `json:"mean"`
	Max       float64  `json:"max"`
	Imbalance *float64 `json:"imbalance"` // max / mean; nil where all are 0
}

// NewSpread is of each rank's time.
func NewSpread(times []float64) Spread {
	s := Spread{Min: slices.Min(times), Max: slices.Max(times)}
	for _, t := range times {
		s.Mean += t / float64(len(times))
	}
	if s.Mean > 0 {
		uneven := s.Max / s.Mean
		s.Imbalance = &uneven
	}
	return s
}
