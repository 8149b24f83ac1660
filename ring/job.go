package ring

import (
	"fmt"
	"iter"
	"slices"
	"sync"

	"ringattn/segments"
)

// Job is a batch with a schedule: what all ranks agree on before the first
// message. It is immutable, and all plans come from it alone.
type Job struct {
	Batch    *segments.Batch
	Schedule string

	needs [][]need // needs[rank]: what it wants of others, by round
	hops  [][]hop  // hops[part]: its way, by round
	sends [][]hop  // sends[rank]: the hops that start at it, by round
}

// need is a part of another rank's chunk that a rank attends to.
type need struct {
	part
	round int
	segments.Need
}

// Schedules lists the schedules that there are.
var Schedules = []string{"ring"}

// NewJob solves who needs what of whom and which way it goes.
func NewJob(b *segments.Batch, schedule string) (*Job, error) {
	if schedule != "ring" {
		return nil, fmt.Errorf("ring: no schedule %q; there is: %v", schedule, Schedules)
	}
	ranks := b.Ranks()
	j := &Job{Batch: b, Schedule: schedule, needs: make([][]need, ranks)}
	// Most of the time of planning goes here where many documents have tokens on all
	// ranks.
	var all sync.WaitGroup
	for rank := range ranks {
		all.Go(func() { j.needs[rank] = j.solve(rank) })
	}
	all.Wait()
	j.route()
	return j, nil
}

// solve finds what a rank wants of others, by round.
func (j *Job) solve(rank int) (needs []need) {
	ranks := j.Ranks()
	for dist := 1; dist < ranks; dist++ {
		owner := (rank - dist + ranks) % ranks
		spans := j.spans(owner)
		for i, n := range j.Batch.Needs(rank, owner, spans[:]...) {
			if n.Pairs > 0 {
				needs = append(needs, need{part(parts*owner + i), parts*(dist-1) + i + 1, n})
			}
		}
	}
	return needs
}

// Ranks is the number of ranks.
func (j *Job) Ranks() int { return j.Batch.Ranks() }

// Plan yields the steps of a rank in the order in which it takes them.
func (j *Job) Plan(rank int, p Pass) iter.Seq[Step] {
	return func(yield func(Step) bool) { j.ring(rank, p, yield) }
}

// PlanOf collects the steps of one rank, and Plans those of all.
func (j *Job) PlanOf(rank int, p Pass) []Step { return slices.Collect(j.Plan(rank, p)) }

// Plans collects the steps of all ranks.
func (j *Job) Plans(p Pass) [][]Step {
	plans := make([][]Step, j.Ranks())
	for r := range plans {
		plans[r] = j.PlanOf(r, p)
	}
	return plans
}

// LeastBytes is the least that a rank must send in a pass, from the mask and
// the layout alone: each of its tokens once to each other rank that needs it;
// backward, keys and values again, and the gradients of what it used itself.
func (j *Job) LeastBytes(rank int, p Pass, s Shape) int64 {
	var kv, grad int64
	tokens := func(q int, of part) (n int64) {
		for _, r := range j.Batch.KeyRanges(q, of.owner()) {
			n += int64(max(r.Intersect(j.span(of)).Len(), 0))
		}
		return n
	}
	for i := range parts {
		own := part(parts*rank + i)
		for _, h := range j.hops[own] {
			kv += tokens(h.to, own)
		}
	}
	if p == Backward {
		for _, n := range j.needs[rank] {
			grad += tokens(rank, n.part)
		}
	}
	return kv*s.KVTokenBytes() + grad*s.GradTokenBytes()
}
