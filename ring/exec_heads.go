package ring

import "unsafe"

// headMoves is what the head exchange of a rank works with.
type headMoves struct {
	split   *headSplit
	rank    int
	shape   Shape // of the job
	own     *Tensors
	places  []place // by member: where its tokens stand in the group's kernel order
	written []bool  // by KV head: dk and dv that have come home in this pass
}

// place is where a member's tokens stand: from first on, or where at says, [tokens]int32.
type place struct {
	tokens, first int
	at            unsafe.Pointer
}

// bindHeads allocates the group's tensors, which kernels then work on in place of the
// rank's own.
func (e *Exec) bindHeads(j *Job, s Shape, backward bool) error {
	if j.groups == nil {
		return nil
	}
	rank, members := e.comm.Rank(), j.split.members
	h := &headMoves{split: j.split, rank: rank, shape: s, own: e.tensors, written: make([]bool, s.KVHeads)}
	e.heads, e.tensors = h, new(Tensors)
	e.shape, e.tensors.Tokens = j.Kernels(rank, s)
	type tensor struct {
		into  *unsafe.Pointer
		bytes int64 // of a token
	}
	t, x := e.tensors, e.shape
	given, sums := int64(x.Heads)*int64(x.HeadDim)*x.DType.Size(), int64(x.Heads)*int64(x.HeadDim)*4
	all := []tensor{{&t.Q, given}, {&t.KV, x.KVTokenBytes()}, {&t.Out, sums}, {&t.LSE, int64(x.Heads) * 4}}
	if backward {
		all = append(all, tensor{&t.DOut, given}, tensor{&t.Delta, int64(x.Heads) * 4}, tensor{&t.DQ, sums}, tensor{&t.DKV, x.GradTokenBytes()})
	}
	for _, a := range all {
		p, err := e.alloc(int64(t.Tokens) * a.bytes)
		if err != nil {
			return err
		}
		*a.into = p
	}
	group := j.groups.Batch.Order(rank / members)
	for member := rank / members * members; member < (rank/members+1)*members; member++ {
		at := places(j.Batch.Order(member), group)
		p := place{tokens: len(at)}
		if n := len(at); n > 0 {
			p.first = int(at[0])
			if int(at[n-1]) != p.first+n-1 {
				var err error
				if p.at, err = e.alloc(4 * int64(n)); err != nil {
					return err
				}
				if err := e.backend.Write(p.at, unsafe.Slice((*byte)(unsafe.Pointer(&at[0])), 4*n)); err != nil {
					return err
				}
				p.first = 0
			}
		}
		h.places = append(h.places, p)
	}
	return nil
}

// memory is where a tensor stands.
func (t *Tensors) memory(of Tensor) unsafe.Pointer {
	return map[Tensor]unsafe.Pointer{
		TensorQ: t.Q, TensorKV: t.KV, TensorOut: t.Out, TensorLSE: t.LSE, TensorDOut: t.DOut, TensorDQ: t.DQ, TensorDKV: t.DKV,
	}[of]
}

// side is one end of a copy of heads: tokens of a tensor in some memory.
type side struct {
	p     unsafe.Pointer
	heads int // of a token there
	first int // that stands first; of the group's tensors, local is what counts
	place place
}

// bindHeadStep resolves the addresses of a step of the head exchange: of a message, or of
// the copies between a slot, the rank's own tensors and the group's.
func (e *Exec) bindHeadStep(b *boundStep) {
	h, slot := e.heads, &e.slots[slotIndex(b.Slot)]
	b.p, b.bytes = slot.memory, b.Bytes(h.shape)
	if b.Op == Send || b.Op == Recv {
		return
	}
	members := h.split.members
	home := b.Tensor == TensorOut || b.Tensor == TensorLSE || b.Tensor == TensorDQ || b.Tensor == TensorDKV
	through := side{p: slot.memory, heads: b.Heads.Len(), first: b.Heads.Start}
	own := side{p: h.own.memory(b.Tensor), heads: h.split.heads}
	group := side{p: e.tensors.memory(b.Tensor), heads: e.shape.Heads, place: h.places[b.Owner%members]}
	if b.Tensor.pairs() {
		own.heads, group.heads = h.split.kvHeads, e.shape.KVHeads
	}
	// Out of the rank's own tensors to the group's, or home; the slot is between the two.
	src, dst := own, group
	if home {
		src, dst = group, own
	}
	switch {
	case b.Op == Pack:
		dst = through
	case !b.Slot.Own():
		src = through
	}
	if !home && b.Op == Pack || home && b.Op == Unpack && !b.Slot.Own() {
		// Between a slot and the rank's own tensors heads are each there once.
		for _, run := range h.runsOf(b, b.Heads.Start, b.Heads.End) {
			b.moves = h.add(b, b.moves, dst, run.head-dst.first, src, run.head-src.first, run)
		}
		return
	}
	// The group's tensors have the heads of this member, KV heads as often as they are read.
	for _, run := range h.copies(b) {
		from, to := run.head-src.first, run.head-dst.first
		if home {
			from = run.local
		} else {
			to = run.local
		}
		b.moves = h.add(b, b.moves, dst, to, src, from, run)
	}
}

