// Package segmentstest draws random masks and layouts for property tests.
package segmentstest

import (
	"pgregory.net/rapid"

	"ringattn/segments"
)

// Layout draws a layout of a row of 1..maxTokens tokens over 1..maxRanks ranks:
// contiguous, zigzag, shards of any length, or single tokens dealt at random.
func Layout(t *rapid.T, maxTokens, maxRanks int) segments.Layout {
	tokens := rapid.IntRange(1, maxTokens).Draw(t, "tokens")
	ranks := rapid.IntRange(1, maxRanks).Draw(t, "ranks")
	switch rapid.IntRange(0, 3).Draw(t, "layout") {
	case 0:
		return segments.Contiguous(tokens, ranks)
	case 1:
		return segments.Zigzag(tokens, ranks)
	case 2:
		lengths, left := make([]int, ranks), tokens
		for r := range ranks - 1 {
			lengths[r] = rapid.IntRange(0, left).Draw(t, "length")
			left -= lengths[r]
		}
		lengths[ranks-1] = left
		l, err := segments.Shards(tokens, lengths)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := segments.Layout{Name: "dealt", Tokens: tokens, Spans: make([][]segments.Span, ranks)}
	for i := range tokens {
		r := rapid.IntRange(0, ranks-1).Draw(t, "owner")
		if n := len(l.Spans[r]); n > 0 && l.Spans[r][n-1].End == i {
			l.Spans[r][n-1].End++
			continue
		}
		l.Spans[r] = append(l.Spans[r], segments.Span{Start: i, End: i + 1})
	}
	return l
}

// Mask draws a mask of one to three rows of so many tokens: any mix of causal,
// window, documents (with padding, gaps and ids that return), images and
// padding.
func Mask(t *rapid.T, tokens int) segments.Mask {
	m := segments.Mask{
		Causal: rapid.Bool().Draw(t, "causal"),
		Vision: rapid.Bool().Draw(t, "vision"),
	}
	if rapid.Bool().Draw(t, "windowed") {
		m.Window = rapid.IntRange(1, tokens+2).Draw(t, "window")
	}
	for range rapid.IntRange(1, 3).Draw(t, "rows") {
		var ids, types, pad []int64
		if rapid.Bool().Draw(t, "packed") {
			ids = runs(t, tokens, -1, 4)
		}
		if m.Vision || rapid.Bool().Draw(t, "typed") {
			types = runs(t, tokens, 0, 3)
		}
		if rapid.IntRange(0, 3).Draw(t, "padded") == 0 {
			pad = runs(t, tokens, 0, 1)
		}
		m.Rows = append(m.Rows, segments.NewRow(tokens, ids, types, pad))
	}
	return m
}

// Batch draws a layout, or balances one, and a mask and solves them.
func Batch(t *rapid.T, maxTokens, maxRanks int) *segments.Batch {
	l := Layout(t, maxTokens, maxRanks)
	m := Mask(t, l.Tokens)
	if rapid.IntRange(0, 4).Draw(t, "balanced") == 0 {
		var err error
		if l, err = segments.Balanced(l.Tokens, l.Ranks(), m); err != nil {
			t.Fatal(err)
		}
	}
	b, err := segments.NewBatch(l, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// runs draws values lo..hi in runs of random length.
func runs(t *rapid.T, tokens, lo, hi int) []int64 {
	out := make([]int64, 0, tokens)
	for len(out) < tokens {
		v := rapid.IntRange(lo, hi).Draw(t, "value")
		n := rapid.IntRange(1, min(tokens-len(out), max(1, tokens/2))).Draw(t, "run")
		for range n {
			out = append(out, int64(v))
		}
	}
	return out
}
