package backendtest

import "math/rand/v2"

// mask is a kind of visibility: each query sees one interval of the keys.
type mask int

const (
	full      mask = iota // every key
	causal                // keys up to the query's own position, aligned at the end
	window                // the last 40 of these
	documents             // the query's document: neighbours see the same keys, others none of them
	holes                 // causal, but every third query and a long run see nothing
	monotone              // random intervals whose ends never go back
	ragged                // random intervals in no order, some empty
	maskKinds
)

func (m mask) String() string {
	return [...]string{"full", "causal", "window", "documents", "holes", "monotone", "ragged"}[m]
}

type interval struct{ lo, hi int }

// intervals are what each of n queries sees of keys keys.
func (m mask) intervals(rng *rand.Rand, n, keys int) []interval {
	rows := make([]interval, n)
	starts := []int{0}
	for at := 0; at < keys; {
		at += 1 + rng.IntN(90)
		starts = append(starts, min(at, keys))
	}
	lo, hi := 0, 0
	for i := range rows {
		own := keys - n + i // the query's own position
		r := &rows[i]
		switch m {
		case full:
			*r = interval{0, keys}
		case causal:
			*r = interval{0, own + 1}
		case window:
			*r = interval{own - 39, own + 1}
		case documents:
			at := i * keys / n
			for d := 1; d < len(starts); d++ {
				if at < starts[d] {
					*r = interval{starts[d-1], starts[d]}
					break
				}
			}
		case holes:
			*r = interval{0, own + 1}
			if i%3 == 1 || i > 50 && i < 120 {
				*r = interval{}
			}
		case monotone:
			lo = min(lo+rng.IntN(3), keys)
			hi = min(max(hi+rng.IntN(4), lo), keys)
			*r = interval{lo, hi}
		case ragged:
			a, b := rng.IntN(keys+1), rng.IntN(keys+1)
			*r = interval{min(a, b), max(a, b)}
		}
		r.lo, r.hi = max(r.lo, 0), min(r.hi, keys)
	}
	return rows
}

// cut is the part of r in keys [start, start+n), counted from start. What is not
// there comes out as one of the ways to say so.
func (r interval) cut(rng *rand.Rand, start, n int) (lo, hi int32) {
	a, b := max(r.lo-start, 0), min(r.hi-start, n)
	if a >= b {
		x := int32(rng.IntN(n + 1))
		return x, int32(rng.IntN(int(x) + 1))
	}
	return int32(a), int32(b)
}
