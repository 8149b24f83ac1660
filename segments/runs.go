package segments

import (
	"cmp"
	"math"
	"slices"
)

// Run is a stretch of queries and what each sees of one key shard: query
// Q.Start+t, 0 <= t < Q.Len(), sees the keys [lo, hi) with lo = Lo, or Lo+t
// where LoMoves, and hi = Hi, or Hi+t where HiMoves. Queries and keys are counted
// in the kernel order of their rank. No query of a run sees nothing.
type Run struct {
	Q                Span
	Lo, Hi           int
	LoMoves, HiMoves bool
}

// Interval is what query Q.Start+t sees.
func (r Run) Interval(t int) (lo, hi int) {
	lo, hi = r.Lo, r.Hi
	if r.LoMoves {
		lo += t
	}
	if r.HiMoves {
		hi += t
	}
	return lo, hi
}

// Keys is the hull of what the queries of r see.
func (r Run) Keys() Span {
	_, hi := r.Interval(r.Q.Len() - 1)
	return Span{r.Lo, hi}
}

// Pairs is the number of visible pairs of r.
func (r Run) Pairs() int64 {
	n := int64(r.Q.Len())
	sum := n * int64(r.Hi-r.Lo)
	if r.HiMoves {
		sum += n * (n - 1) / 2
	}
	if r.LoMoves {
		sum -= n * (n - 1) / 2
	}
	return sum
}

// Runs lists what the queries of rank q see of the keys of rank kv, in order of
// the queries; nil where nothing is seen.
func (b *Batch) Runs(q, kv int) []Run {
	var runs []Run
	b.walk(q, kv, func(r Run) { runs = appendRun(runs, r) })
	return slices.Clip(runs)
}

// KeyRanges lists the keys of rank kv that some query of rank q sees, as
// ascending, disjoint spans of kv's kernel order: what an exchange of the fewest
// bytes would carry.
func (b *Batch) KeyRanges(q, kv int) []Span {
	var spans []Span
	b.walk(q, kv, func(r Run) {
		k := r.Keys()
		if n := len(spans); n > 0 && k.Start <= spans[n-1].End {
			spans[n-1].End = max(spans[n-1].End, k.End)
			return
		}
		spans = append(spans, k)
	})
	return spans
}

// walk emits the runs of a pair of ranks in order of the queries, not merged.
func (b *Batch) walk(q, kv int, emit func(Run)) {
	qo, ko := &b.orders[q], &b.orders[kv]
	view := b.Mask.view()
	for i, j := range shared(qo, ko) {
		g, h := qo.groups[i], ko.groups[j]
		view.inRow(qo.Pieces[g.first].Row)
		switch r := view.reach(g.pos()); {
		case r.none(h.pos()):
		case r.all(h.pos()):
			emit(Run{Q: g.tokens(), Lo: int(h.at), Hi: int(h.at + h.n)})
		default:
			view.walk(qo.Pieces[g.first:g.last], ko.Pieces[h.first:h.last], emit)
		}
	}
}

// rowView answers, for a position of one row, which positions it sees.
type rowView struct {
	mask        *Mask
	images      []Span // nil: none that count
	back, ahead int    // without images position p sees [p+back, p+ahead)
}

const (
	minPos = math.MinInt / 4
	maxPos = math.MaxInt / 4
)

func (m *Mask) view() rowView {
	v := rowView{mask: m, back: minPos, ahead: maxPos}
	if m.Window > 0 {
		v.back = 1 - m.Window
	}
	if m.Causal {
		v.ahead = 1
	}
	return v
}

// inRow makes v that of a row: its images count where the mask looks at them.
func (v *rowView) inRow(row int) {
	if v.mask.Vision {
		v.images = v.mask.Rows[row].Images
	}
}

// reach is what the first and the last of some queries of a document see. The
// bounds never decrease along a document, so that the two tell of all.
type reach struct{ firstLo, firstHi, lastLo, lastHi int }

func (v *rowView) reach(q Span) reach {
	if v.images != nil {
		first, last := v.at(q.Start), v.at(q.End-1)
		return reach{first.lo, first.hi, last.lo, last.hi}
	}
	return reach{q.Start + v.back, q.Start + v.ahead, q.End - 1 + v.back, q.End - 1 + v.ahead}
}

// none reports whether no query sees a key at positions kv; all, whether every
// one sees all of them.
func (r *reach) none(kv Span) bool { return r.lastHi <= kv.Start || r.firstLo >= kv.End }
func (r *reach) all(kv Span) bool  { return r.lastLo <= kv.Start && r.firstHi >= kv.End }

// bounds is what position p sees: positions [lo, hi), valid with the slopes
// loMoves and hiMoves for the next n positions from p on.
type bounds struct {
	lo, hi           int
	loMoves, hiMoves bool
	n                int
}

