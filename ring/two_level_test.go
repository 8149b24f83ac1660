package ring_test

import (
	"testing"

	"ringattn/ring"
	"ringattn/segments"
)

// crossings counts the tokens whose keys, or gradients, each rank sends to other nodes.
func crossings(job *ring.Job, nodes ring.Nodes, p ring.Pass, grad bool) (all, most int) {
	for rank := range job.Ranks() {
		n := 0
		for s := range job.Plan(rank, p) {
			if s.Op == ring.Send && s.Slot.Grad == grad && nodes[s.Peer] != nodes[rank] {
				n += s.Range.Len()
			}
		}
		all, most = all+n, max(most, n)
	}
	return all, most
}

// Keys cross to each other node once, and their gradients come home from each once; no
// rank's link carries more than its own. Along a flat ring the last rank of each node
// carries those of all others.
func TestTwoLevelsCrossOnce(t *testing.T) {
	const ranks, shard = 8, 16
	doc := []segments.Row{segments.SingleDocument(ranks * shard)}
	scattered := ring.Nodes{0, 1, 1, 0, 0, 1, 0, 1}
	for _, c := range []struct {
		name   string
		layout segments.Layout
		mask   segments.Mask
		nodes  ring.Nodes
	}{
		{"full", segments.Contiguous(ranks*shard, ranks), segments.Mask{Rows: doc}, ring.NodesOf(ranks, 4)},
		{"full, scattered", segments.Contiguous(ranks*shard, ranks), segments.Mask{Rows: doc}, scattered},
		{"full, four nodes", segments.Contiguous(ranks*shard, ranks), segments.Mask{Rows: doc}, ring.NodesOf(ranks, 2)},
		{"causal, zigzag", segments.Zigzag(ranks*shard, ranks), segments.Mask{Causal: true, Rows: doc}, ring.NodesOf(ranks, 4)},
	} {
		job := mustJobOn(t, c.layout, c.mask, "two-level", c.nodes)
		others := 1
		for _, n := range c.nodes {
			others = max(others, n)
		}
		want := others * ranks * shard
		if c.mask.Causal { // the later half of a node's shards sees nobody on the other
			want = ranks*shard - ranks/2*shard/2
		}
		for p := ring.Forward; p <= ring.Backward; p++ {
			for _, grad := range []bool{false, true}[:p+1] {
				if all, most := crossings(job, c.nodes, p, grad); all != want || most > others*shard {
					t.Errorf("%s, %v, gradients %v: %d tokens cross, want %d; one rank sends %d, want at most %d", c.name, p, grad, all, want, most, others*shard)
				}
			}
		}
	}
	flat := mustJob(t, segments.Contiguous(ranks*shard, ranks), segments.Mask{Rows: doc})
	if all, most := crossings(flat, ring.NodesOf(ranks, 4), ring.Forward, false); all != 14*shard || most != 7*shard {
		t.Errorf("along a flat ring %d tokens cross, and one rank sends %d", all, most)
	}
}

func TestTwoLevelsNeedEqualNodes(t *testing.T) {
	b, err := segments.NewBatch(segments.Contiguous(6, 3), segments.Mask{Rows: []segments.Row{segments.SingleDocument(6)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ring.NewJob(b, "two-level", ring.NodesOf(3, 2)); err == nil {
		t.Error("nodes of two ranks and of one are accepted")
	}
}
