package segments

import "fmt"

// Span is the half-open interval [Start, End).
type Span struct{ Start, End int }

// Len is the number of integers in s.
func (s Span) Len() int { return s.End - s.Start }

// Intersect is the common part of s and t; its Len is <= 0 where there is none.
func (s Span) Intersect(t Span) Span { return Span{max(s.Start, t.Start), min(s.End, t.End)} }

// Hull is the least span that holds s and t; an empty span adds nothing.
func (s Span) Hull(t Span) Span {
	switch {
	case s.Len() <= 0:
		return t
	case t.Len() <= 0:
		return s
	}
	return Span{min(s.Start, t.Start), max(s.End, t.End)}
}

// Contains reports whether all of t lies in s.
func (s Span) Contains(t Span) bool { return t.Len() <= 0 || s.Start <= t.Start && t.End <= s.End }

func (s Span) String() string { return fmt.Sprintf("[%d,%d)", s.Start, s.End) }

// DocRun is a run of tokens of one document. Doc numbers are dense: 0, 1, 2 ...
// within a batch row. A document may have several runs.
type DocRun struct {
	Span
	Doc int
}

// Row is what the masks say of one batch row, run-length encoded.
type Row struct {
	Docs   []DocRun // ascending and disjoint; a token in no run is padding
	Images []Span   // the image blocks, ascending and disjoint
}

// NewRow encodes a row of the given number of tokens. Each of ids
// (packed_seq_ids: <= 0 is padding; without it the row is one document), types
// (mm_token_type_ids: 1 and 2 are image tokens) and pad (padding_mask: non-zero
// is padding) may be nil; else it has one entry a token. Ids of any value are
// mapped to dense ones in order of first appearance. A run of one id that
// returns after another is the same document. Padding does not split an image.
func NewRow(tokens int, ids, types, pad []int64) Row {
	var b RowBuilder
	b.Add(tokens, ids, types, pad)
	return b.Row()
}

// RowBuilder encodes a row of which only a block is there at a time. The zero
// value is ready.
type RowBuilder struct {
	row    Row
	tokens int // so far
	dense  map[int64]int
}

// Add takes the next tokens of the row; the arguments are those of NewRow.
func (b *RowBuilder) Add(tokens int, ids, types, pad []int64) {
	if ids == nil && pad == nil {
		if tokens > 0 {
			b.document(Span{b.tokens, b.tokens + tokens}, b.number(1))
		}
	} else {
		for i := range tokens {
			id := int64(1)
			if ids != nil {
				id = ids[i]
			}
			if id > 0 && (pad == nil || pad[i] == 0) {
				b.document(Span{b.tokens + i, b.tokens + i + 1}, b.number(id))
			}
		}
	}
	for _, s := range imageBlocks(types) {
		s.Start, s.End = s.Start+b.tokens, s.End+b.tokens
		if n := len(b.row.Images); n > 0 && b.row.Images[n-1].End == s.Start {
			b.row.Images[n-1].End = s.End
			continue
		}
		b.row.Images = append(b.row.Images, s)
	}
	b.tokens += tokens
}

// Row is what was added.
func (b *RowBuilder) Row() Row { return b.row }

// number maps ids to 0, 1, 2 ... in order of first appearance.
func (b *RowBuilder) number(id int64) int {
	doc, ok := b.dense[id]
	if !ok {
		if b.dense == nil {
			b.dense = map[int64]int{}
		}
		doc = len(b.dense)
		b.dense[id] = doc
	}
	return doc
}

// document appends a run, or makes the last one longer.
func (b *RowBuilder) document(s Span, doc int) {
	if n := len(b.row.Docs); n > 0 && b.row.Docs[n-1].Doc == doc && b.row.Docs[n-1].End == s.Start {
		b.row.Docs[n-1].End = s.End
		return
	}
	b.row.Docs = append(b.row.Docs, DocRun{s, doc})
}

// SingleDocument is the row that stands where no ids are given: all tokens are
// one document.
func SingleDocument(tokens int) Row {
	if tokens == 0 {
		return Row{}
	}
	return Row{Docs: []DocRun{{Span{0, tokens}, 0}}}
}

// IsSingleDocument reports whether a row of so many tokens is one document in
// full, without padding.
func (r Row) IsSingleDocument(tokens int) bool {
	n, ok := r.SingleDocumentWithPaddedTail(tokens)
	return ok && n == tokens
}

