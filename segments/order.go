package segments

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Piece is a run of consecutive positions of one document of one batch row that
// a rank holds. Its tokens stand at At, At+1 ... in the rank's kernel order.
type Piece struct {
	Row, Doc int
	Pos      Span
	At       int
}

// Order is the kernel order of one rank: its real tokens sorted by (row,
// document, position).
type Order struct {
	Tokens int // padding left out
	Pieces []Piece
	pos    Span // hull of the positions in any row

	// The same again, small: with many documents Need goes over all of it for
	// each pair of ranks, and its time is that of the memory.
	keys      []uint64 // of groups, ascending
	groups    []group
	stretches []stretch // of Pieces
}

// group is a document's part of an Order: the pieces [first, last), n tokens that
// stand at at, at+1 ... and lie at positions from start to below end.
type group struct{ first, last, at, n, start, end int32 }

// stretch is a Piece without its document.
type stretch struct{ start, end, at int32 }

func (g group) pos() Span { return Span{int(g.start), int(g.end)} }

// tokens is the group's part of the kernel order.
func (g group) tokens() Span { return Span{int(g.at), int(g.at + g.n)} }

func (s stretch) pos() Span { return Span{int(s.start), int(s.end)} }

// key orders groups by row and document.
func (p Piece) key() uint64 { return uint64(p.Row)<<32 | uint64(p.Doc) }

// newOrder sorts the tokens of the given spans.
func newOrder(spans []Span, rows []Row) Order {
	var o Order
	for b, row := range rows {
		first := len(o.Pieces)
		for _, s := range spans {
			i, _ := slices.BinarySearchFunc(row.Docs, s.Start, func(d DocRun, at int) int { return cmp.Compare(d.End, at+1) })
			for ; i < len(row.Docs) && row.Docs[i].Start < s.End; i++ {
				o.Pieces = append(o.Pieces, Piece{Row: b, Doc: row.Docs[i].Doc, Pos: s.Intersect(row.Docs[i].Span)})
			}
		}
		sortByDocument(o.Pieces[first:])
	}
	for i := range o.Pieces {
		p := &o.Pieces[i]
		p.At = o.Tokens
		o.Tokens += p.Pos.Len()
		o.pos = o.pos.Hull(p.Pos)
		start, end, at := int32(p.Pos.Start), int32(p.Pos.End), int32(p.At)
		o.stretches = append(o.stretches, stretch{start, end, at})
		if n := len(o.keys); n > 0 && o.keys[n-1] == p.key() {
			g := &o.groups[n-1]
			g.last, g.n, g.end = int32(i+1), g.n+end-start, end
			continue
		}
		o.keys = append(o.keys, p.key())
		o.groups = append(o.groups, group{int32(i), int32(i + 1), at, end - start, start, end})
	}
	return o
}

// sortByDocument sorts the pieces of one row, which come by position. Documents
// are dense numbers, so that counting does it.
func sortByDocument(pieces []Piece) {
	if slices.IsSortedFunc(pieces, func(a, b Piece) int { return cmp.Compare(a.Doc, b.Doc) }) {
		return
	}
	last := 0
	for _, p := range pieces {
		last = max(last, p.Doc)
	}
	next := make([]int, last+2) // where the next piece of a document goes
	for _, p := range pieces {
		next[p.Doc+1]++
	}
	for d := range last {
		next[d+1] += next[d]
	}
	for _, p := range slices.Clone(pieces) {
		pieces[next[p.Doc]] = p
		next[p.Doc]++
	}
}

// Batch is a mask over a layout, solved. It is immutable.
type Batch struct {
	Layout Layout
	Mask   Mask
	orders []Order
}

// NewBatch checks the layout and the mask and sorts the tokens of every rank.
func NewBatch(l Layout, m Mask) (*Batch, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if l.Tokens > math.MaxInt32 || int64(len(m.Rows))*int64(l.Tokens) > math.MaxInt32*int64(l.Ranks()) {
		return nil, fmt.Errorf("segments: %d rows of %d tokens over %d ranks, the limit is %d tokens in a row and on a rank", len(m.Rows), l.Tokens, l.Ranks(), math.MaxInt32)
	}
	if err := m.Validate(l.Tokens); err != nil {
		return nil, err
	}
	if len(m.Rows) == 0 {
		return nil, fmt.Errorf("segments: the batch has no rows")
	}
	if m.Window >= l.Tokens {
		m.Window = 0 // it bounds nothing
	}
	b := &Batch{Layout: l, Mask: m, orders: make([]Order, l.Ranks())}
	for r, spans := range l.Spans {
		b.orders[r] = newOrder(spans, m.Rows)
	}
	return b, nil
}

// Ranks is the number of ranks of the layout.
func (b *Batch) Ranks() int { return len(b.orders) }

// Order is the kernel order of a rank. The caller does not write to it.
func (b *Batch) Order(rank int) *Order { return &b.orders[rank] }

// Shared is a document that a query shard and a key shard both hold a part of:
// the queries and the keys of it, each in its rank's kernel order.
type Shared struct {
	Row, Doc int
	Q, KV    Span
}

// SharedDocuments lists the documents that two shards have in common, in kernel
// order. The masks within a document play no part in it.
func SharedDocuments(q, kv *Order) []Shared {
	var out []Shared
	for i, j := range shared(q, kv) {
		p, g, h := q.Pieces[q.groups[i].first], q.groups[i], kv.groups[j]
		out = append(out, Shared{p.Row, p.Doc, g.tokens(), h.tokens()})
	}
	return out
}

// shared yields the pairs of groups of the same document, as indexes.
func shared(q, kv *Order) func(yield func(i, j int) bool) {
	return func(yield func(i, j int) bool) {
		i, j := 0, 0
		for i < len(q.keys) && j < len(kv.keys) {
			switch a, b := q.keys[i], kv.keys[j]; {
			case a < b:
				i++
			case a > b:
				j++
			default:
				if !yield(i, j) {
					return
				}
				i, j = i+1, j+1
			}
		}
	}
}

func disjoint(spans []Span) error {
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	for i := 1; i < len(spans); i++ {
		if spans[i].Start < spans[i-1].End {
			return fmt.Errorf("segments: spans %v and %v of the layout overlap", spans[i-1], spans[i])
		}
	}
	return nil
}
