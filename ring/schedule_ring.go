package ring

import "ringattn/segments"

// The ring schedule.
//
// Its clock is the distance on the ring: in round d rank r receives and attends
// to the chunk of rank r-d, if it needs it. A chunk is sent to the ranks that
// need it and to no others. Whoever has it passes it on: the last rank before
// the receiver that still holds it, the owner else. A rank has two K/V slots,
// so it holds a chunk until the next but one arrives.
//
// Nothing can hang: a step of round d waits for transfers of rounds up to d
// alone, and each rank posts its messages of round d before it waits for one.
//
// Backward, a rank adds up its gradients of the chunk of round d in an
// accumulator of its own while the sum of the ranks before comes in, adds the
// two, and sends them on in round d+1: to the next rank where that attends to
// the same chunk just then, home to the owner else. So gradients travel one
// step behind their keys, beside the next kernel, and each rank sends the
// gradients of a chunk once.

// hop is a chunk's way from one rank to the next that needs it.
type hop struct {
	owner, from, to int
	round           int           // = distance from owner to to
	keys            segments.Span // what the message carries: for to and for those it feeds
	grads           segments.Span // the tokens whose gradients to passes on, its own and those before
	relayed         bool          // to gets the gradient sum of the rank just before it
}

// kvSlots is how many chunks of others a rank holds at a time.
const kvSlots = 2

// The gradient slots: two accumulators in turn, one for the sum that comes
// along the ring, one for a sum that comes home meanwhile.
const (
	gradAcc0     = 1
	gradRelay    = 3
	gradHomecome = 4
)

// route finds the hops of every chunk.
func (j *Job) route() {
	ranks := j.Ranks()
	j.hops = make([][]hop, ranks)
	until := make([][]int, ranks) // until[rank][i]: the round in which its i-th chunk gives up its slot
	type place struct{ rank, i int }
	users := make([][]place, ranks) // users[owner]: who needs it, by distance
	index := make([]int, ranks)
	for dist := 1; dist < ranks; dist++ {
		for owner := range ranks {
			rank := (owner + dist) % ranks
			if i := index[rank]; i < len(j.needs[rank]) && j.needs[rank][i].dist == dist {
				users[owner] = append(users[owner], place{rank, i})
				index[rank]++
			}
		}
	}
	for rank, needs := range j.needs {
		until[rank] = make([]int, len(needs))
		for i := range needs {
			until[rank][i] = ranks
			if i+kvSlots < len(needs) {
				until[rank][i] = needs[i+kvSlots].dist
			}
		}
	}
	j.sends = make([][]hop, ranks)
	for owner, way := range users {
		hops := make([]hop, len(way))
		for k, to := range way {
			n := j.needs[to.rank][to.i]
			h := hop{owner: owner, from: owner, to: to.rank, round: n.dist, keys: n.Keys, grads: n.Keys}
			for l := k - 1; l >= 0; l-- {
				if holder := way[l]; until[holder.rank][holder.i] > n.dist {
					h.from = holder.rank
					break
				}
			}
			if k > 0 && hops[k-1].round == n.dist-1 {
				h.relayed = true
				h.grads = h.grads.Hull(hops[k-1].grads)
			}
			hops[k] = h
		}
		for k := len(hops) - 1; k >= 0; k-- {
			for l := range k {
				if hops[l].to == hops[k].from {
					hops[l].keys = hops[l].keys.Hull(hops[k].keys)
				}
			}
		}
		j.hops[owner] = hops
	}
	// By round within a rank: all owners, distance by distance.
	at := make([]int, ranks)
	for dist := 1; dist < ranks; dist++ {
		for owner, hops := range j.hops {
			if at[owner] < len(hops) && hops[at[owner]].round == dist {
				h := hops[at[owner]]
				j.sends[h.from] = append(j.sends[h.from], h)
				at[owner]++
			}
		}
	}
}

