package segments

import (
	"cmp"
	"math/bits"
	"slices"
	"sort"
)

// dealer deals sections to one rank after another.
type dealer struct {
	grain  int       // sections are cut at multiples of it
	before []int64   // pairs of the queries before a position
	each   share     // of a rank
	rest   []section // what is left to deal, dense to sparse
	sums   tails     // of rest

	// Of the rank at hand:
	due   share // up to it, less what it and those before it have
	left  share // what it is still to get
	slack share
	spans []Span // what it has
}

type share struct {
	pairs  int64
	tokens int
}

// tails sums the shares of sections from any of them on, while they become less: a binary
// indexed tree (P. Fenwick, 1994) from the last section to the first.
type tails struct {
	all  share
	tree []share // tree[m]: of the m & -m sections that end with the m-th from the end
}

func newTails(sections []section) tails {
	t := tails{tree: make([]share, len(sections)+1)}
	for i, x := range slices.Backward(sections) {
		m := len(sections) - i
		n := share{x.pairs, x.Len()}
		t.all.add(n)
		t.tree[m].add(n)
		if next := m + m&-m; next < len(t.tree) {
			t.tree[next].add(t.tree[m])
		}
	}
	return t
}

// less takes a share off section i.
func (t *tails) less(i int, n share) {
	t.all.less(n)
	for m := len(t.tree) - 1 - i; m < len(t.tree); m += m & -m {
		t.tree[m].less(n)
	}
}

// find gives the sum of the fewest sections at the end that have so many tokens, and that
// without the first of them; where all have fewer, twice that of all.
func (t *tails) find(tokens int) (with, without share) {
	m := 0
	for step := 1 << bits.Len(uint(len(t.tree))); step > 0; step /= 2 {
		if m+step < len(t.tree) && without.tokens+t.tree[m+step].tokens < tokens {
			m += step
			without.add(t.tree[m])
		}
	}
	if m+1 == len(t.tree) {
		return t.all, t.all
	}
	// That one section is the difference of nodes that end with it and before it.
	with = without
	with.add(t.tree[m+1])
	for k := m; k > m+1-(m+1)&-(m+1); k -= k & -k {
		with.less(t.tree[k])
	}
	return with, without
}

// section is what is left of a section.
type section struct {
	Span
	pairs int64
}

func (s section) density() float64 { return float64(s.pairs) / float64(s.Len()) }

// denser reports whether a section has more pairs a token than a share, or as many.
func (s section) denser(than share) bool {
	return s.Len() > 0 && s.density()*float64(than.tokens) >= float64(than.pairs)
}

// deal gives the next of so many ranks its spans.
func (d *dealer) deal(ranks int) {
	d.sums = newTails(d.rest)
	if ranks == 1 {
		for i := range d.rest {
			d.take(i, d.rest[i].Span)
		}
		return
	}
	// What those before have too much or too little this rank makes good, up to a limit.
	mean := share{d.sums.all.pairs / int64(ranks), (d.sums.all.tokens + ranks - 1) / ranks}
	d.slack = share{mean.pairs / pairsSlack, mean.tokens / tokensSlack}
	d.due = share{d.due.pairs + d.each.pairs, d.due.tokens + d.each.tokens}
	d.left = share{
		pairs:  min(max(d.due.pairs, mean.pairs-d.slack.pairs), mean.pairs+d.slack.pairs),
		tokens: min(max(d.due.tokens, mean.tokens-d.slack.tokens), mean.tokens+d.slack.tokens),
	}
	dense := d.takeDense()
	if i := d.takeSparse(dense); dense < 0 {
		dense = i
	}
	if dense >= 0 {
		d.takePart(dense, d.left.pairs)
		d.putBack(dense)
	}
	d.rest = slices.DeleteFunc(d.rest, func(x section) bool { return x.Len() == 0 })
}

// takeDense takes dense sections whole, as long as pairs are missing that sparse ones
// will not bring, and returns the index of one to cut; -1: none.
func (d *dealer) takeDense() (cut int) {
	cut = -1
	var kept share // for the part of the one to cut
	for i, x := range d.rest {
		if !x.denser(d.left) {
			continue
		}
		tokens := d.left.tokens - kept.tokens
		missing := d.left.pairs - kept.pairs - d.sparse(tokens)
		if missing <= d.slack.pairs {
			return cut
		}
		// Its tokens take the place of sparse ones.
		more := x.pairs - (d.sparse(tokens) - d.sparse(tokens-x.Len()))
		switch {
		case x.Len() <= tokens+d.slack.tokens && more <= missing+d.slack.pairs:
			d.take(i, x.Span)
		case cut < 0 && missing >= d.each.pairs/4:
			// It is cut into as many parts as it needs, all alike. For a small rest smaller
			// sections, or a part of one of them, are as good.
			parts := max(1, (more+missing-1)/missing)
			cut, kept = i, share{x.pairs / parts, x.Len() / int(parts)}
		}
	}
	if cut >= 0 {
		return cut
	}
	// The sparsest that has the pairs in the tokens that are left, else the densest.
	for i, x := range slices.Backward(d.rest) {
		if x.Len() > 0 {
			cut = i
		}
		if x.denser(d.left) {
			break
		}
	}
	return cut
}

