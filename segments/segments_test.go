package segments_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ringattn/segments"
	"ringattn/segments/segmentstest"
)

// token is a place in a batch.
type token struct{ row, pos int }

// kernelOrder lists a rank's tokens as its Order says.
func kernelOrder(o *segments.Order) []token {
	out := make([]token, 0, o.Tokens)
	for _, p := range o.Pieces {
		for pos := p.Pos.Start; pos < p.Pos.End; pos++ {
			out = append(out, token{p.Row, pos})
		}
	}
	return out
}

// checkBatch holds every pair of tokens of every pair of ranks against the rule.
func checkBatch(t rapid.TB, b *segments.Batch) {
	t.Helper()
	orders := make([][]token, b.Ranks())
	seen := map[token]bool{}
	for r := range b.Ranks() {
		orders[r] = kernelOrder(b.Order(r))
		if len(orders[r]) != b.Order(r).Tokens {
			t.Fatalf("rank %d: %d tokens in pieces, Order says %d", r, len(orders[r]), b.Order(r).Tokens)
		}
		for _, k := range orders[r] {
			if seen[k] {
				t.Fatalf("token %v is held twice", k)
			}
			seen[k] = true
		}
	}
	for q := range b.Ranks() {
		for kv := range b.Ranks() {
			checkPair(t, b, q, kv, orders[q], orders[kv])
		}
	}
	for row := range b.Mask.Rows {
		for i := range b.Layout.Tokens {
			checkKeys(t, b, row, i)
		}
	}
}

// checkKeys holds the keys of a position against the rule.
func checkKeys(t rapid.TB, b *segments.Batch, row, i int) {
	t.Helper()
	spans, n := b.Mask.Keys(row, i), 0
	for j := range b.Layout.Tokens {
		for n < len(spans) && spans[n].End <= j {
			n++
		}
		if got := n < len(spans) && spans[n].Start <= j; got != b.Mask.Sees(row, i, j) {
			t.Fatalf("row %d: position %d sees %d: keys %v say %v", row, i, j, spans, got)
		}
	}
	for k, s := range spans {
		if s.Len() <= 0 || k > 0 && s.Start <= spans[k-1].End {
			t.Fatalf("row %d: the keys of position %d are %v", row, i, spans)
		}
	}
}

func checkPair(t rapid.TB, b *segments.Batch, q, kv int, queries, keys []token) {
	t.Helper()
	lo, hi := make([]int, len(queries)), make([]int, len(queries))
	var want segments.Need
	end := 0
	runs := b.Runs(q, kv)
	for _, r := range runs {
		if r.Q.Start < end || r.Q.Len() <= 0 || r.Q.End > len(queries) {
			t.Fatalf("runs of (%d,%d) are not ascending: %+v", q, kv, runs)
		}
		end = r.Q.End
		var pairs int64
		for i := range r.Q.Len() {
			l, h := r.Interval(i)
			if l >= h {
				t.Fatalf("query %d of (%d,%d) is in a run and sees nothing: %+v", r.Q.Start+i, q, kv, r)
			}
			lo[r.Q.Start+i], hi[r.Q.Start+i] = l, h
			pairs += int64(h - l)
		}
		if pairs != r.Pairs() {
			t.Fatalf("Pairs of %+v is %d, want %d", r, r.Pairs(), pairs)
		}
		want.Pairs += pairs
		want.Q, want.Keys = want.Q.Hull(r.Q), want.Keys.Hull(r.Keys())
	}
	needed := make([]bool, len(keys))
	for i, iq := range queries {
		for j, jk := range keys {
			sees := iq.row == jk.row && b.Mask.Sees(iq.row, iq.pos, jk.pos)
			if got := lo[i] <= j && j < hi[i]; got != sees {
				t.Fatalf("ranks (%d,%d): query %v, key %v: interval says %v, the rule %v", q, kv, iq, jk, got, sees)
			}
			needed[j] = needed[j] || sees
		}
	}
	if got := b.Need(q, kv); got != want {
		t.Fatalf("Need(%d,%d) = %+v, want %+v", q, kv, got, want)
	}
	covered := make([]bool, len(keys))
	for _, s := range b.KeyRanges(q, kv) {
		for j := s.Start; j < s.End; j++ {
			covered[j] = true
		}
	}
	if diff := cmp.Diff(needed, covered); diff != "" {
		t.Fatalf("KeyRanges(%d,%d) (-needed +covered):\n%s", q, kv, diff)
	}
}

func TestIntervalsEqualTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkBatch(t, segmentstest.Batch(t, 40, 6)) })
}

