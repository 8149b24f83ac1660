package ring

import (
	"slices"

	"ringattn/segments"
)

// The ring schedule.
//
// Its clock is the distance on the ring: in round d rank r receives and attends
// to the chunk of rank r-d, if it needs it. A chunk is sent to the ranks that
// need it and to no others. Whoever has it passes it on: the last rank before
// the receiver that still holds it, the owner else. A rank has two K/V slots,
// so it holds a chunk until the next but one arrives.
//
// Nothing can hang: a step of round d waits for keys of rounds up to d and for
// gradients of rounds before d. Each rank posts its keys of round d before it waits
// for any of that round, and its gradients of round d before it goes on to the next.
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
	grads           segments.Span // the tokens whose gradients to sums up, its own and those before
}

// kvSlots is how many chunks of others a rank holds at a time.
const kvSlots = 2

// The gradient slots: two accumulators in turn, one for the sum that comes
// along the ring, one for a sum that comes home meanwhile.
const (
	gradAcc0  = 1
	gradRelay = 3
	gradHome  = 4
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

// ring yields the steps of one rank: its own keys, and then a few phases a round.
func (j *Job) ring(rank int, pass Pass, yield func(Step) bool) {
	p := ringPlan{
		job: j, rank: rank, pass: pass, yield: yield, ok: true,
		sends: j.sends[rank], needs: j.needs[rank], held: [kvSlots]int{-1, -1},
	}
	if n := j.Batch.Need(rank, rank); n.Pairs > 0 {
		p.attend(Step{Slot: OwnKV, Acc: OwnGrad, Owner: rank}, n)
	}
	// Two rounds more than there are distances: the last gradients are sent, and
	// come home, after the last chunk was attended to.
	for p.round = 1; p.round <= j.Ranks()+1 && p.ok; p.round++ {
		p.sendKeys()
		p.receiveKeys()
		p.addGradients()
		p.attendKeys()
		if pass == Backward {
			p.sendGradients()
			p.receiveGradients()
		}
	}
	p.drain()
}

// ringPlan is the state of one rank's plan while it is being made.
type ringPlan struct {
	job   *Job
	rank  int
	pass  Pass
	round int
	yield func(Step) bool
	ok    bool                     // yield wants more
	busy  [2 * (gradHome + 1)]bool // by slotIndex: something may still use it

	sends []hop        // of keys, those to come
	needs []need       // chunks to come
	got   int          // chunks received
	held  [kvSlots]int // whose chunks the slots have
	now   *visit       // the chunk of this round, if there is one
	last  *visit       // that of the last round
	relay Slot         // where the gradient sum for now comes in; zero: none does
	home  Slot         // where the sum of the rank's own chunk comes in
	homed hop          // of the rank that sends it
}

// visit is a chunk of another rank at this one.
type visit struct {
	hop
	kv, acc Slot
}

// sendKeys passes on, or hands out, what others attend to in this round.
func (p *ringPlan) sendKeys() {
	for ; len(p.sends) > 0 && p.sends[0].round == p.round; p.sends = p.sends[1:] {
		h, slot := p.sends[0], OwnKV
		if h.owner != p.rank {
			slot = Slot{N: 1 + slices.Index(p.held[:], h.owner)}
		}
		p.step(Step{Op: Send, Slot: slot, Peer: h.to, Owner: h.owner, Range: h.keys})
	}
}

// receiveKeys posts the receive of this round's chunk, once its slot is free.
func (p *ringPlan) receiveKeys() {
	p.last, p.now = p.now, nil
	if len(p.needs) == 0 || p.needs[0].dist != p.round {
		return
	}
	h, _ := p.job.hop(p.needs[0].owner, p.round)
	i := p.got % kvSlots
	p.held[i] = h.owner
	p.now = &visit{hop: h, kv: Slot{N: 1 + i}}
	if p.pass == Backward {
		p.now.acc = Slot{Grad: true, N: gradAcc0 + p.got%2}
	}
	p.got++
	p.wait(p.now.kv)
	p.step(Step{Op: Recv, Slot: p.now.kv, Peer: h.from, Owner: h.owner, Range: h.keys})
}

// addGradients takes in the sums that came during the last round.
func (p *ringPlan) addGradients() {
	if p.relay.Grad {
		before, _ := p.job.hop(p.last.owner, p.last.round-1)
		p.wait(p.relay)
		p.step(Step{Op: Add, Slot: p.relay, Acc: p.last.acc, Owner: p.last.owner, Range: before.grads})
		p.relay = Slot{}
	}
	if p.home.Grad {
		p.wait(p.home)
		p.step(Step{Op: Add, Slot: p.home, Acc: OwnGrad, Owner: p.rank, Range: p.homed.grads})
		p.home = Slot{}
	}
}

// attendKeys attends to this round's chunk as soon as it is here.
func (p *ringPlan) attendKeys() {
	if p.now == nil {
		return
	}
	p.wait(p.now.kv)
	if p.pass == Backward {
		p.wait(p.now.acc)
		p.step(Step{Op: Zero, Slot: p.now.acc, Owner: p.now.owner, Range: p.now.grads})
	}
	p.attend(Step{Slot: p.now.kv, Acc: p.now.acc, Owner: p.now.owner}, p.needs[0].Need)
	p.needs = p.needs[1:]
}

// sendGradients sends the sum of the last round on, or home.
func (p *ringPlan) sendGradients() {
	if p.last == nil {
		return
	}
	to := p.last.owner
	if next, ok := p.job.hop(p.last.owner, p.round); ok {
		to = next.to
	}
	p.wait(p.last.acc)
	p.step(Step{Op: Send, Slot: p.last.acc, Peer: to, Owner: p.last.owner, Range: p.last.grads})
}

// receiveGradients posts the receives of the sums that the ranks of the last
// round send now: of the chunk that this rank has just begun with, and of its own.
func (p *ringPlan) receiveGradients() {
	if p.now != nil {
		if before, ok := p.job.hop(p.now.owner, p.round-1); ok {
			p.relay = Slot{Grad: true, N: gradRelay}
			p.wait(p.relay)
			p.step(Step{Op: Recv, Slot: p.relay, Peer: before.to, Owner: p.now.owner, Range: before.grads})
		}
	}
	h, ok := p.job.hop(p.rank, p.round-1)
	if _, passedOn := p.job.hop(p.rank, p.round); !ok || passedOn {
		return
	}
	p.homed, p.home = h, Slot{Grad: true, N: gradRelay}
	if p.relay.Grad {
		p.home.N = gradHome
	}
	p.wait(p.home)
	p.step(Step{Op: Recv, Slot: p.home, Peer: h.to, Owner: p.rank, Range: h.grads})
}

// drain waits for all that is left.
func (p *ringPlan) drain() {
	for n := range gradHome + 1 {
		p.wait(Slot{N: n})
		p.wait(Slot{Grad: true, N: n})
	}
}

func (p *ringPlan) attend(s Step, n segments.Need) {
	s.Op, s.Range, s.Pairs = Attend, n.Keys, n.Pairs
	if p.pass == Forward {
		s.Acc = Slot{}
	}
	p.step(s)
}

// wait is there only for a slot that something may still use.
func (p *ringPlan) wait(s Slot) {
	if p.busy[slotIndex(s)] {
		p.step(Step{Op: Wait, Slot: s})
	}
}

func (p *ringPlan) step(s Step) {
	if !p.ok {
		return
	}
	p.busy[slotIndex(s.Slot)] = s.Op != Wait
	if s.Acc.Grad {
		p.busy[slotIndex(s.Acc)] = true
	}
	s.Round = p.round
	p.ok = p.yield(s)
}
