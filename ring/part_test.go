package ring_test

import (
	"testing"

	"pgregory.net/rapid"

	"ringattn/ring"
	"ringattn/segments"
	"ringattn/segments/segmentstest"
)

// What a rank needs of some keys is what its queries see of them, one by one.
func TestParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := segmentstest.Batch(t, 40, 6)
		q, kv := rapid.IntRange(0, b.Ranks()-1).Draw(t, "q"), rapid.IntRange(0, b.Ranks()-1).Draw(t, "kv")
		tokens := b.Order(kv).Tokens
		at := rapid.IntRange(0, tokens).Draw(t, "start")
		keys := segments.Span{Start: at, End: rapid.IntRange(at, tokens).Draw(t, "end")}
		if got, want := b.Needs(q, kv, keys)[0], seenOneByOne(b, q, kv, keys); got != want {
			t.Fatalf("rank %d sees of the keys %v of rank %d %+v, want %+v", q, keys, kv, got, want)
		}
		first, rest := ring.Halve(b, q)
		all := b.Need(q, q)
		last := seenOneByOne(b, q, q, segments.Span{Start: first.Keys.End - 1, End: first.Keys.End})
		if first.Pairs+rest.Pairs != all.Pairs || first.Keys.Intersect(rest.Keys).Len() > 0 ||
			2*first.Pairs < all.Pairs || all.Pairs > 0 && 2*(first.Pairs-last.Pairs) >= all.Pairs {
			t.Fatalf("%+v is cut into %+v and %+v", all, first, rest)
		}
	})
}

func seenOneByOne(b *segments.Batch, q, kv int, keys segments.Span) (n segments.Need) {
	for _, r := range b.Runs(q, kv) {
		for i := range r.Q.Len() {
			lo, hi := r.Interval(i)
			if k := keys.Intersect(segments.Span{Start: lo, End: hi}); k.Len() > 0 {
				n.Pairs += int64(k.Len())
				n.Q = n.Q.Hull(segments.Span{Start: r.Q.Start + i, End: r.Q.Start + i + 1})
				n.Keys = n.Keys.Hull(k)
			}
		}
	}
	return n
}
