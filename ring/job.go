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
	Wire     DType // of the gradients that are sent: F32, or BF16

	stageTokens int // of direct; 0: half a rank's
	split       *headSplit
	groups      *Job // the ring of a member of each group; nil without a head exchange

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

// Option asks for something else than the usual of a Job.
type Option func(*Job)

// GradientsAs has the sums of gradients travel as d: F32, the usual, or BF16, for which
// the sender rounds them to nearest, ties to even. What is received is added in float32
// either way.
func GradientsAs(d DType) Option { return func(j *Job) { j.Wire = d } }

// StageTokens bounds the stages of the direct schedule: at most so many tokens each, at
// least one. The usual is half of what a rank holds.
func StageTokens(n int) Option { return func(j *Job) { j.stageTokens = n } }

// Ulysses has groups of so many ranks, in order, exchange their heads, so that the schedule
// goes over the groups; 1 is none. The ranks must be whole groups, and the query heads as
// many for each member; the KV heads need not.
func Ulysses(members, heads, kvHeads int) Option {
	return func(j *Job) { j.split = &headSplit{members, heads, kvHeads} }
}

// NewJob solves who needs what of whom and which way it goes. Two levels need to know
// the node of each rank; nil: all are on one.
func NewJob(b *segments.Batch, schedule string, nodes Nodes, options ...Option) (*Job, error) {
	j := &Job{Batch: b, Schedule: schedule}
	for _, o := range options {
		o(j)
	}
	if j.Wire != F32 && j.Wire != BF16 {
		return nil, fmt.Errorf("ring: gradients do not travel as %v, only as %v or %v", j.Wire, F32, BF16)
	}
	j.needed = sync.OnceValue(j.findNeeded)
	if j.split != nil {
		if err := j.split.check(b.Ranks()); err != nil {
			return nil, err
		}
		if j.split.members > 1 {
			return j, j.planGroups(nodes)
		}
		j.split = nil
	}
	switch schedule {
	case "ring":
		j.planner = newRing(b, oneNode(b.Ranks()), j.Wire)
	case "direct":
		j.planner = newDirect(b, j.Wire, j.stageTokens)
	case "two-level":
		if nodes == nil {
			nodes = make(Nodes, b.Ranks())
		}
		g, err := newGrid(nodes)
		if err != nil {
			return nil, err
		}
		j.planner = newRing(b, g, j.Wire)
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
// backward, keys and values again, and the gradients of what it used itself, as they
// travel.
func (j *Job) LeastBytes(rank int, p Pass, s Shape) int64 {
	if h, ok := j.planner.(*headPlanner); ok {
		return h.leastBytes(rank, p, s) + j.groups.LeastBytes(rank/j.Members(), p, j.split.shape(s))
	}
	n := j.needed()
	bytes := n.ofIt[rank] * s.KVTokenBytes()
	if p == Backward {
		bytes += n.byIt[rank] * s.wireTokenBytes(j.Wire)
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
