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

	planner planner
	needed  func() needed
}

// planner makes the plans of a schedule.
type planner interface {
	// plan yields the steps of a rank, until yield returns false.
	plan(rank int, p Pass, yield func(Step) bool)
}

// Schedules lists the schedules that there are.
var Schedules = []string{"ring", "direct", "two-level"}

// NewJob solves who needs what of whom and which way it goes. Two levels need to know
// the node of each rank; nil: all are on one.
func NewJob(b *segments.Batch, schedule string, nodes Nodes) (*Job, error) {
	j := &Job{Batch: b, Schedule: schedule}
	j.needed = sync.OnceValue(j.findNeeded)
	switch schedule {
	case "ring":
		j.planner = newRing(b, oneNode(b.Ranks()))
	case "direct":
		j.planner = newDirect(b)
	case "two-level":
		if nodes == nil {
			nodes = make(Nodes, b.Ranks())
		}
		g, err := newGrid(nodes)
		if err != nil {
			return nil, err
		}
		j.planner = newRing(b, g)
	default:
		return nil, fmt.Errorf("ring: no schedule %q; there are: %v", schedule, Schedules)
	}
	return j, nil
}

// eachRank calls f for all ranks side by side. Most of the time of planning goes there
// where many documents have tokens on all ranks.
func eachRank(ranks int, f func(rank int)) {
	var all sync.WaitGroup
	for rank := range ranks {
		all.Go(func() { f(rank) })
	}
	all.Wait()
}

// Ranks is the number of ranks.
func (j *Job) Ranks() int { return j.Batch.Ranks() }

// Plan yields the steps of a rank in the order in which it takes them.
func (j *Job) Plan(rank int, p Pass) iter.Seq[Step] {
	return func(yield func(Step) bool) { j.planner.plan(rank, p, yield) }
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
	n := j.needed()
	bytes := n.ofIt[rank] * s.KVTokenBytes()
	if p == Backward {
		bytes += n.byIt[rank] * s.GradTokenBytes()
	}
	return bytes
}

// needed counts tokens: those of a rank that others need, once for each of them, and
// those of others that it needs itself.
type needed struct{ ofIt, byIt []int64 }

func (j *Job) findNeeded() needed {
	ranks := j.Ranks()
	tokens := make([][]int64, ranks) // tokens[q][kv]
	eachRank(ranks, func(q int) {
		tokens[q] = make([]int64, ranks)
		for kv := range ranks {
			if kv == q {
				continue
			}
			for _, keys := range j.Batch.KeyRanges(q, kv) {
				tokens[q][kv] += int64(keys.Len())
			}
		}
	})
	n := needed{make([]int64, ranks), make([]int64, ranks)}
	for q := range ranks {
		for kv := range ranks {
			n.ofIt[kv] += tokens[q][kv]
			n.byIt[q] += tokens[q][kv]
		}
	}
	return n
}
