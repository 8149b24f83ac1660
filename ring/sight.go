package ring

import (
	"encoding/binary"
	"unsafe"

	"ringattn/segments"
)

// sight names what a step attends to: some of an owner's keys.
type sight struct {
	owner int
	keys  segments.Span
}

// queries are those that a rank attends with: to its own keys with all, since the
// first step of a pass writes the rows of all and reads none.
func (j *Job) queries(rank int, at sight) segments.Span {
	if at.owner == rank {
		return segments.Span{End: j.Batch.Order(rank).Tokens}
	}
	return j.Batch.Needs(rank, at.owner, at.keys)[0].Q
}

// bounds are the intervals of a sight: its queries and keys counted from their first. Steps that
// have the same ones share them in memory, as where all queries see all keys of one rank after
// another: else intervals would grow with the ranks.
type bounds struct {
	queries segments.Span // of the rank
	keys    int
	runs    []segments.Run // where an end stays it lies within the keys
}

func (j *Job) boundsOf(rank int, at sight) bounds {
	b := bounds{queries: j.queries(rank, at), keys: at.keys.Len()}
	for _, r := range j.Batch.Runs(rank, at.owner) {
		q := r.Q.Intersect(b.queries)
		if q.Len() == 0 {
			continue
		}
		lo, hi := r.Interval(q.Start - r.Q.Start)
		r.Lo, r.Hi = lo-at.keys.Start, hi-at.keys.Start
		if !r.LoMoves {
			r.Lo = min(max(r.Lo, 0), b.keys)
		}
		if !r.HiMoves {
			r.Hi = min(max(r.Hi, 0), b.keys)
		}
		r.Q = segments.Span{Start: q.Start - b.queries.Start, End: q.End - b.queries.Start}
		if r.LoMoves || r.HiMoves || r.Lo < r.Hi {
			b.runs = append(b.runs, r)
		}
	}
	return b
}

// key is equal of equal bounds.
func (b *bounds) key() string {
	text := binary.AppendVarint(nil, int64(b.queries.Len()))
	text = binary.AppendVarint(text, int64(b.keys))
	for _, r := range b.runs {
		moves := int64(0)
		if r.LoMoves {
			moves++
		}
		if r.HiMoves {
			moves += 2
		}
		for _, x := range []int64{int64(r.Q.Start), int64(r.Q.End), int64(r.Lo), int64(r.Hi), moves} {
			text = binary.AppendVarint(text, x)
		}
	}
	return string(text)
}

// bytes is the size of the intervals.
func (b *bounds) bytes() int64 { return 8 * int64(b.queries.Len()) }

// expand lists lo, then hi, of each query; an empty interval where it sees none of the keys.
func (b *bounds) expand() []int32 {
	n := b.queries.Len()
	list := make([]int32, 2*n)
	for _, r := range b.runs {
		for t := range r.Q.Len() {
			lo, hi := r.Interval(t)
			if lo, hi = max(lo, 0), min(hi, b.keys); lo < hi {
				list[r.Q.Start+t], list[n+r.Q.Start+t] = int32(lo), int32(hi)
			}
		}
	}
	return list
}

// sights has the rows of what steps attend to, in the backend's memory.
type sights struct {
	of     map[sight]Rows
	shared map[string]Rows // by bounds
}

// rows are those of a sight of a rank.
func (e *Exec) rows(j *Job, rank int, at sight, known *sights) (Rows, error) {
	if r, ok := known.of[at]; ok {
		return r, nil
	}
	b := j.boundsOf(rank, at)
	n, key := b.queries.Len(), b.key()
	r, ok := known.shared[key]
	if !ok {
		list := b.expand()
		bytes := unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), b.bytes())
		p, err := e.alloc(b.bytes())
		if err != nil {
			return Rows{}, err
		}
		if err := e.backend.Write(p, bytes); err != nil {
			return Rows{}, err
		}
		r = Rows{N: n, Lo: p, Hi: unsafe.Add(p, 4*n)}
		r.Span, r.Tiles = SpanOf(list[:n], list[n:])
		known.shared[key] = r
	}
	r.Start = b.queries.Start
	known.of[at] = r
	return r, nil
}
