package ring_test

import (
	"math"
	"testing"

	"ringattn/ring"
	"ringattn/segments"
)

// Predictions of two ranks that exchange their shards are those that one gets by hand.
func TestPredictions(t *testing.T) {
	const tokens = 64
	mask := segments.Mask{Rows: []segments.Row{segments.SingleDocument(tokens)}}
	shape := ring.Shape{DType: ring.F32, Heads: 1, KVHeads: 1, HeadDim: 1}
	machine := ring.Machine{Flops: 4, Link: 1e18, NodeLink: 1e18} // a pair a second
	for _, schedule := range ring.Schedules {
		job := mustSchedule(t, segments.Contiguous(tokens, 2), mask, schedule)
		for pass, pairTime := range []float64{1, 2.5} {
			kernels := pairTime * tokens * tokens / 2
			x := job.Predict(ring.Pass(pass), shape, machine, nil)
			if math.Abs(x.Time-kernels) > 1e-6*kernels || math.Abs(x.Kernel-kernels) > 1e-6*kernels || x.Exposed > 1e-6*kernels {
				t.Errorf("%s, %v, a fast link: %+v, want %v s", schedule, ring.Pass(pass), x, kernels)
			}
		}
		// Keys that come when the own half is long done: then the halves of the other
		// shard, as they come.
		slow := machine
		slow.Link = float64(tokens/2) * float64(shape.KVTokenBytes()) / (4 * tokens * tokens)
		want := 4*tokens*tokens + tokens*tokens/4/2.0
		if x := job.Predict(ring.Forward, shape, slow, nil); math.Abs(x.Time-want) > 1e-6*want {
			t.Errorf("%s, a slow link: %+v, want %v s", schedule, x, want)
		}
		// The same link between two nodes, and a fast one within them.
		apart := machine
		apart.NodeLink = slow.Link
		if a, b := job.Predict(ring.Forward, shape, slow, nil), job.Predict(ring.Forward, shape, apart, ring.NodesOf(2, 1)); a != b {
			t.Errorf("%s: %+v over a slow link, %+v over one between nodes", schedule, a, b)
		}
	}
}