// takeSparse takes sections from the sparse end, until the tokens are there that a part
// of the dense one will not bring. Without a dense one it returns the index of one to
// cut; -1: none.
func (d *dealer) takeSparse(dense int) (cut int) {
	for i := len(d.rest) - 1; i > dense; i-- {
		x := d.rest[i]
		if x.Len() == 0 {
			continue
		}
		before, after := d.missing(dense, share{}), d.missing(dense, share{x.pairs, x.Len()})
		fits := dense >= 0 || x.pairs <= d.left.pairs+d.slack.pairs
		switch {
		case fits && (after >= 0 || -after <= min(before, d.slack.tokens)):
			d.take(i, x.Span)
			continue
		case x.pairs == 0:
			d.take(i, Span{x.Start, x.Start + max(before, 0)})
		case dense < 0:
			return i
		case before > d.slack.tokens:
			pairs := sort.Search(int(x.pairs), func(pairs int) bool {
				head, tail := d.part(i, int64(pairs))
				return d.missing(dense, share{int64(pairs), head.Len() + tail.Len()}) <= 0
			})
			d.takePart(i, int64(pairs))
		}
		break
	}
	return -1
}

// missing is how many tokens are missing after a share and the part of a dense section
// that brings all pairs.
func (d *dealer) missing(dense int, after share) int {
	tokens := d.left.tokens - after.tokens
	if dense >= 0 {
		head, tail := d.part(dense, d.left.pairs-after.pairs)
		tokens -= head.Len() + tail.Len()
	}
	return tokens
}

// part cuts so many pairs off a section: a head where that brings few more tokens than
// are due; a tail where no head of a rank's pairs brings many; some of both else.
func (d *dealer) part(i int, pairs int64) (head, tail Span) {
	x := d.rest[i]
	pairs = min(max(pairs, 0), x.pairs)
	due := mulDiv(pairs, x.Len(), x.pairs)
	n := sort.Search(x.Len(), func(n int) bool { return d.pairs(Span{x.Start, x.Start + n}) >= pairs })
	half := Span{x.Start, min(x.Start+d.each.tokens/2, x.End)}
	switch {
	case n <= due+due/pieceSlack:
		return Span{x.Start, x.Start + n}, Span{x.End, x.End}
	case d.pairs(half) >= min(d.each.pairs, x.pairs):
		n = 0
	default:
		n = sort.Search(due, func(n int) bool {
			return d.pairs(Span{x.Start, x.Start + n})+d.pairs(Span{x.End - (due - n), x.End}) <= pairs
		})
		if n <= due/pieceSlack {
			n = 0
		}
	}
	head = Span{x.Start, x.Start + n}
	pairs -= d.pairs(head)
	n = sort.Search(x.Len()-n, func(n int) bool { return d.pairs(Span{x.End - n, x.End}) >= pairs })
	return head, Span{x.End - n, x.End}
}

func (d *dealer) takePart(i int, pairs int64) {
	head, tail := d.part(i, pairs)
	d.take(i, head)
	d.take(i, tail)
}

// whole is the multiple of the grain that is nearest to so many tokens.
func (d *dealer) whole(tokens int) int { return (tokens + d.grain/2) / d.grain * d.grain }

// take gives the rank a span at the start or the end of a section, in whole grains, or all
// of it.
func (d *dealer) take(i int, s Span) {
	x := &d.rest[i]
	switch {
	case s == x.Span:
		x.Start = x.End
	case s.Start == x.Start:
		s.End = min(s.Start+d.whole(s.Len()), x.End)
		x.Start = s.End
	default:
		s.Start = max(s.End-d.whole(s.Len()), x.Start)
		x.End = s.Start
	}
	n := share{d.pairs(s), s.Len()}
	x.pairs -= n.pairs
	d.sums.less(i, n)
	d.left.less(n)
	d.due.less(n)
	d.spans = append(d.spans, s)
}

func (s *share) add(n share)  { s.pairs, s.tokens = s.pairs+n.pairs, s.tokens+n.tokens }
func (s *share) less(n share) { s.pairs, s.tokens = s.pairs-n.pairs, s.tokens-n.tokens }

// putBack gives a section that was cut its place: the first, so that it is finished
// before another is cut, as long as it is denser than all that is left.
func (d *dealer) putBack(i int) {
	x := d.rest[i]
	if x.Len() == 0 {
		return
	}
	d.rest = slices.DeleteFunc(slices.Delete(d.rest, i, i+1), func(x section) bool { return x.Len() == 0 })
	at := 0
	if !x.denser(d.sums.all) {
		at, _ = slices.BinarySearchFunc(d.rest, x, func(a, b section) int { return cmp.Compare(b.density(), a.density()) })
	}
	d.rest = slices.Insert(d.rest, at, x)
}

// sparse is the pairs of so many tokens from the sparse end.
func (d *dealer) sparse(tokens int) int64 {
	if tokens <= 0 {
		return 0
	}
	a, b := d.sums.find(tokens)
	if a == b {
		return a.pairs
	}
	return b.pairs + int64(mulDiv(a.pairs-b.pairs, tokens-b.tokens, int64(a.tokens-b.tokens)))
}

// mulDiv is a b / c, rounded down, without overflow; 0 for c = 0.
func mulDiv(a int64, b int, c int64) int {
	if c == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int(q)
}
