package ring_test

import (
	"pgregory.net/rapid"

	"ringattn/ring"
	"ringattn/segments"
	"ringattn/segments/segmentstest"
)

func mustJob(t rapid.TB, l segments.Layout, m segments.Mask) *ring.Job {
	t.Helper()
	return mustSchedule(t, l, m, "ring")
}

// mustSchedule has nodes of two ranks where their number is even.
func mustSchedule(t rapid.TB, l segments.Layout, m segments.Mask, schedule string, options ...ring.Option) *ring.Job {
	t.Helper()
	return mustJobOn(t, l, m, schedule, ring.NodesOf(l.Ranks(), 1+(l.Ranks()+1)%2), options...)
}

func mustJobOn(t rapid.TB, l segments.Layout, m segments.Mask, schedule string, nodes ring.Nodes, options ...ring.Option) *ring.Job {
	t.Helper()
	b, err := segments.NewBatch(l, m)
	if err != nil {
		t.Fatal(err)
	}
	job, err := ring.NewJob(b, schedule, nodes, options...)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// drawJob draws a batch, a schedule, nodes of equally many ranks, in any order, and how
// gradients travel.
func drawJob(t *rapid.T, maxTokens, maxRanks int) *ring.Job {
	b := segmentstest.Batch(t, maxTokens, maxRanks)
	ranks, perNode := b.Ranks(), rapid.IntRange(1, b.Ranks()).Draw(t, "ranks of a node")
	for ranks%perNode > 0 {
		perNode--
	}
	nodes := rapid.Permutation(ring.NodesOf(ranks, perNode)).Draw(t, "nodes")
	options := []ring.Option{ring.GradientsAs(rapid.SampledFrom([]ring.DType{ring.F32, ring.BF16}).Draw(t, "wire"))}
	if n := rapid.IntRange(0, 5).Draw(t, "tokens of a stage"); n > 0 {
		options = append(options, ring.StageTokens(n))
	}
	schedule := rapid.SampledFrom(ring.Schedules).Draw(t, "schedule")
	if rapid.IntRange(0, 2).Draw(t, "head exchange") == 0 && ranks%2 == 0 {
		// Groups of two, of which two levels want each on one node.
		options = append(options, ring.Ulysses(2, testShape.Heads, testShape.KVHeads))
		for i := range nodes {
			nodes[i] = 0
		}
	}
	return mustJobOn(t, b.Layout, b.Mask, schedule, nodes, options...)
}
