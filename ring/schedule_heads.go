package ring

import "ringattn/segments"

// The head exchange: what headSplit is about, as steps around those of a schedule over the
// groups.
//
// Of each tensor a rank first keeps what stays with it. In turn i it packs for the i-th
// member after it and sends that, and receives from the i-th before it; what came in the
// turn before it unpacks meanwhile. There are two slots each way, in turn.
//
// Nothing can hang: in a turn a rank waits for kernels, and for messages that both ends
// post in earlier turns, and for nothing else. No turn is left out, whoever has tokens.

type headPlanner struct {
	batch *segments.Batch
	split *headSplit
	ring  *Job // over the groups
	local int  // KV heads of a member
}

// The slots of the exchange, from the first on: to send, in turn; to receive.
const (
	headsSend = 1
	headsRecv = 3
)

// ownHeads is the slot of what stays with the rank.
var ownHeads = Slot{Heads: true}

func (h *headPlanner) plan(rank int, p Pass, yield func(Step) bool) {
	ok := true
	next := func(s Step) bool {
		ok = ok && yield(s)
		return ok
	}
	h.exchange(rank, p, false, next)
	members, u := h.split.members, rank%h.split.members
	h.ring.planner.plan(rank/members, p, func(s Step) bool {
		switch s.Op {
		case Send, Recv:
			s.Peer = s.Peer*members + u
			s.Heads.End = h.local
		case Zero:
			s.Heads.End = h.local
		}
		return next(s)
	})
	h.exchange(rank, p, true, next)
}

// exchange makes the steps before a pass, or those after it.
func (h *headPlanner) exchange(rank int, p Pass, home bool, yield func(Step) bool) {
	w := newWriter(p, F32, yield)
	members := h.split.members
	u, first := rank%members, rank/members*members
	tokens := func(rank int) segments.Span { return segments.Span{End: h.batch.Order(rank).Tokens} }
	var came []Step // to unpack
	turn := 0
	unpack := func() {
		for _, s := range came {
			w.wait(s.Slot)
			s.Op = Unpack
			w.step(s)
		}
		came = nil
	}
	for _, t := range exchanged(p, home) {
		if tokens(rank).Len() > 0 {
			w.step(Step{Op: Unpack, Slot: ownHeads, Tensor: t, Peer: rank, Owner: rank, Range: tokens(rank), Heads: h.split.of(t, u)})
		}
		for i := 1; i < members; i, turn = i+1, turn+1 {
			to, from := first+(u+i)%members, first+(u+members-i)%members
			// Of the tokens that a message carries one end is the owner, the other the member
			// whose heads these are.
			out := Step{Slot: Slot{Heads: true, N: headsSend + turn%2}, Tensor: t, Peer: to, Owner: rank}
			in := Step{Slot: Slot{Heads: true, N: headsRecv + turn%2}, Tensor: t, Peer: from, Owner: from}
			if home {
				out.Owner, in.Owner = to, rank
			}
			out.Range, in.Range = tokens(out.Owner), tokens(in.Owner)
			out.Heads, in.Heads = h.split.of(t, to%members), h.split.of(t, u)
			if home {
				out.Heads, in.Heads = in.Heads, h.split.of(t, from%members)
			}
			w.round = turn
			if in.Range.Len() > 0 {
				w.wait(in.Slot)
				in.Op = Recv
				w.step(in)
			}
			if out.Range.Len() > 0 {
				w.wait(out.Slot)
				out.Op = Pack
				w.step(out)
				w.wait(out.Slot)
				out.Op = Send
				w.step(out)
			}
			unpack()
			if in.Range.Len() > 0 {
				came = append(came, in)
			}
		}
		unpack()
	}
	w.drain()
}

// leastBytes is what a rank must send before and after a pass: of each tensor what others
// compute with of its tokens, or what they own of what it has computed.
func (h *headPlanner) leastBytes(rank int, p Pass, s Shape) (bytes int64) {
	members := h.split.members
	u, first := rank%members, rank/members*members
	for other := first; other < first+members; other++ {
		if other == rank {
			continue
		}
		for _, t := range exchanged(p, false) {
			bytes += int64(h.batch.Order(rank).Tokens) * t.tokenBytes(s, h.split.of(t, other%members).Len())
		}
		for _, t := range exchanged(p, true) {
			bytes += int64(h.batch.Order(other).Tokens) * t.tokenBytes(s, h.split.of(t, u).Len())
		}
	}
	return bytes
}