// SingleDocumentWithPaddedTail reports whether the real tokens of a row are one
// document at its start, all the rest being padding, and how many they are.
func (r Row) SingleDocumentWithPaddedTail(tokens int) (n int, ok bool) {
	switch {
	case len(r.Docs) == 0:
		return 0, true
	case len(r.Docs) == 1 && r.Docs[0].Start == 0 && r.Docs[0].End <= tokens:
		return r.Docs[0].End, true
	}
	return 0, false
}

// ImageBlockIDs numbers the image blocks of a row from its token types: a block
// is a maximal run of tokens whose type is 1 or 2; -1 stands for all others.
func ImageBlockIDs(types []int64) []int {
	ids := make([]int, len(types))
	for i := range ids {
		ids[i] = -1
	}
	for b, s := range imageBlocks(types) {
		for i := s.Start; i < s.End; i++ {
			ids[i] = b
		}
	}
	return ids
}

func imageBlocks(types []int64) []Span {
	var blocks []Span
	for i, t := range types {
		if t != 1 && t != 2 {
			continue
		}
		if n := len(blocks); n > 0 && blocks[n-1].End == i {
			blocks[n-1].End++
			continue
		}
		blocks = append(blocks, Span{i, i + 1})
	}
	return blocks
}

// Mask says who sees whom in a batch; the package comment has the rule.
type Mask struct {
	Causal bool
	Window int  // tokens, the query itself included; 0 is none
	Vision bool // image blocks see themselves in both directions
	Rows   []Row
}

// Validate checks that m describes rows of so many tokens.
func (m Mask) Validate(tokens int) error {
	if m.Window < 0 {
		return fmt.Errorf("segments: window is %d, want >= 0", m.Window)
	}
	for b, row := range m.Rows {
		at := 0
		for _, d := range row.Docs {
			if d.Start < at || d.Len() <= 0 || d.End > tokens || d.Doc < 0 {
				return fmt.Errorf("segments: row %d: document %d at %v is not ascending within %d tokens", b, d.Doc, d.Span, tokens)
			}
			at = d.End
		}
		at = 0
		for _, s := range row.Images {
			if s.Start < at || s.Len() <= 0 || s.End > tokens {
				return fmt.Errorf("segments: row %d: image block %v is not ascending within %d tokens", b, s, tokens)
			}
			at = s.End
		}
	}
	return nil
}

// Sees is the mask's rule for one pair of positions of one row, straight from
// the definition. It is the truth that everything else is tested against, and
// far too slow for any other use.
func (m Mask) Sees(row, i, j int) bool {
	r := m.Rows[row]
	di, dj := r.doc(i), r.doc(j)
	if di < 0 || di != dj {
		return false
	}
	if m.Vision {
		for _, s := range r.Images {
			if s.Start <= i && i < s.End && s.Start <= j && j < s.End {
				return true
			}
		}
	}
	return (!m.Causal || j <= i) && (m.Window == 0 || i-j < m.Window)
}

// Keys lists what position i of a row sees, ascending and disjoint: the keys j with Sees.
func (m Mask) Keys(row, i int) (spans []Span) {
	r := m.Rows[row]
	doc, image := r.doc(i), Span{}
	if doc < 0 {
		return nil
	}
	if m.Vision {
		for _, s := range r.Images {
			if s.Start <= i && i < s.End {
				image = s
			}
		}
	}
	for _, d := range r.Docs {
		if d.Doc != doc {
			continue
		}
		near := d.Span
		if m.Causal {
			near.End = min(near.End, i+1)
		}
		if m.Window > 0 {
			near.Start = max(near.Start, i-m.Window+1)
		}
		parts := []Span{near, d.Intersect(image)}
		if parts[1].Start < parts[0].Start {
			parts[0], parts[1] = parts[1], parts[0]
		}
		for _, s := range parts {
			switch n := len(spans); {
			case s.Len() <= 0:
			case n > 0 && s.Start <= spans[n-1].End:
				spans[n-1].End = max(spans[n-1].End, s.End)
			default:
				spans = append(spans, s)
			}
		}
	}
	return spans
}

// doc is the document of position i, -1 for padding.
func (r Row) doc(i int) int {
	for _, d := range r.Docs {
		if d.Start <= i && i < d.End {
			return d.Doc
		}
	}
	return -1
}
