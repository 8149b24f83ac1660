package ring_test

import (
	"fmt"
	"slices"
	"testing"

	"ringattn/ring"
	"ringattn/segments"
)

// On links that the exchange keeps busy for 80% of the kernel time a plan leaves at
// most 15% of it exposed, on a machine that is modelled: a visible pair takes one unit
// of time, and the link of each rank carries the messages whose send and receive are
// both posted, side by side, those of the rank that sends or receives most in 80% of
// the busiest rank's kernels.
//
// Under a causal mask contiguous shards give the ranks work from 1 to 2 ranks - 1.
// Most wait for the last one, on any link; what is bounded there is how much later it
// is. Two such ranks are left out: keys go one way and gradients the other, each for
// 80% of the time, and gradients wait for keys. So are three and four ranks of zigzag
// with the direct schedule: links are as fast as the one that carries most needs, and it
// carries nothing at the start.
func TestExchangeHides(t *testing.T) {
	const tokens, part, most = 2048, 0.8, 0.15
	doc := []segments.Row{segments.SingleDocument(tokens)}
	for _, c := range []struct {
		name     string
		layout   func(tokens, ranks int) segments.Layout
		mask     segments.Mask
		schedule string
		ranks    []int
		balanced bool
	}{
		{"full", segments.Contiguous, segments.Mask{Rows: doc}, "ring", []int{2, 3, 4, 8}, true},
		{"causal, zigzag", segments.Zigzag, segments.Mask{Causal: true, Rows: doc}, "ring", []int{2, 3, 4, 8}, true},
		{"causal, contiguous", segments.Contiguous, segments.Mask{Causal: true, Rows: doc}, "ring", []int{3, 4, 8}, false},
		{"full, direct", segments.Contiguous, segments.Mask{Rows: doc}, "direct", []int{2, 3, 4, 8}, true},
		{"causal, zigzag, direct", segments.Zigzag, segments.Mask{Causal: true, Rows: doc}, "direct", []int{2, 8, 16}, true},
	} {
		for _, ranks := range c.ranks {
			job := mustSchedule(t, c.layout(tokens, ranks), c.mask, c.schedule)
			for _, dtype := range []ring.DType{ring.F32, ring.BF16} {
				shape := ring.Shape{DType: dtype, Heads: 1, KVHeads: 1, HeadDim: 64}
				for _, pass := range []ring.Pass{ring.Forward, ring.Backward} {
					name := fmt.Sprintf("%s, %d ranks, %v, %v", c.name, ranks, dtype, pass)
					plans := job.Plans(pass)
					m := newModel(plans, shape)
					m.bytesPerTime = busiest(plans, shape) / (part * m.mostWork)
					m.run(t)
					if exposed := m.exposed / m.work; c.balanced && exposed > most {
						t.Errorf("%s: %.1f%% of the kernel time are exposed", name, 100*exposed)
					}
					if later := m.time/m.mostWork - 1; later > most {
						t.Errorf("%s: %.1f%% later than without a link", name, 100*later)
					}
				}
			}
		}
	}
}

// Links that carry a shard's keys and values in 80% of a mean forward step leave at most
// 5% of the forward kernels exposed, and 12% of the backward ones, which take 2.5 times as
// long and whose gradients are twice as large.
func TestZigzagHidesHops(t *testing.T) {
	const tokens, ranks, part = 2048, 8, 0.8
	doc := []segments.Row{segments.SingleDocument(tokens)}
	job := mustJob(t, segments.Zigzag(tokens, ranks), segments.Mask{Causal: true, Rows: doc})
	shape := ring.Shape{DType: ring.BF16, Heads: 1, KVHeads: 1, HeadDim: 64}
	for pass, c := range []struct{ cost, most float64 }{{1, 0.05}, {2.5, 0.12}} {
		m := newModel(job.Plans(ring.Pass(pass)), shape)
		step := m.work / ranks / ranks
		hop := float64(tokens/ranks) * float64(shape.KVTokenBytes())
		m.bytesPerTime = hop / (part * step / c.cost)
		m.run(t)
		if exposed := m.exposed / m.work; exposed > c.most {
			t.Errorf("%v: %.1f%% of the kernel time are exposed", ring.Pass(pass), 100*exposed)
		}
	}
}

