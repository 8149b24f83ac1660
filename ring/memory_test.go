package ring_test

import (
	"testing"

	"ringattn/ring"
	"ringattn/segments"
)

// What a rank needs does not depend on the number of ranks: with as many tokens each, no chunk,
// slot or interval comes on top.
func TestMemoryDoesNotGrowWithRanks(t *testing.T) {
	const each = 1024
	shape := ring.Shape{DType: ring.BF16, Heads: 8, KVHeads: 2, HeadDim: 64, Scale: 1}
	for _, c := range []struct {
		name   string
		layout func(tokens, ranks int) segments.Layout
		causal bool
	}{
		{"zigzag, causal", segments.Zigzag, true},
		{"contiguous, causal", segments.Contiguous, true},
		{"contiguous, full", segments.Contiguous, false},
	} {
		for _, schedule := range []string{"ring", "direct"} {
			most := map[int]int64{}
			for _, ranks := range []int{8, 48} {
				tokens := each * ranks
				mask := segments.Mask{Causal: c.causal, Rows: []segments.Row{segments.SingleDocument(tokens)}}
				job := mustSchedule(t, c.layout(tokens, ranks), mask, schedule)
				for rank := range ranks {
					most[ranks] = max(most[ranks], job.Memory(rank, shape, true))
				}
			}
			if most[48] != most[8] {
				t.Errorf("%s, %s: %d bytes of the fullest of 48 ranks, %d of 8", c.name, schedule, most[48], most[8])
			}
		}
	}
}
