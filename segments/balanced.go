package segments

import (
	"cmp"
	"fmt"
	"slices"
)

// The balanced layout.
//
// A section is a range of positions that no document crosses in any row; with one row,
// a document. What is in one sees nothing of another, so that a section on one rank
// costs no message. Its density is its pairs a token: a long document is dense, a
// short one sparse. Every rank is to have the same pairs and the same tokens, and that
// fixes the mix: sections are dealt from both ends of the list by density, dense ones
// for the pairs, sparse ones for the tokens that are still missing.
//
// A section that is too large for a rank is dealt from both ends as well: the head of a
// causal document is sparse and its tail dense, so that a share with some of each has
// pairs and tokens in one proportion. (Zigzag does this too, with shares that are all
// alike.) Where a share from one end does as well it is one piece.
//
// Documents of several rows may overlap so that a section is a whole row: a large one
// of these is cut into small sections, whatever sees whatever.
//
// Every machine deals alike: what is compared are whole numbers, or single products and
// quotients of them.

// How far a rank may be from its share so that a section need not be cut: a 200th of its
// pairs, a 50th of its tokens. How many more tokens than are due may come with a share
// from one end of a section: a 40th. In how many sections a rank's share of overlapping
// documents is cut.
const (
	pairsSlack  = 200
	tokensSlack = 50
	pieceSlack  = 40
	overlapCuts = 16
)

// Balanced deals the tokens of a batch to ranks so that visible pairs are even for this
// mask, tokens nearly so, and few documents are on several ranks.
func Balanced(tokens, ranks int, m Mask) (Layout, error) {
	return BalancedPieces(tokens, ranks, 1, m)
}

// BalancedPieces is Balanced that cuts sections at multiples of grain tokens from either
// end alone: nobody holds a part of a document that is shorter, but for the last one. The
// larger the grain, the less even.
func BalancedPieces(tokens, ranks, grain int, m Mask) (Layout, error) {
	if grain < 1 {
		return Layout{}, fmt.Errorf("segments: pieces of %d tokens", grain)
	}
	one, err := NewBatch(Contiguous(tokens, 1), m)
	if err != nil {
		return Layout{}, err
	}
	d := dealer{before: one.pairsBefore(), grain: min(grain, tokens)}
	d.each = share{d.before[tokens] / int64(ranks), tokens / ranks}
	for _, s := range d.sections(tokens, m.Rows) {
		d.rest = append(d.rest, section{s, d.pairs(s)})
	}
	slices.SortStableFunc(d.rest, func(a, b section) int { return cmp.Compare(b.density(), a.density()) })
	l := Layout{Name: "balanced", Tokens: tokens, Spans: make([][]Span, ranks)}
	for r := range ranks {
		d.deal(ranks - r)
		l.Spans[r], d.spans = Join(d.spans), nil
	}
	return l, nil
}

// pairsBefore counts, for each position, the pairs of the queries before it in all rows
// of a batch of one rank.
func (b *Batch) pairsBefore() []int64 {
	before := make([]int64, b.Layout.Tokens+1)
	pieces := b.orders[0].Pieces
	b.walk(0, 0, func(r Run) {
		for t := range r.Q.Len() {
			for r.Q.Start+t >= pieces[0].At+pieces[0].Pos.Len() {
				pieces = pieces[1:]
			}
			lo, hi := r.Interval(t)
			before[pieces[0].Pos.Start+r.Q.Start+t-pieces[0].At+1] += int64(hi - lo)
		}
	})
	for p := range b.Layout.Tokens {
		before[p+1] += before[p]
	}
	return before
}

// pairs is the number of pairs of the queries at some positions.
func (d *dealer) pairs(s Span) int64 { return d.before[s.End] - d.before[s.Start] }

// sections cuts a row where no document crosses.
func (d *dealer) sections(tokens int, rows []Row) (out []Span) {
	var hulls []Span
	for _, row := range rows {
		at := map[int]int{} // of a document, in hulls
		for _, run := range row.Docs {
			i, ok := at[run.Doc]
			if !ok {
				i = len(hulls)
				at[run.Doc], hulls = i, append(hulls, run.Span)
			}
			hulls[i].End = run.End
		}
	}
	slices.SortFunc(hulls, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.End, a.End))
	})
	var last Span
	overlap := false // last holds several documents of some row, or of several rows
	add := func(next Span) {
		grain := last.Len()
		if overlap && (last.Len() > d.each.tokens || d.pairs(last) > d.each.pairs) {
			grain = max(d.whole(d.each.tokens/overlapCuts), d.grain)
		}
		for grain = max(grain, 1); last.Len() > 0; last.Start = min(last.Start+grain, last.End) {
			out = append(out, Span{last.Start, min(last.Start+grain, last.End)})
		}
		if next.Start > last.End {
			out = append(out, Span{last.End, next.Start}) // padding
		}
		last, overlap = next, false
	}
	for _, h := range hulls {
		switch {
		case h == last:
		case h.Start < last.End:
			last.End, overlap = max(last.End, h.End), true
		default:
			add(h)
		}
	}
	add(Span{tokens, tokens})
	return out
}