func FuzzIntervalsEqualTheRule(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { checkBatch(t, segmentstest.Batch(t, 40, 6)) }))
}

func TestBoundsNeverDecrease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := segmentstest.Batch(t, 60, 1)
		runs := b.Runs(0, 0)
		for i := 1; i < len(runs); i++ {
			lo, hi := runs[i-1].Interval(runs[i-1].Q.Len() - 1)
			// The next document's keys stand behind this one's.
			if runs[i].Lo < lo || runs[i].Hi < hi {
				t.Fatalf("bounds decrease from %+v to %+v", runs[i-1], runs[i])
			}
		}
	})
}

func TestCutGivesTheFirstPiecesOneMore(t *testing.T) {
	got := segments.Contiguous(10, 4).Spans
	want := [][]segments.Span{{{0, 3}}, {{3, 6}}, {{6, 8}}, {{8, 10}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// Fewer tokens than ranks: the last ranks hold nothing.
	got = segments.Contiguous(2, 4).Spans
	want = [][]segments.Span{{{0, 1}}, {{1, 2}}, nil, nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The map and the pairs are CASES C5's.
func TestZigzagEvensOutCausalWork(t *testing.T) {
	l := segments.Zigzag(16, 4)
	want := [][]segments.Span{{{0, 2}, {14, 16}}, {{2, 4}, {12, 14}}, {{4, 6}, {10, 12}}, {{6, 10}}}
	if diff := cmp.Diff(want, l.Spans); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		layout segments.Layout
		pairs  []int64
	}{
		{l, []int64{34, 34, 34, 34}},
		{segments.Contiguous(16, 4), []int64{10, 26, 42, 58}},
	} {
		b := mustBatch(t, c.layout, segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(16)}})
		for q, want := range c.pairs {
			var got int64
			for kv := range b.Ranks() {
				got += b.Need(q, kv).Pairs
			}
			if got != want {
				t.Errorf("%s: rank %d has %d pairs, want %d", c.layout.Name, q, got, want)
			}
		}
	}
}

func TestLayoutsPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := segmentstest.Layout(t, 200, 40)
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		total := 0
		for r := range l.Ranks() {
			total += l.RankTokens(r)
		}
		if total != l.Tokens {
			t.Fatalf("%d tokens held, want %d", total, l.Tokens)
		}
	})
}

func TestBadLayoutsAndMasksAreRefused(t *testing.T) {
	s := func(spans ...segments.Span) [][]segments.Span { return [][]segments.Span{spans} }
	for name, l := range map[string]segments.Layout{
		"hole":     {Tokens: 4, Spans: s(segments.Span{0, 1}, segments.Span{2, 4})},
		"overlap":  {Tokens: 4, Spans: [][]segments.Span{{{0, 3}}, {{3, 4}}, {{0, 1}}}},
		"twice":    {Tokens: 2, Spans: [][]segments.Span{{{0, 1}}, {{0, 1}}}},
		"outside":  {Tokens: 2, Spans: s(segments.Span{0, 3})},
		"reversed": {Tokens: 2, Spans: s(segments.Span{1, 2}, segments.Span{0, 1})},
		"empty":    {Tokens: 2, Spans: s(segments.Span{0, 2}, segments.Span{2, 2})},
		"no token": {Tokens: 0, Spans: s()},
		"no rank":  {Tokens: 2},
	} {
		if l.Validate() == nil {
			t.Errorf("layout %q passes", name)
		}
	}
	if _, err := segments.Shards(10, []int{4, 5}); err == nil {
		t.Error("shards that do not sum to the sequence pass")
	}
	if _, err := segments.Shards(3, []int{4, -1}); err == nil {
		t.Error("a negative shard passes")
	}
	for name, m := range map[string]segments.Mask{
		"window":   {Window: -1},
		"document": {Rows: []segments.Row{{Docs: []segments.DocRun{{Span: segments.Span{0, 5}}}}}},
		"image":    {Rows: []segments.Row{{Images: []segments.Span{{2, 2}}}}},
	} {
		if m.Validate(4) == nil {
			t.Errorf("mask %q passes", name)
		}
	}
}

