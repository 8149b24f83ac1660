package segments

import (
	"cmp"
	"fmt"
	"slices"
)

// Layout says which positions of every batch row a rank holds: each row is cut
// by itself, so that a rank holds the same part of all.
type Layout struct {
	Name   string
	Tokens int      // positions of a row
	Spans  [][]Span // Spans[rank]: ascending, disjoint, not touching, non-empty
}

// Ranks is the number of ranks.
func (l Layout) Ranks() int { return len(l.Spans) }

// cut is the i-th of n pieces of a row; the first tokens mod n pieces have one
// token more.
func cut(tokens, n, i int) Span {
	size, more := tokens/n, tokens%n
	start := i*size + min(i, more)
	end := start + size
	if i < more {
		end++
	}
	return Span{start, end}
}

// Contiguous gives rank r the r-th of as many pieces as there are ranks.
func Contiguous(tokens, ranks int) Layout {
	l := Layout{Name: "contiguous", Tokens: tokens, Spans: make([][]Span, ranks)}
	for r := range ranks {
		l.Spans[r] = join(cut(tokens, ranks, r))
	}
	return l
}

// Zigzag gives rank r the pieces r and 2P-1-r of 2P, so that under a causal
// mask of one document every rank has the same work.
func Zigzag(tokens, ranks int) Layout {
	l := Layout{Name: "zigzag", Tokens: tokens, Spans: make([][]Span, ranks)}
	for r := range ranks {
		l.Spans[r] = join(cut(tokens, 2*ranks, r), cut(tokens, 2*ranks, 2*ranks-1-r))
	}
	return l
}

// Shards gives rank r the next lengths[r] tokens. The lengths must sum to
// tokens.
func Shards(tokens int, lengths []int) (Layout, error) {
	l := Layout{Name: "shards", Tokens: tokens, Spans: make([][]Span, len(lengths))}
	at := 0
	for r, n := range lengths {
		if n < 0 || n > tokens-at {
			return Layout{}, fmt.Errorf("segments: the shard of rank %d has %d tokens, %d of %d are left for it", r, n, tokens-at, tokens)
		}
		l.Spans[r] = join(Span{at, at + n})
		at += n
	}
	if at != tokens {
		return Layout{}, fmt.Errorf("segments: the shards hold %d tokens together, the sequence has %d", at, tokens)
	}
	return l, nil
}

// Join makes the spans of a rank of pieces that do not overlap, in any order.
func Join(pieces []Span) []Span {
	pieces = slices.Clone(pieces)
	slices.SortFunc(pieces, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	return join(pieces...)
}

// join drops empty spans and merges touching ones.
func join(spans ...Span) []Span {
	var out []Span
	for _, s := range spans {
		if s.Len() <= 0 {
			continue
		}
		if n := len(out); n > 0 && out[n-1].End == s.Start {
			out[n-1].End = s.End
			continue
		}
		out = append(out, s)
	}
	return out
}

// Validate checks that every position belongs to exactly one rank.
func (l Layout) Validate() error {
	if l.Tokens < 1 {
		return fmt.Errorf("segments: the sequence has %d tokens, want >= 1", l.Tokens)
	}
	if len(l.Spans) < 1 {
		return fmt.Errorf("segments: the layout has no ranks")
	}
	total := 0
	for r, spans := range l.Spans {
		at := -1
		for _, s := range spans {
			if s.Start <= at || s.Len() <= 0 || s.End > l.Tokens {
				return fmt.Errorf("segments: rank %d: span %v is out of order or outside %d tokens", r, s, l.Tokens)
			}
			at, total = s.End, total+s.Len()
		}
	}
	if total != l.Tokens {
		return fmt.Errorf("segments: the spans hold %d tokens together, the sequence has %d", total, l.Tokens)
	}
	owned := make([]Span, 0, len(l.Spans))
	for _, spans := range l.Spans {
		owned = append(owned, spans...)
	}
	return disjoint(owned)
}

// RankTokens is the number of positions of one row that a rank holds, padding
// included.
func (l Layout) RankTokens(rank int) int {
	n := 0
	for _, s := range l.Spans[rank] {
		n += s.Len()
	}
	return n
}
