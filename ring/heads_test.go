package ring_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/segments"
)

// headJobs are jobs with a head exchange: members share the one KV head of testShape.
func headJobs(t *testing.T) map[string]*ring.Job {
	rows := []segments.Row{segments.SingleDocument(24), segments.NewRow(24, slices.Repeat([]int64{1, 1, 2, 0}, 6), nil, nil)}
	causal, full := segments.Mask{Causal: true, Rows: rows}, segments.Mask{Rows: rows}
	two := ring.Ulysses(2, testShape.Heads, testShape.KVHeads)
	return map[string]*ring.Job{
		"one group":  mustSchedule(t, segments.Contiguous(24, 2), causal, "ring", two),
		"zigzag":     mustSchedule(t, segments.Zigzag(24, 4), causal, "ring", two),
		"direct":     mustSchedule(t, segments.Zigzag(24, 6), causal, "direct", two, ring.GradientsAs(ring.BF16)),
		"nodes":      mustJobOn(t, segments.Zigzag(24, 8), full, "two-level", ring.NodesOf(8, 4), two),
		"few tokens": mustSchedule(t, segments.Contiguous(24, 30), causal, "ring", two),
	}
}

// Late and unordered messages change no bit of a head exchange, nor do late kernels.
func TestHeadExchangeWaits(t *testing.T) {
	deliver := []inproc.Option{
		inproc.Reorder(3), inproc.PieceBytes(40), inproc.Delay(func(src, dst, tag int, _ int64) time.Duration {
			return time.Duration(src*7+tag*3+dst) % 4 * time.Millisecond
		}),
	}
	for name, job := range headJobs(t) {
		want, errs := runJob(job, time.Minute)
		late, more := runOn(job, lateBy(time.Millisecond), nil, time.Minute)
		errs = append(errs, more...)
		got, more := runJob(job, time.Minute, deliver...)
		if err := errors.Join(append(errs, more...)...); err != nil {
			t.Fatal(err)
		}
		if !same(want, got) || !same(want, late) {
			t.Errorf("%s: results differ", name)
		}
	}
}

// A lost message of each tensor ends in an error that names it.
func TestLostHeadsEndInTime(t *testing.T) {
	job := headJobs(t)["zigzag"]
	for tensor := ring.TensorQ; tensor <= ring.TensorDKV; tensor++ {
		lost := ring.FirstTag + int(tensor)
		_, errs := runJob(job, 200*time.Millisecond, inproc.Drop(func(src, dst, tag int, _ int64) bool { return tag == lost && src == 2 && dst == 3 }))
		err := errors.Join(errs...)
		if !errors.Is(err, ring.ErrTimeout) || !strings.Contains(err.Error(), "no answer from rank 2 ") || !strings.Contains(err.Error(), fmt.Sprintf("(tag %d,", lost)) {
			t.Errorf("%v: the error is %v", tensor, err)
		}
	}
}

// Check objects to every wrong version of a step, where four members share two KV heads; to
// a plan without a message of the exchange, though neither end has it; and to one that
// sends two of them to each other's receiver.
func TestCheckObjectsToLostAndMisroutedHeads(t *testing.T) {
	mask := segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(32)}}
	job := mustSchedule(t, segments.Zigzag(32, 8), mask, "ring", ring.Ulysses(4, 8, 2))
	for p := ring.Forward; p <= ring.Backward; p++ {
		plans := job.Plans(p)
		if err := job.Check(p, plans); err != nil {
			t.Fatal(err)
		}
		for _, rank := range []int{0, 5} {
			for i, s := range plans[rank] {
				for name, mutant := range mutants(job, s) {
					changed := slices.Clone(plans)
					changed[rank] = slices.Concat(plans[rank][:i], mutant, plans[rank][i+1:])
					if job.Check(p, changed) == nil {
						t.Errorf("%v, rank %d, step %d (%v): Check passes a plan with %s", p, rank, i, s, name)
					}
				}
			}
		}
		messages := 0
		for rank, steps := range plans {
			for i, s := range steps {
				if s.Op != ring.Send || s.Tensor == ring.NoTensor {
					continue
				}
				messages++
				lost := slices.Clone(plans)
				lost[rank] = slices.Delete(slices.Clone(steps), i, i+1)
				at := slices.IndexFunc(plans[s.Peer], func(r ring.Step) bool {
					return r.Op == ring.Recv && r.Peer == rank && r.Tensor == s.Tensor
				})
				lost[s.Peer] = slices.Delete(slices.Clone(plans[s.Peer]), at, at+1)
				if job.Check(p, lost) == nil {
					t.Errorf("%v, rank %d: nobody misses %v", p, rank, s)
				}
				// The next message of the tensor goes where this one should, and this one there.
				next := slices.IndexFunc(steps[i+1:], func(n ring.Step) bool { return n.Op == ring.Send && n.Tensor == s.Tensor })
				if next < 0 {
					continue
				}
				swapped := slices.Clone(plans)
				swapped[rank] = slices.Clone(steps)
				swapped[rank][i].Peer, swapped[rank][i+1+next].Peer = steps[i+1+next].Peer, s.Peer
				if job.Check(p, swapped) == nil {
					t.Errorf("%v, rank %d: nobody minds that %v goes to rank %d", p, rank, s, swapped[rank][i].Peer)
				}
			}
		}
		if want := 8 * 3 * []int{4, 3}[p]; messages != want {
			t.Errorf("%v: %d messages, want %d", p, messages, want)
		}
	}
}