// hop finds the hop of owner's chunk in a round, if there is one.
func (j *Job) hop(owner, round int) (hop, bool) {
	hops := j.hops[owner]
	lo, hi := 0, len(hops)
	for lo < hi {
		if mid := (lo + hi) / 2; hops[mid].round < round {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(hops) && hops[lo].round == round {
		return hops[lo], true
	}
	return hop{}, false
}

// ring yields the steps of one rank.
func (j *Job) ring(rank int, pass Pass, yield func(Step) bool) {
	ranks := j.Ranks()
	p := ringPlan{rank: rank, pass: pass, yield: yield, ok: true, busy: map[Slot]bool{}}
	if n := j.Batch.Need(rank, rank); n.Pairs > 0 {
		p.attend(OwnKV, OwnGrad, rank, n, 0)
	}
	held := [kvSlots]int{-1, -1} // the owners in the K/V slots
	got := 0                     // chunks received
	acc := 0                     // accumulators used
	sends := j.sends[rank]
	var before, now *hop // the hops to this rank of the last round and of this one
	var beforeAcc, relay, home Slot
	var homeHop hop
	// Two rounds more than there are distances: the last gradients are sent, and
	// come home, after the last chunk was attended to.
	for round := 1; round <= ranks+1 && p.ok; round++ {
		var here hop
		now = nil
		if got < len(j.needs[rank]) && j.needs[rank][got].dist == round {
			here, _ = j.hop(j.needs[rank][got].owner, round)
			now = &here
		}
		for ; len(sends) > 0 && sends[0].round == round; sends = sends[1:] {
			h := sends[0]
			slot := OwnKV
			if h.owner != rank {
				for i, owner := range held {
					if owner == h.owner {
						slot = Slot{N: 1 + i}
					}
				}
			}
			p.step(Step{Op: Send, Slot: slot, Peer: h.to, Owner: h.owner, Range: h.keys, Round: round})
		}
		var kv Slot
		if now != nil {
			held[got%kvSlots] = now.owner
			kv = Slot{N: 1 + got%kvSlots}
			p.wait(kv, round)
			p.step(Step{Op: Recv, Slot: kv, Peer: now.from, Owner: now.owner, Range: now.keys, Round: round})
		}
		// What came in during the last round.
		if relay.Grad {
			p.add(beforeAcc, relay, before.owner, j.gradsBefore(*before), round)
			relay = Slot{}
		}
		if home.Grad {
			p.add(OwnGrad, home, rank, homeHop.grads, round)
			home = Slot{}
		}
		var nowAcc Slot
		if now != nil {
			p.wait(kv, round)
			if pass == Backward {
				nowAcc = Slot{Grad: true, N: gradAcc0 + acc%2}
				acc++
				p.wait(nowAcc, round)
				p.step(Step{Op: Zero, Slot: nowAcc, Owner: now.owner, Range: now.grads, Round: round})
			}
			p.attend(kv, nowAcc, now.owner, j.needs[rank][got].Need, round)
			got++
		}
		if pass == Backward {
			if before != nil {
				p.wait(beforeAcc, round)
				to := before.owner
				if next, ok := j.hop(before.owner, round); ok {
					to = next.to
				}
				p.step(Step{Op: Send, Slot: beforeAcc, Peer: to, Owner: before.owner, Range: before.grads, Round: round})
			}
			if now != nil && now.relayed {
				relay = Slot{Grad: true, N: gradRelay}
				p.wait(relay, round)
				last, _ := j.hop(now.owner, round-1)
				p.step(Step{Op: Recv, Slot: relay, Peer: last.to, Owner: now.owner, Range: last.grads, Round: round})
			}
			if h, ok := j.hop(rank, round-1); ok {
				if _, passedOn := j.hop(rank, round); !passedOn {
					homeHop = h
					home = Slot{Grad: true, N: gradRelay}
					if relay.Grad {
						home.N = gradHomecome
					}
					p.wait(home, round)
					p.step(Step{Op: Recv, Slot: home, Peer: h.to, Owner: rank, Range: h.grads, Round: round})
				}
			}
		}
		before, beforeAcc = now, nowAcc
	}
	p.drain(ranks + 1)
}

// gradsBefore is the range of the gradient sum that reaches h.to from the rank
// before it.
func (j *Job) gradsBefore(h hop) segments.Span {
	last, _ := j.hop(h.owner, h.round-1)
	return last.grads
}

// ringPlan emits steps, and a Wait only for a slot that something still uses.
type ringPlan struct {
	rank  int
	pass  Pass
	yield func(Step) bool
	ok    bool
	busy  map[Slot]bool
}

func (p *ringPlan) step(s Step) {
	if !p.ok {
		return
	}
	if s.Op == Wait {
		delete(p.busy, s.Slot)
	} else {
		p.busy[s.Slot] = true
		if s.Acc.Grad {
			p.busy[s.Acc] = true
		}
	}
	p.ok = p.yield(s)
}

// drain waits for all that is left.
func (p *ringPlan) drain(round int) {
	for n := range gradHomecome + 1 {
		p.wait(Slot{N: n}, round)
		p.wait(Slot{Grad: true, N: n}, round)
	}
}

func (p *ringPlan) wait(s Slot, round int) {
	if p.busy[s] {
		p.step(Step{Op: Wait, Slot: s, Round: round})
	}
}

func (p *ringPlan) attend(kv, acc Slot, owner int, n segments.Need, round int) {
	s := Step{Op: Attend, Slot: kv, Owner: owner, Range: n.Keys, Pairs: n.Pairs, Round: round}
	if p.pass == Backward {
		s.Acc = acc
	}
	p.step(s)
}

func (p *ringPlan) add(acc, from Slot, owner int, tokens segments.Span, round int) {
	p.wait(from, round)
	p.step(Step{Op: Add, Slot: from, Acc: acc, Owner: owner, Range: tokens, Round: round})
}
