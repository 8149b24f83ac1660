package ring

import (
	"sort"

	"ringattn/segments"
)

// parts is in how many parts a chunk travels. A rank attends to one while the
// next comes in and the gradients of the last go out: with whole chunks that has
// an end at which nothing is left to compute, as long as a hop, and with two ranks
// there would be little else. Two parts halve it. More would be shorter yet, and
// cost each kernel a share of its speed.
const parts = 2

// part is one part of a rank's chunk, numbered through: part i of rank r is
// parts*r + i.
type part int

func (p part) owner() int { return int(p) / parts }

// span is where the tokens of a part stand in the kernel order of its owner.
func (s *ringPlanner) span(p part) segments.Span {
	tokens, i := s.batch.Order(p.owner()).Tokens, int(p)%parts
	return segments.Span{Start: tokens * i / parts, End: tokens * (i + 1) / parts}
}

// spans are those of all parts of an owner's chunk.
func (s *ringPlanner) spans(owner int) (spans [parts]segments.Span) {
	for i := range spans {
		spans[i] = s.span(part(parts*owner + i))
	}
	return spans
}

// halve cuts the keys of a rank's own chunk where half of its pairs are done.
func halve(b *segments.Batch, rank int) (first, rest segments.Need) {
	tokens, runs := b.Order(rank).Tokens, b.Runs(rank, rank)
	before := func(n int) (pairs int64) {
		for _, r := range runs {
			pairs += r.Within(segments.Span{End: n}).Pairs
		}
		return pairs
	}
	all := before(tokens)
	cut := sort.Search(tokens, func(n int) bool { return 2*before(n) >= all })
	needs := b.Needs(rank, rank, segments.Span{End: cut}, segments.Span{Start: cut, End: tokens})
	return needs[0], needs[1]
}

// overlap reports whether a span has a token in common with one of the list.
func overlap(list []segments.Span, s segments.Span) bool {
	for _, t := range list {
		if t.Intersect(s).Len() > 0 {
			return true
		}
	}
	return false
}