// headRun is heads of the job in a row, from head on; local is the first of them in the
// group's tensors.
type headRun struct {
	head, local, n int
	add            bool // to what is there
}

// copies lists a member's own heads in the group's tensors. Of a head that is there several
// times each copy is filled, or each one's gradients are added.
func (h *headMoves) copies(b *boundStep) (runs []headRun) {
	if !b.Tensor.pairs() {
		return []headRun{{head: b.Heads.Start, n: b.Heads.Len()}}
	}
	sums := b.Tensor == TensorDKV
	into := make([]bool, h.split.kvHeads) // what is written
	if sums && b.Slot.Own() {
		into = h.cameHome(b)
	}
	for j := range h.split.own() / h.split.each() {
		head := h.split.kvOf(h.rank%h.split.members, j)
		again := sums && into[head]
		into[head] = true
		if n := len(runs); n > 0 && runs[n-1].head+runs[n-1].n == head && runs[n-1].add == again {
			runs[n-1].n++
			continue
		}
		runs = append(runs, headRun{head: head, local: j, n: 1, add: again})
	}
	return runs
}

// runsOf lists heads [first, end) for a copy from or to the rank's own tensors: gradients of
// KV heads that have come home from another member are added to.
func (h *headMoves) runsOf(b *boundStep, first, end int) (runs []headRun) {
	if b.Tensor != TensorDKV {
		return []headRun{{head: first, n: end - first}}
	}
	into := h.cameHome(b)
	for head := first; head < end; head++ {
		if n := len(runs); n > 0 && runs[n-1].add == into[head] {
			runs[n-1].n++
		} else {
			runs = append(runs, headRun{head: head, n: 1, add: into[head]})
		}
		into[head] = true
	}
	return runs
}

// cameHome is which KV heads' gradients the rank's own tensors have. A pass begins with
// what the rank keeps.
func (h *headMoves) cameHome(b *boundStep) []bool {
	if b.Slot.Own() {
		clear(h.written)
	}
	return h.written
}

// add appends the copies of a run of heads: one of all, or one of keys and one of values.
func (h *headMoves) add(b *boundStep, moves []Rearrangement, dst side, to int, src side, from int, run headRun) []Rearrangement {
	unit, vectors := b.Tensor.headBytes(h.shape), 1
	if b.Tensor.pairs() {
		vectors = 2
	}
	m := Rearrangement{
		N: b.Range.Len(), Bytes: int64(run.n) * unit, Add: run.add,
		DstStride: b.Tensor.tokenBytes(h.shape, dst.heads), SrcStride: b.Tensor.tokenBytes(h.shape, src.heads),
		To: dst.place.at, From: src.place.at,
	}
	if run.n == dst.heads && run.n == src.heads {
		m.Bytes, vectors = int64(vectors)*m.Bytes, 1
	}
	for v := range vectors {
		m.Dst = unsafe.Add(dst.p, int64(dst.place.first)*m.DstStride+int64(v*dst.heads+to)*unit)
		m.Src = unsafe.Add(src.p, int64(src.place.first)*m.SrcStride+int64(v*src.heads+from)*unit)
		moves = append(moves, m)
	}
	return moves
}

// move makes the copies of a step.
func (e *Exec) move(s *boundStep) error {
	for _, m := range s.moves {
		if err := e.backend.Move(m); err != nil {
			return err
		}
	}
	return nil
}
