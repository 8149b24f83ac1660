package segments_test

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"ringattn/segments"
	"ringattn/segments/segmentstest"
)

// Pairs, counted for each pair of ranks, and tokens are even whatever the mask.
func TestBalancedIsEven(t *testing.T) {
	const tokens, mostPairs, mostTokens = 1 << 20, 1.02, 1.10
	one := segments.SingleDocument(tokens)
	source, prose := segmentstest.Packed(t, "source-files.txt", tokens), segmentstest.Packed(t, "prose-and-manuals.txt", tokens)
	padded := segments.Row{Docs: source.Docs[:200]}
	for name, mask := range map[string]segments.Mask{
		"causal":             {Causal: true, Rows: []segments.Row{one}},
		"full":               {Rows: []segments.Row{one}},
		"window":             {Causal: true, Window: 1024, Rows: []segments.Row{one}},
		"a quarter":          {Causal: true, Window: tokens / 4, Rows: []segments.Row{one}},
		"source files":       {Causal: true, Rows: []segments.Row{source}},
		"prose":              {Causal: true, Rows: []segments.Row{prose}},
		"prose, window":      {Causal: true, Window: 1024, Rows: []segments.Row{prose}},
		"padding":            {Causal: true, Rows: []segments.Row{padded}},
		"two rows":           {Causal: true, Rows: []segments.Row{source, prose}},
		"the same row twice": {Causal: true, Rows: []segments.Row{source, source}},
		"documents of two":   {Causal: true, Rows: []segments.Row{segmentstest.Documents(tokens, func(int) int { return 2 })}},
		"equal documents":    {Causal: true, Rows: []segments.Row{segmentstest.Documents(tokens, func(int) int { return 100000 })}},
	} {
		for _, ranks := range []int{2, 8, 64, 512} {
			l, err := segments.Balanced(tokens, ranks, mask)
			if err != nil {
				t.Fatal(err)
			}
			b, err := segments.NewBatch(l, mask)
			if err != nil {
				t.Fatal(err)
			}
			var all, most int64
			held := 0
			for q := range ranks {
				var pairs int64
				for kv := range ranks {
					pairs += b.Need(q, kv).Pairs
				}
				all, most, held = all+pairs, max(most, pairs), max(held, l.RankTokens(q))
			}
			if x := float64(most) * float64(ranks) / float64(all); x > mostPairs {
				t.Errorf("%s, %d ranks: pairs max/mean %.4f", name, ranks, x)
			}
			if x := float64(held) * float64(ranks) / tokens; x > mostTokens {
				t.Errorf("%s, %d ranks: tokens max/mean %.4f", name, ranks, x)
			}
		}
	}
}

// Documents that fit on ranks whole are on one rank each, and where none can be even
// the pieces of one follow each other, or are from both its ends.
func TestBalancedKeepsTogether(t *testing.T) {
	row := func(lengths ...int) []segments.Row {
		all := 0
		for _, n := range lengths {
			all += n
		}
		return []segments.Row{segmentstest.Documents(all, func(i int) int { return lengths[i] })}
	}
	for _, c := range []struct {
		name   string
		ranks  int
		tokens int
		mask   segments.Mask
		want   string
	}{
		{"equal documents", 2, 16, segments.Mask{Causal: true, Rows: row(4, 4, 4, 4)}, "[[[8,16)] [[0,8)]]"},
		{"causal", 2, 16, segments.Mask{Causal: true, Rows: row(16)}, "[[[0,4) [12,16)] [[4,12)]]"},
		{"full", 4, 16, segments.Mask{Rows: row(16)}, "[[[0,4)] [[4,8)] [[8,12)] [[12,16)]]"},
		{"nothing to see", 2, 6, segments.Mask{Rows: []segments.Row{{}}}, "[[[0,3)] [[3,6)]]"},
		{"fewer tokens", 4, 2, segments.Mask{Rows: row(2)}, ""},
	} {
		l, err := segments.Balanced(c.tokens, c.ranks, c.mask)
		if err == nil {
			err = l.Validate()
		}
		if got := fmt.Sprint(l.Spans); err != nil || c.want != "" && got != c.want {
			t.Errorf("%s: %v, want %v; %v", c.name, got, c.want, err)
		}
	}
	if _, err := segments.Balanced(4, 2, segments.Mask{Window: -1, Rows: row(4)}); err == nil {
		t.Error("a negative window is accepted")
	}
}

// With a grain every cut is at a multiple of it from an end of its document, the layout
// is whole, and pairs are off by no more than what a piece has.
func TestBalancedPieces(t *testing.T) {
	const tokens, ranks = 1 << 16, 8
	docs := segmentstest.Documents(tokens, func(i int) int { return 1000 + 7919*i%9000 })
	for name, mask := range map[string]segments.Mask{
		"one":       {Causal: true, Rows: []segments.Row{segments.SingleDocument(tokens)}},
		"documents": {Causal: true, Rows: []segments.Row{docs}},
	} {
		for _, grain := range []int{1, 64, 1000} {
			l, err := segments.BalancedPieces(tokens, ranks, grain, mask)
			if err != nil {
				t.Fatal(err)
			}
			b, err := segments.NewBatch(l, mask)
			if err != nil {
				t.Fatal(err)
			}
			var all, most int64
			for q := range ranks {
				var pairs int64
				for kv := range ranks {
					pairs += b.Need(q, kv).Pairs
				}
				all, most = all+pairs, max(most, pairs)
				for _, p := range b.Order(q).Pieces {
					doc := mask.Rows[0].Docs[0].Span
					for _, d := range mask.Rows[0].Docs {
						if d.Contains(p.Pos) {
							doc = d.Span
						}
					}
					for _, cut := range []int{p.Pos.Start, p.Pos.End} {
						if (cut-doc.Start)%grain > 0 && (doc.End-cut)%grain > 0 {
							t.Errorf("%s, pieces of %d: %v is cut at %d", name, grain, doc, cut)
						}
					}
				}
			}
			if x := float64(most) * ranks / float64(all); x > 1.25 {
				t.Errorf("%s, pieces of %d: pairs max/mean %.3f", name, grain, x)
			}
		}
	}
	if _, err := segments.BalancedPieces(4, 2, 0, segments.Mask{Rows: []segments.Row{segments.SingleDocument(4)}}); err == nil {
		t.Error("pieces of no tokens are accepted")
	}
}

// A grain of more than all tokens is that of all tokens, also where documents of two rows
// overlap behind padding.
func TestGrainOfAnySize(t *testing.T) {
	row := func(cut int) segments.Row {
		ids := make([]int64, 64)
		for i := 10; i < len(ids); i++ {
			ids[i] = 1
			if i >= cut {
				ids[i] = 2
			}
		}
		return segments.NewRow(len(ids), ids, nil, nil)
	}
	mask := segments.Mask{Causal: true, Rows: []segments.Row{row(30), row(41)}}
	want, err := segments.BalancedPieces(64, 4, 64, mask)
	if err != nil {
		t.Fatal(err)
	}
	got, err := segments.BalancedPieces(64, 4, math.MaxInt, mask)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
