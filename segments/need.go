package segments

// Need says what rank q wants of rank kv's keys: the number of visible pairs
// and the hulls of the queries and keys that take part. Pairs is 0 where there
// is nothing to do.
type Need struct {
	Pairs   int64
	Q, Keys Span
}

// add counts in pairs of the queries q and the keys k, both not empty.
func (n *Need) add(pairs int64, q, k Span) {
	if n.Pairs == 0 {
		n.Q, n.Keys = q, k
	}
	n.Pairs += pairs
	n.Q = Span{min(n.Q.Start, q.Start), max(n.Q.End, q.End)}
	n.Keys = Span{min(n.Keys.Start, k.Start), max(n.Keys.End, k.End)}
}

func (n *Need) addRun(r Run) { n.add(r.Pairs(), r.Q, r.Keys()) }

// fewPieces is up to how many pairs of pieces of one document Need looks at one
// by one.
const fewPieces = 16

// Within is what the queries of r see of the given keys.
func (r Run) Within(keys Span) (n Need) {
	pairs := clamped(r.Hi, r.HiMoves, r.Q.Len(), keys) - clamped(r.Lo, r.LoMoves, r.Q.Len(), keys)
	if pairs == 0 {
		return n
	}
	// Intervals never move back: those that end after keys.Start are the last
	// ones, those that begin before keys.End the first.
	first, end := 0, r.Q.Len()
	if r.HiMoves {
		first = max(first, keys.Start+1-r.Hi)
	}
	if r.LoMoves {
		end = min(end, keys.End-r.Lo)
	}
	lo, _ := r.Interval(first)
	_, hi := r.Interval(end - 1)
	return Need{pairs, Span{r.Q.Start + first, r.Q.Start + end}, keys.Intersect(Span{lo, hi})}
}

// clamped is the sum of n numbers, from a on and each one more than the last if
// they move, all equal to a else, each brought into [s.Start, s.End].
func clamped(a int, moves bool, n int, s Span) int64 {
	if !moves {
		return int64(n) * int64(min(max(a, s.Start), s.End))
	}
	low := min(max(s.Start-a, 0), n) // so many are below s
	mid := min(max(s.End-a, low), n) // and those from here on above
	sum := int64(low)*int64(s.Start) + int64(n-mid)*int64(s.End)
	return sum + int64(mid-low)*int64(2*a+low+mid-1)/2
}

// Need is the sum of Runs(q, kv), without making the list: many ranks with many
// documents in common ask for it.
func (b *Batch) Need(q, kv int) (n Need) {
	b.meet(q, kv, func(q, k Span) { n.add(int64(q.Len())*int64(k.Len()), q, k) }, n.addRun)
	return n
}

// Needs is Need of each of the given spans of rank kv's keys.
func (b *Batch) Needs(q, kv int, keys ...Span) []Need {
	needs := make([]Need, len(keys))
	b.meet(q, kv, func(q, k Span) {
		for i := range keys {
			if k := k.Intersect(keys[i]); k.Len() > 0 {
				needs[i].add(int64(q.Len())*int64(k.Len()), q, k)
			}
		}
	}, func(r Run) {
		for i := range keys {
			if n := r.Within(keys[i]); n.Pairs > 0 {
				needs[i].add(n.Pairs, n.Q, n.Keys)
			}
		}
	})
	return needs
}

// meet goes over all that rank q sees of rank kv's keys, in any order: all where
// the queries see all of the keys, some where they see what the run says.
func (b *Batch) meet(q, kv int, all func(q, k Span), some func(Run)) {
	qo, ko := &b.orders[q], &b.orders[kv]
	view := b.Mask.view()
	if !b.Mask.Vision {
		if r := view.reach(qo.pos); r.none(ko.pos) {
			return
		}
	}
	for i, j := range shared(qo, ko) {
		g, h := qo.groups[i], ko.groups[j]
		if b.Mask.Vision {
			view.inRow(qo.Pieces[g.first].Row)
		}
		r := view.reach(g.pos())
		if r.none(h.pos()) {
			continue
		}
		if r.all(h.pos()) {
			all(g.tokens(), h.tokens())
			continue
		}
		if (g.last-g.first)*(h.last-h.first) > fewPieces {
			view.walk(qo.Pieces[g.first:g.last], ko.Pieces[h.first:h.last], some)
			continue
		}
		for x := g.first; x < g.last; x++ {
			queries := qo.stretches[x]
			r := view.reach(queries.pos())
			for y := h.first; y < h.last; y++ {
				keys := ko.stretches[y]
				switch {
				case r.none(keys.pos()):
				case r.all(keys.pos()):
					nq, nk := int(queries.end-queries.start), int(keys.end-keys.start)
					all(Span{int(queries.at), int(queries.at) + nq}, Span{int(keys.at), int(keys.at) + nk})
				default:
					view.walk(qo.Pieces[x:x+1], ko.Pieces[y:y+1], some)
				}
			}
		}
	}
}
