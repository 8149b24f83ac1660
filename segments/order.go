package segments

import (
	"cmp"
	"fmt"
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
	groups []group
	keys   []uint64 // of groups, ascending
	pos    Span     // hull of the positions in any row
}

// group is a document's part of an Order: the pieces [first, last), tokens
// [at, at+n) of the kernel order, at positions from pos.Start to below pos.End.
type group struct {
	row, doc    int
	first, last int
	at, n       int
	pos         Span
}

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
		if n := len(o.groups); n > 0 && o.groups[n-1].row == p.Row && o.groups[n-1].doc == p.Doc {
			g := &o.groups[n-1]
			g.last, g.n, g.pos.End = i+1, g.n+p.Pos.Len(), p.Pos.End
			continue
		}
		o.keys = append(o.keys, p.key())
		o.groups = append(o.groups, group{row: p.Row, doc: p.Doc, first: i, last: i + 1, at: p.At, n: p.Pos.Len(), pos: p.Pos})
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
	for g, h := range shared(q, kv) {
		out = append(out, Shared{g.row, g.doc, Span{g.at, g.at + g.n}, Span{h.at, h.at + h.n}})
	}
	return out
}

// shared yields the pairs of groups of the same document.
func shared(q, kv *Order) func(yield func(g, h *group) bool) {
	return func(yield func(g, h *group) bool) {
		i, j := 0, 0
		for i < len(q.keys) && j < len(kv.keys) {
			switch a, b := q.keys[i], kv.keys[j]; {
			case a < b:
				i++
			case a > b:
				j++
			default:
				if !yield(&q.groups[i], &kv.groups[j]) {
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