func TestRowsFromIDs(t *testing.T) {
	big := int64(math.MaxInt64)
	row := segments.NewRow(8, []int64{big, big, 0, 7, -3, 7, big, 7}, []int64{0, 1, 2, 1, 3, 2, 0, 1}, []int64{0, 0, 0, 0, 0, 0, 0, 1})
	want := segments.Row{
		Docs:   []segments.DocRun{{segments.Span{0, 2}, 0}, {segments.Span{3, 4}, 1}, {segments.Span{5, 6}, 1}, {segments.Span{6, 7}, 0}},
		Images: []segments.Span{{1, 4}, {5, 6}, {7, 8}},
	}
	if diff := cmp.Diff(want, row); diff != "" {
		t.Error(diff)
	}
	if got := segments.ImageBlockIDs([]int64{0, 1, 2, 0, 0, 2}); !cmp.Equal(got, []int{-1, 0, 0, -1, -1, 1}) {
		t.Errorf("ImageBlockIDs: %v", got)
	}
	// Ids that differ above 32 bits stay apart.
	if row := segments.NewRow(2, []int64{1, 1 + 1<<32}, nil, nil); row.Docs[1].Doc == row.Docs[0].Doc {
		t.Error("ids are truncated")
	}
}

func TestRowKinds(t *testing.T) {
	for _, c := range []struct {
		name   string
		row    segments.Row
		single bool
		n      int
		tail   bool
	}{
		{"synthesised", segments.NewRow(4, nil, nil, nil), true, 4, true},
		{"one id", segments.NewRow(4, []int64{9, 9, 9, 9}, nil, nil), true, 4, true},
		{"padded tail", segments.NewRow(4, []int64{9, 9, 0, 0}, nil, nil), false, 2, true},
		{"padding mask", segments.NewRow(4, nil, nil, []int64{0, 0, 0, 1}), false, 3, true},
		{"padded head", segments.NewRow(4, []int64{0, 9, 9, 9}, nil, nil), false, 0, false},
		{"padding inside", segments.NewRow(4, []int64{9, 0, 9, 9}, nil, nil), false, 0, false},
		{"two documents", segments.NewRow(4, []int64{1, 1, 2, 2}, nil, nil), false, 0, false},
		{"all padding", segments.NewRow(4, []int64{0, 0, 0, 0}, nil, nil), false, 0, true},
	} {
		n, tail := c.row.SingleDocumentWithPaddedTail(4)
		if got := c.row.IsSingleDocument(4); got != c.single || n != c.n || tail != c.tail {
			t.Errorf("%s: single %v, n %d, tail %v; want %v, %d, %v", c.name, got, n, tail, c.single, c.n, c.tail)
		}
	}
}

func TestSharedDocuments(t *testing.T) {
	// Rank 0: 1 1 2 | rank 1: 2 3 1 (kernel order 1 2 3).
	b := mustBatch(t, segments.Contiguous(6, 2), segments.Mask{Rows: []segments.Row{segments.NewRow(6, []int64{1, 1, 2, 2, 3, 1}, nil, nil)}})
	got := segments.SharedDocuments(b.Order(0), b.Order(1))
	want := []segments.Shared{
		{Row: 0, Doc: 0, Q: segments.Span{0, 2}, KV: segments.Span{0, 1}},
		{Row: 0, Doc: 1, Q: segments.Span{2, 3}, KV: segments.Span{1, 2}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A window of W reaches ceil((W-1)/shard) shards back (CASES C6).
func TestWindowReach(t *testing.T) {
	for w, want := range map[int]int{1: 0, 2: 1, 5: 1, 6: 2, 9: 2, 10: 3, 16: 3} {
		b := mustBatch(t, segments.Contiguous(16, 4), segments.Mask{Causal: true, Window: w, Rows: []segments.Row{segments.SingleDocument(16)}})
		got := 0
		for kv := range 3 {
			if b.Need(3, kv).Pairs > 0 {
				got++
			}
		}
		if got != want {
			t.Errorf("W=%d: the last rank needs %d other shards, want %d", w, got, want)
		}
	}
}

// Long stretches of queries are one run, however long the sequence.
func TestRunsAreFew(t *testing.T) {
	const tokens = 1 << 20
	for name, c := range map[string]struct {
		mask segments.Mask
		most int
	}{
		"causal": {segments.Mask{Causal: true}, 1},
		"full":   {segments.Mask{}, 1},
		"window": {segments.Mask{Causal: true, Window: 1000}, 2},
	} {
		c.mask.Rows = []segments.Row{segments.SingleDocument(tokens)}
		b := mustBatch(t, segments.Contiguous(tokens, 8), c.mask)
		for kv := range b.Ranks() {
			if n := len(b.Runs(7, kv)); n > c.most {
				t.Errorf("%s: %d runs for keys of rank %d, want <= %d", name, n, kv, c.most)
			}
		}
	}
}

func mustBatch(t testing.TB, l segments.Layout, m segments.Mask) *segments.Batch {
	t.Helper()
	b, err := segments.NewBatch(l, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
