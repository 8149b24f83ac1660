package report

import "slices"

// Entries are what the time of a pass goes to, in the order of Breakdown.
var Entries = []string{"kernel", "exposed wait", "staging", "sync", "other"}

// Breakdown is where the time of a pass goes, in seconds over ranks, means over repeats; on
// every rank the entries add up to the pass's time, the slowest rank's.
type Breakdown struct {
	Kernel  Spread `json:"kernel"`       // some kernel was in flight
	Wait    Spread `json:"exposed_wait"` // none was, and the rank waited for a message on its way
	Staging Spread `json:"staging"`      // none was, and it waited for a message that was copied between device and host
	Sync    Spread `json:"sync"`         // it was done, and waited for the slowest rank
	Other   Spread `json:"other"`
}

// List is the entries, in their order.
func (b *Breakdown) List() []*Spread {
	return []*Spread{&b.Kernel, &b.Wait, &b.Staging, &b.Sync, &b.Other}
}

// Whole is the time of the pass: what the entries add up to on every rank.
func (b *Breakdown) Whole() float64 {
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
