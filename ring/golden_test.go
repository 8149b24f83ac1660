package ring_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ringattn/ring"
	"ringattn/segments"
)

var update = flag.Bool("update", false, "write the golden plans anew; review the diff")

// The plans of a few small jobs, as text: what changes a plan shows up as a diff.
func TestGoldenPlans(t *testing.T) {
	doc := func(n int) []segments.Row { return []segments.Row{segments.SingleDocument(n)} }
	packed := segments.NewRow(16, []int64{1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 0, 0}, nil, nil)
	documents := segments.Mask{Causal: true, Rows: []segments.Row{packed}}
	balanced, err := segments.Balanced(16, 4, documents)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		layout   segments.Layout
		mask     segments.Mask
		schedule string
		options  []ring.Option
	}{
		"one_rank":          {segments.Contiguous(8, 1), segments.Mask{Causal: true, Rows: doc(8)}, "ring", nil},
		"causal_contiguous": {segments.Contiguous(16, 4), segments.Mask{Causal: true, Rows: doc(16)}, "ring", nil},
		"causal_zigzag":     {segments.Zigzag(16, 4), segments.Mask{Causal: true, Rows: doc(16)}, "ring", nil},
		"full":              {segments.Contiguous(9, 3), segments.Mask{Rows: doc(9)}, "ring", nil},
		"window":            {segments.Contiguous(16, 4), segments.Mask{Causal: true, Window: 3, Rows: doc(16)}, "ring", nil},
		"documents":         {segments.Contiguous(16, 4), documents, "ring", nil},
		"fewer_tokens":      {segments.Contiguous(2, 4), segments.Mask{Rows: doc(2)}, "ring", nil},
		"two_level":         {segments.Zigzag(16, 4), segments.Mask{Causal: true, Rows: doc(16)}, "two-level", nil},
		"direct_zigzag":     {segments.Zigzag(16, 4), segments.Mask{Causal: true, Rows: doc(16)}, "direct", nil},
		"direct_balanced":   {balanced, documents, "direct", nil},
		"bf16_zigzag":       {segments.Zigzag(8, 2), segments.Mask{Causal: true, Rows: doc(8)}, "ring", []ring.Option{ring.GradientsAs(ring.BF16)}},
		"heads":             {segments.Zigzag(16, 4), segments.Mask{Causal: true, Rows: doc(16)}, "ring", []ring.Option{ring.Ulysses(2, 4, 1)}},
		"bf16_direct":       {segments.Contiguous(8, 2), segments.Mask{Rows: doc(8)}, "direct", []ring.Option{ring.GradientsAs(ring.BF16), ring.StageTokens(2)}},
	} {
		job := mustSchedule(t, c.layout, c.mask, c.schedule, c.options...)
		var text strings.Builder
		for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
			for rank := range job.Ranks() {
				fmt.Fprintf(&text, "rank %d, %v\n", rank, p)
				for s := range job.Plan(rank, p) {
					fmt.Fprintf(&text, "  %2d  %v\n", s.Round, s)
				}
			}
		}
		path := filepath.Join("testdata", "plans", name+".txt")
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), text.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Steps that nobody needs are not there: the number of chunks that each rank
// receives (CASES C6 for the windows).
func TestNobodyReceivesWhatItDoesNotNeed(t *testing.T) {
	doc := []segments.Row{segments.SingleDocument(16)}
	for _, c := range []struct {
		name string
		mask segments.Mask
		want []int
	}{
		{"causal", segments.Mask{Causal: true, Rows: doc}, []int{0, 1, 2, 3}},
		{"full", segments.Mask{Rows: doc}, []int{3, 3, 3, 3}},
		{"window 1", segments.Mask{Causal: true, Window: 1, Rows: doc}, []int{0, 0, 0, 0}},
		{"window 5", segments.Mask{Causal: true, Window: 5, Rows: doc}, []int{0, 1, 1, 1}},
		{"window 6", segments.Mask{Causal: true, Window: 6, Rows: doc}, []int{0, 1, 2, 2}},
		{"window 10", segments.Mask{Causal: true, Window: 10, Rows: doc}, []int{0, 1, 2, 3}},
		// Without causal a window still lets every query look ahead.
		{"window 2, not causal", segments.Mask{Window: 2, Rows: doc}, []int{3, 3, 2, 1}},
		{"a document a rank", segments.Mask{Rows: []segments.Row{segments.NewRow(16, []int64{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4}, nil, nil)}}, []int{0, 0, 0, 0}},
	} {
		job := mustJob(t, segments.Contiguous(16, 4), c.mask)
		for rank, want := range c.want {
			got := map[int]bool{}
			for s := range job.Plan(rank, ring.Forward) {
				if s.Op == ring.Recv {
					got[s.Owner] = true
				}
			}
			if len(got) != want {
				t.Errorf("%s: rank %d receives of %d chunks, want %d", c.name, rank, len(got), want)
			}
		}
	}
}

// slotTokens is for how many tokens a rank has slots backward: of keys, of gradients.
func slotTokens(job *ring.Job, rank int) (keys, grads int) {
	for slot, n := range ring.SlotTokens(job.PlanOf(rank, ring.Backward)) {
		if slot.Grad {
			grads += n
		} else {
			keys += n
		}
	}
	return keys, grads
}

// No rank has room for more keys and values of others than one and a half chunks,
// nor for more gradients than three and a half, and none for more than is needed.
func TestSlots(t *testing.T) {
	job := mustJob(t, segments.Contiguous(4096, 16), segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(4096)}})
	for rank := range job.Ranks() {
		keys, grads := slotTokens(job, rank)
		if keys > 256*3/2 || grads > 256*7/2 {
			t.Errorf("rank %d has slots for the keys of %d tokens and the gradients of %d", rank, keys, grads)
		}
	}
	// Of a neighbour's 256 tokens a window of 9 reaches 8.
	job = mustJob(t, segments.Contiguous(4096, 16), segments.Mask{Causal: true, Window: 9, Rows: []segments.Row{segments.SingleDocument(4096)}})
	for slot, n := range ring.SlotTokens(job.PlanOf(5, ring.Backward)) {
		if n != 8 {
			t.Errorf("%v holds %d tokens, want 8", slot, n)
		}
	}
}

// With one interval a message the ring sends the least that any schedule can
// for these masks.
func TestBytesAreTheLeast(t *testing.T) {
	shape := ring.Shape{DType: ring.BF16, Heads: 4, KVHeads: 2, HeadDim: 8}
	doc := []segments.Row{segments.SingleDocument(256)}
	for name, c := range map[string]struct {
		layout segments.Layout
		mask   segments.Mask
	}{
		"causal":         {segments.Contiguous(256, 8), segments.Mask{Causal: true, Rows: doc}},
		"causal, zigzag": {segments.Zigzag(256, 8), segments.Mask{Causal: true, Rows: doc}},
		"full":           {segments.Contiguous(256, 8), segments.Mask{Rows: doc}},
		"window":         {segments.Contiguous(256, 8), segments.Mask{Causal: true, Window: 20, Rows: doc}},
	} {
		for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
			job := mustJob(t, c.layout, c.mask)
			var sent, least int64
			for rank := range job.Ranks() {
				least += job.LeastBytes(rank, p, shape)
				for s := range job.Plan(rank, p) {
					if s.Op == ring.Send {
						sent += s.Bytes(shape)
					}
				}
			}
			if sent != least {
				t.Errorf("%s, %v: %d bytes sent, the least is %d", name, p, sent, least)
			}
		}
	}
}