// What is sent is the least: of each tensor what others compute with, counted here head by
// head, and on the ring what the direct schedule sends of a member's heads. Shares of pairs
// sum to the pairs.
func TestHeadExchangeSendsTheLeast(t *testing.T) {
	const tokens = 48
	mask := segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(tokens)}}
	for _, c := range []struct{ ranks, members, heads, kvHeads, received int }{
		// received: KV heads that a member gets of each other's tokens, duplicates left out
		{4, 2, 4, 2, 1},
		{8, 4, 8, 8, 2},
		{8, 4, 8, 2, 1}, // a KV head for two members
		{6, 2, 6, 3, 2}, // members share the KV head in the middle
		{4, 4, 4, 1, 1},
	} {
		shape := ring.Shape{DType: ring.BF16, Heads: c.heads, KVHeads: c.kvHeads, HeadDim: 8}
		job := mustSchedule(t, segments.Zigzag(tokens, c.ranks), mask, "direct", ring.Ulysses(c.members, c.heads, c.kvHeads))
		groups := mustSchedule(t, segments.Zigzag(tokens, c.ranks/c.members), mask, "direct")
		local, _ := job.Kernels(0, shape)
		var pairs int64
		for rank := range c.ranks {
			var attended int64
			for s := range job.Plan(rank, ring.Forward) {
				attended += s.Pairs
			}
			pairs += job.Share(rank, attended)
			each := int64(tokens/c.ranks) * int64(c.members-1)
			q, kv := int64(c.heads/c.members*8), int64(2*c.received*8)
			forward := each*(2*q+2*kv) + each*(4*q+4*int64(c.heads/c.members))
			backward := each*2*q + each*(4*q+4*kv)
			for p, exchange := range []int64{forward, backward} {
				p := ring.Pass(p)
				want := exchange + groups.LeastBytes(rank/c.members, p, local)
				if least, sent := job.LeastBytes(rank, p, shape), sentBytes(job, rank, p, shape); least != want || sent != want {
					t.Errorf("%+v, rank %d, %v: %d bytes are needed, LeastBytes says %d, %d are sent", c, rank, p, want, least, sent)
				}
			}
		}
		if want := int64(tokens * (tokens + 1) / 2); pairs != want {
			t.Errorf("%+v: shares sum to %d pairs, want %d", c, pairs, want)
		}
	}
}

// What cannot be cut is refused.
func TestHeadExchangeRefusals(t *testing.T) {
	mask := segments.Mask{Rows: []segments.Row{segments.SingleDocument(16)}}
	for _, c := range []struct {
		ranks, members, heads, kvHeads int
		schedule                       string
		perNode                        int
		ok                             bool
	}{
		{4, 2, 4, 4, "ring", 4, true},
		{4, 2, 4, 1, "two-level", 2, true},
		{4, 3, 3, 3, "ring", 4, false},
		{4, 0, 4, 4, "ring", 4, false},
		{4, 2, 3, 3, "ring", 4, false},
		{4, 2, 4, 3, "ring", 4, false},
		{4, 2, 4, 4, "two-level", 1, false},
		{6, 2, 4, 4, "two-level", 3, false},
	} {
		b, err := segments.NewBatch(segments.Contiguous(16, c.ranks), mask)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ring.NewJob(b, c.schedule, ring.NodesOf(c.ranks, c.perNode), ring.Ulysses(c.members, c.heads, c.kvHeads))
		if (err == nil) != c.ok {
			t.Errorf("%+v: the error is %v", c, err)
		}
	}
}

// counted counts what is allocated of a backend.
type counted struct {
	ring.Backend
	bytes int64
}

func (c *counted) Alloc(bytes int64) (unsafe.Pointer, error) {
	c.bytes += bytes
	return c.Backend.Alloc(bytes)
}

// What is planned is allocated, but for the places of tokens that are in a row.
func TestHeadExchangeMemory(t *testing.T) {
	jobs := headJobs(t)
	jobs["bf16"] = mustSchedule(t, segments.Zigzag(24, 4), jobs["zigzag"].Batch.Mask, "ring", ring.GradientsAs(ring.BF16))
	for name, job := range jobs {
		for rank, end := range inproc.New(job.Ranks()) {
			b := &counted{Backend: kernels.Reference()}
			g, err := newRigOn(job, ring.Comm{Transport: end}, b)
			if err != nil {
				t.Fatal(err)
			}
			g.exec.Close()
			_, tokens := job.Kernels(rank, testShape)
			if planned := job.Memory(rank, testShape, true); b.bytes > planned || b.bytes < planned-int64(4*tokens) {
				t.Errorf("%s, rank %d: %d bytes are planned, %d allocated", name, rank, planned, b.bytes)
			}
		}
	}
}