// model is a machine that carries out plans in steps of time.
type model struct {
	shape        ring.Shape
	ranks        []modelRank
	messages     map[modelKey]*modelMessage
	bytesPerTime float64
	time         float64

	exposed, work, mostWork float64
}

type modelRank struct {
	steps   []ring.Step
	kernels []float64 // enqueued: the time that each still takes
	done    int       // kernels
	slots   map[ring.Slot]*modelSlot
	sends   []*modelMessage // not through yet
	posted  map[[3]int]int  // by peer, tag and op: how many so far
}

type modelSlot struct {
	kernel   int // so many must be done
	messages []*modelMessage
}

// modelKey is the n-th message of one rank to another with one tag.
type modelKey struct{ from, to, tag, n int }

type modelMessage struct {
	posted int // ends of it
	bytes  float64
}

func newModel(plans [][]ring.Step, shape ring.Shape) *model {
	m := &model{shape: shape, ranks: make([]modelRank, len(plans)), messages: map[modelKey]*modelMessage{}}
	for i, steps := range plans {
		m.ranks[i] = modelRank{steps: steps, slots: map[ring.Slot]*modelSlot{}, posted: map[[3]int]int{}}
		var work float64
		for _, s := range steps {
			work += float64(s.Pairs)
		}
		m.work, m.mostWork = m.work+work, max(m.mostWork, work)
	}
	return m
}

func (m *model) run(t *testing.T) {
	step := m.mostWork / 2000
	for {
		for moved := true; moved; {
			moved = false
			for i := range m.ranks {
				for len(m.ranks[i].steps) > 0 && m.take(i, m.ranks[i].steps[0]) {
					m.ranks[i].steps, moved = m.ranks[i].steps[1:], true
				}
			}
		}
		busy := false
		for i := range m.ranks {
			busy = m.ranks[i].pass(m, step) || busy
		}
		if !busy {
			return
		}
		if m.time += step; m.time > 10*m.mostWork {
			t.Fatal("a plan does not end")
		}
	}
}

func (r *modelRank) slot(s ring.Slot) *modelSlot {
	if r.slots[s] == nil {
		r.slots[s] = &modelSlot{}
	}
	return r.slots[s]
}

// take starts what a step starts; false: it has to wait.
func (m *model) take(rank int, s ring.Step) bool {
	r := &m.ranks[rank]
	slot := r.slot(s.Slot)
	switch s.Op {
	case ring.Send, ring.Recv:
		n := r.posted[[3]int{s.Peer, s.Tag(), int(s.Op)}]
		r.posted[[3]int{s.Peer, s.Tag(), int(s.Op)}]++
		key := modelKey{rank, s.Peer, s.Tag(), n}
		if s.Op == ring.Recv {
			key.from, key.to = s.Peer, rank
		}
		if m.messages[key] == nil {
			m.messages[key] = &modelMessage{bytes: float64(s.Bytes(m.shape))}
		}
		x := m.messages[key]
		x.posted++
		slot.messages = append(slot.messages, x)
		if s.Op == ring.Send {
			r.sends = append(r.sends, x)
		}
	case ring.Wait:
		if r.done < slot.kernel || slices.ContainsFunc(slot.messages, func(x *modelMessage) bool { return x.bytes > 0 }) {
			return false
		}
		slot.messages = nil
	default:
		r.kernels = append(r.kernels, float64(s.Pairs))
		slot.kernel = len(r.kernels)
		if s.Acc.Grad {
			r.slot(s.Acc).kernel = len(r.kernels)
		}
	}
	return true
}

// pass lets time go by on a rank, and reports whether it was not at its end.
func (r *modelRank) pass(m *model, time float64) bool {
	busy := len(r.steps) > 0 || r.done < len(r.kernels)
	var under []*modelMessage
	for _, x := range r.sends {
		if x.posted == 2 {
			under = append(under, x)
		}
	}
	for _, x := range under {
		x.bytes -= time * m.bytesPerTime / float64(len(under))
	}
	r.sends = slices.DeleteFunc(r.sends, func(x *modelMessage) bool { return x.bytes <= 0 })
	for ; r.done < len(r.kernels); r.done++ {
		k := &r.kernels[r.done]
		if *k > time {
			*k -= time
			return busy
		}
		time -= *k
	}
	if len(r.steps) > 0 {
		m.exposed += time
	}
	return busy
}
