package ring_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ringattn/ring"
	"ringattn/segments"
)

// Every step of a plan is needed: Check objects to a plan without it, and to one
// where any of its fields says something else.
func TestCheckObjectsToEveryMutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := drawJob(t, 24, 6)
		pass := rapid.SampledFrom([]ring.Pass{ring.Forward, ring.Backward}).Draw(t, "pass")
		plans := job.Plans(pass)
		for rank, steps := range plans {
			for i, s := range steps {
				for name, mutant := range mutants(job, s) {
					changed := slices.Clone(plans)
					changed[rank] = slices.Concat(steps[:i], mutant, steps[i+1:])
					if job.Check(pass, changed) == nil {
						t.Fatalf("rank %d, step %d (%v): Check passes a plan with %s", rank, i, s, name)
					}
				}
			}
		}
	})
}

// mutants are wrong versions of one step, among them none at all.
func mutants(job *ring.Job, s ring.Step) map[string][]ring.Step {
	out := map[string][]ring.Step{"the step deleted": nil, "the step twice": {s, s}}
	add := func(name string, change func(*ring.Step)) {
		m := s
		if change(&m); m != s {
			out[name+fmt.Sprintf(": %v", m)] = []ring.Step{m}
		}
	}
	other := func(rank int) int { return (rank + 1) % job.Ranks() }
	for n := range 8 {
		add("another slot", func(m *ring.Step) { m.Slot.N = n })
		if s.Acc.Grad {
			add("another accumulator", func(m *ring.Step) { m.Acc.N = n })
		}
	}
	add("the other kind of slot", func(m *ring.Step) { m.Slot.Grad = !m.Slot.Grad })
	add("another kind of slot", func(m *ring.Step) { m.Slot.Heads = !m.Slot.Heads })
	if s.Op == ring.Wait {
		return out
	}
	add("another form of gradients", func(m *ring.Step) { m.Wire = ring.BF16 - m.Wire })
	add("another tensor", func(m *ring.Step) { m.Tensor = (m.Tensor + 1) % (ring.TensorDKV + 1) })
	add("other heads", func(m *ring.Step) { m.Heads.Start++ })
	add("more heads", func(m *ring.Step) { m.Heads.End++ })
	if s.Tensor != ring.NoTensor {
		add("no tensor", func(m *ring.Step) { m.Tensor = ring.NoTensor })
	}
	add("another owner", func(m *ring.Step) { m.Owner = other(m.Owner) })
	if s.Op == ring.Recv || s.Op == ring.Send || s.Op == ring.Pack || s.Op == ring.Unpack {
		add("another peer", func(m *ring.Step) { m.Peer = other(m.Peer) })
	}
	if s.Op == ring.Attend {
		add("other pairs", func(m *ring.Step) { m.Pairs++ })
	}
	add("a shorter range", func(m *ring.Step) { m.Range.End-- })
	add("a later range", func(m *ring.Step) { m.Range.Start++ })
	return out
}

// Check proves more than that a plan works on one machine: it must object to
// each of these sketches of a ring that have looked right to someone.
func TestCheckObjectsToKnownMistakes(t *testing.T) {
	batch, err := segments.NewBatch(segments.Contiguous(8, 2), segments.Mask{Rows: []segments.Row{segments.SingleDocument(8)}})
	if err != nil {
		t.Fatal(err)
	}
	job, err := ring.NewJob(batch, "ring", nil)
	if err != nil {
		t.Fatal(err)
	}
	kv1, all := ring.Slot{N: 1}, segments.Span{End: 4}
	plan := func(me int, order ...string) []ring.Step {
		peer := 1 - me
		step := map[string]ring.Step{
			"own":      {Op: ring.Attend, Slot: ring.OwnKV, Owner: me, Range: all, Pairs: 16},
			"peer":     {Op: ring.Attend, Slot: kv1, Owner: peer, Range: all, Pairs: 16},
			"send":     {Op: ring.Send, Slot: ring.OwnKV, Peer: peer, Owner: me, Range: all},
			"recv":     {Op: ring.Recv, Slot: kv1, Peer: peer, Owner: peer, Range: all},
			"wait":     {Op: ring.Wait, Slot: kv1},
			"wait own": {Op: ring.Wait, Slot: ring.OwnKV},
		}
		var out []ring.Step
		for _, name := range order {
			out = append(out, step[name])
		}
		return out
	}
	good := []string{"own", "send", "recv", "wait", "peer", "wait", "wait own"}
	for name, order := range map[string][]string{
		"":                                   good,
		"blocking sends":                     {"own", "send", "wait own", "recv", "wait", "peer", "wait"},
		"attending before the keys are here": {"own", "send", "recv", "peer", "wait", "wait own"},
		"leaving with a send under way":      {"own", "recv", "wait", "peer", "wait", "send"},
		"the own keys last":                  {"send", "recv", "wait", "peer", "wait", "own", "wait own"},
		"the own keys twice":                 {"own", "own", "send", "recv", "wait", "peer", "wait", "wait own"},
		"nobody attends":                     {"send", "recv", "wait", "wait own"},
	} {
		err := job.Check(ring.Forward, [][]ring.Step{plan(0, order...), plan(1, order...)})
		if (err == nil) != (name == "") {
			t.Errorf("%q: Check says %v", name, err)
		}
	}
}