// at evaluates the rule at position p. Causal and window give [p-W+1, p+1); an
// image block [s, e) that holds p widens it to [min(p-W+1, s), max(p+1, e)).
func (v rowView) at(p int) bounds {
	r := bounds{lo: minPos, hi: maxPos, n: maxPos}
	if v.back != minPos {
		r.lo, r.loMoves = p+v.back, true
	}
	if v.ahead != maxPos {
		r.hi, r.hiMoves = p+v.ahead, true
	}
	if v.images != nil {
		v.widen(p, &r)
	}
	return r
}

// widen adds the image block that holds p, if there is one.
func (v rowView) widen(p int, r *bounds) {
	i, _ := slices.BinarySearchFunc(v.images, p, func(s Span, at int) int { return cmp.Compare(s.End, at+1) })
	if i == len(v.images) {
		return
	}
	s := v.images[i]
	if p < s.Start {
		r.n = s.Start - p
		return
	}
	r.n = s.End - p
	if r.loMoves {
		if r.lo < s.Start {
			r.n = min(r.n, s.Start-r.lo)
		} else {
			r.lo, r.loMoves = s.Start, false
		}
	}
	if r.hiMoves {
		r.hi, r.hiMoves = s.End, false
	}
}

// counter maps positions to places in a kernel order: count(x) is At of the
// first token at a position >= x, for x that never decrease.
type counter struct {
	pieces []Piece
	i      int
}

// count returns the place of x, whether the place moves with x, and for how
// many positions from x on that holds.
func (c *counter) count(x int) (at int, moves bool, n int) {
	for c.i < len(c.pieces) && c.pieces[c.i].Pos.End <= x {
		c.i++
	}
	if c.i == len(c.pieces) {
		last := c.pieces[len(c.pieces)-1]
		return last.At + last.Pos.Len(), false, maxPos
	}
	p := c.pieces[c.i]
	if x < p.Pos.Start {
		return p.At, false, p.Pos.Start - x
	}
	return p.At + x - p.Pos.Start, true, p.Pos.End - x
}

// seek moves c to the first piece that ends after x.
func (c *counter) seek(x int) {
	c.i, _ = slices.BinarySearchFunc(c.pieces, x, func(p Piece, at int) int { return cmp.Compare(p.Pos.End, at+1) })
}

// walk emits the runs of one document: its query pieces against its key pieces.
func (v rowView) walk(queries, keys []Piece, emit func(Run)) {
	lo, hi := counter{pieces: keys}, counter{pieces: keys}
	start := v.at(queries[0].Pos.Start)
	lo.seek(start.lo)
	hi.seek(start.hi)
	for _, piece := range queries {
		for p := piece.Pos.Start; p < piece.Pos.End; {
			see := v.at(p)
			n := min(see.n, piece.Pos.End-p)
			r := Run{}
			var nLo, nHi int
			r.Lo, r.LoMoves, nLo = lo.count(see.lo)
			r.Hi, r.HiMoves, nHi = hi.count(see.hi)
			if see.loMoves {
				n = min(n, nLo)
			} else {
				r.LoMoves = false
			}
			if see.hiMoves {
				n = min(n, nHi)
			} else {
				r.HiMoves = false
			}
			at := piece.At + p - piece.Pos.Start
			r.Q = Span{at, at + n}
			if r, ok := r.trim(); ok {
				emit(r)
			}
			p += n
		}
	}
}

// trim takes off the queries that see nothing; the interval is empty at one end
// of a run alone, since hi >= lo throughout and at most one of them moves away
// from the other.
func (r Run) trim() (Run, bool) {
	switch {
	case r.LoMoves == r.HiMoves:
		return r, r.Hi > r.Lo
	case r.HiMoves:
		if r.Hi == r.Lo {
			r.Q.Start++
			r.Hi++
		}
	default:
		r.Q.End = min(r.Q.End, r.Q.Start+r.Hi-r.Lo)
	}
	return r, r.Q.Len() > 0
}

// appendRun appends r, joined to the last run where the two are one.
func appendRun(runs []Run, r Run) []Run {
	if len(runs) == 0 {
		return append(runs, r)
	}
	last := &runs[len(runs)-1]
	if last.Q.End != r.Q.Start {
		return append(runs, r)
	}
	loMoves, loFits := follows(last.Lo, last.LoMoves, last.Q.Len(), r.Lo, r.LoMoves, r.Q.Len())
	hiMoves, hiFits := follows(last.Hi, last.HiMoves, last.Q.Len(), r.Hi, r.HiMoves, r.Q.Len())
	if !loFits || !hiFits {
		return append(runs, r)
	}
	last.Q.End, last.LoMoves, last.HiMoves = r.Q.End, loMoves, hiMoves
	return runs
}

// follows reports whether m values from b on continue n values from a on, and
// with which slope. A single value has any slope.
func follows(a int, aMoves bool, n, b int, bMoves bool, m int) (moves, ok bool) {
	for _, moves := range [2]bool{false, true} {
		if n > 1 && aMoves != moves || m > 1 && bMoves != moves {
			continue
		}
		if end := a; moves && end+n == b || !moves && end == b {
			return moves, true
		}
	}
	return false, false
}
