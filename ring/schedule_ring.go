package ring

import (
	"cmp"
	"slices"

	"ringattn/segments"
)

// The ring schedule.
//
// Its clock is the distance on the ring, in parts of a chunk: in round
// parts*(d-1) + i + 1 rank r attends to part i of the chunk of rank r-d, if it
// needs it. A part is sent to the ranks that need it and to no others. Whoever has
// it passes it on: the last rank before the receiver that still holds it, the owner
// else. Sends are posted as soon as the sender has the part, the receive one round
// ahead and not before the last part is here: so parts come one after another, and
// while the first is attended to the next has the whole link. A rank has three slots
// for them: for the part that it attends to, the last, and the next.
//
// Backward, a rank adds up its gradients of a part in an accumulator of its own
// while the sum of the ranks before comes in, adds the two, and sends them on parts
// rounds later: to the next rank where that attends to the same part just then,
// home to the owner else. So gradients travel one step behind their keys, beside
// the next kernel, and each rank sends the gradients of a part once.
//
// On two levels the distance goes round the owner's node first, then from node to node
// and round each. So the owner sends a part to each other node once, to the first rank
// there that needs it, who passes it on; its slot is one of their own, so that it has as
// long as the rounds of a node for the slow link. Sums of gradients go home from each
// node.
//
// At either end of the backward pass a hop has no chunk of others beside it: the
// first of keys, the last of gradients. But a rank's own keys are always there, and
// their gradients need no hop: half of these pairs come first, half last.
//
// Nothing can hang: in a round a rank waits for kernels, and for messages that both
// ends post in earlier rounds, and for nothing else.

type ringPlanner struct {
	batch *segments.Batch
	grid  grid
	wire  DType
	needs [][]need // needs[rank]: what it wants of others, by round
	hops  [][]hop  // hops[part]: its way, by round
	sends [][]hop  // sends[rank]: the hops that start at it, by round
}

// need is a part of another rank's chunk that a rank attends to.
type need struct {
	part
	round   int
	post    int  // the round in which its receive is posted
	slot    int  // that it comes into
	until   int  // the round in which it gives up its slot
	crosses bool // it is the first on its node that needs the part
	turn    int  // so many parts are attended to before
	segments.Need
}

func newRing(b *segments.Batch, g grid, wire DType) planner {
	s := &ringPlanner{batch: b, grid: g, wire: wire, needs: make([][]need, b.Ranks())}
	eachRank(b.Ranks(), func(rank int) { s.needs[rank] = s.solve(rank) })
	s.route()
	return s
}

// solve finds what a rank wants of others, by round.
func (s *ringPlanner) solve(rank int) (needs []need) {
	for dist := 1; dist < s.batch.Ranks(); dist++ {
		owner := s.grid.from(rank, dist)
		spans := s.spans(owner)
		for i, n := range s.batch.Needs(rank, owner, spans[:]...) {
			if n.Pairs > 0 {
				needs = append(needs, need{part: part(parts*owner + i), round: parts*(dist-1) + i + 1, Need: n})
			}
		}
	}
	return needs
}

// kvSlots is how many parts of others' chunks a rank holds at a time, besides one of each
// that comes from another node.
const kvSlots = parts + 1

// The gradient slots: accumulators, in turn, until the sum has left; two, in turn,
// for the sums that come along the ring; one for the sum of each own part that comes
// home.
const (
	gradAcc    = 1
	accSlots   = parts + 1
	gradRelay  = gradAcc + accSlots
	relaySlots = 2
	gradHome   = gradRelay + relaySlots
)

// plan takes a few phases a round.
//
// What others wait for comes before what only this rank does: first whatever can be
// posted at once, then what has to wait for the kernel of the last round but one.
func (s *ringPlanner) plan(rank int, pass Pass, yield func(Step) bool) {
	p := ringPlan{
		ringPlanner: s, rank: rank, writer: newWriter(pass, s.wire, yield),
		sends: s.sends[rank], needs: slices.Clone(s.needs[rank]), left: len(s.needs[rank]),
		own: s.batch.Need(rank, rank), visits: map[int]*visit{},
	}
	for i := range p.needs {
		p.needs[i].turn = i
	}
	slices.SortStableFunc(p.needs, func(a, b need) int { return cmp.Compare(a.post, b.post) })
	for i := range p.held {
		p.held[i] = -1
	}
	if pass == Backward && p.left > 0 {
		p.own, p.rest = halve(s.batch, rank)
	}
	// The gradients of the last part leave parts rounds after it.
	for ; p.round <= parts*s.batch.Ranks() && p.ok; p.round++ {
		p.awaitKeys()
		p.sendKeys()
		p.receiveGradients()
		p.receiveKeys()
		p.sendGradients()
		p.addGradients()
		p.roundGradients()
		p.attend()
	}
	for i := range parts {
		p.comeHome(i)
	}
	p.drain()
}

// ringPlan is the state of one rank's plan while it is being made.
type ringPlan struct {
	*ringPlanner
	writer
	rank int

	own, rest segments.Need         // of the own keys: what comes first, and last
	sends     []hop                 // of keys, those to come
	needs     []need                // parts to come
	left      int                   // parts to attend to
	held      [kvSlots + parts]part // which parts the slots have
	visits    map[int]*visit        // by round
	homes     [parts]*hop           // by own part, of the rank whose sum comes home; nil: none does
}

// visit is a part of another rank's chunk at this one.
type visit struct {
	hop
	need    segments.Need
	kv, acc Slot
	relay   Slot // where the sum of the ranks before comes in; zero: none does
}

// visit is what the rank attends to in a round; nil: nothing.
func (p *ringPlan) visit(round int) *visit { return p.visits[round] }

// awaitKeys waits for this round's part.
func (p *ringPlan) awaitKeys() {
	if now := p.visit(p.round); now != nil {
		p.wait(now.kv)
	}
}

// sendKeys passes on the part that has come, and hands out own ones, to ranks that
// attend to them parts rounds from now, or that get them long ahead.
func (p *ringPlan) sendKeys() {
	for ; len(p.sends) > 0 && p.sends[0].post < p.round+parts; p.sends = p.sends[1:] {
		h, slot := p.sends[0], OwnKV
		if h.owner() != p.rank {
			slot = Slot{N: 1 + slices.Index(p.held[:], h.part)}
		}
		p.step(Step{Op: Send, Slot: slot, Peer: h.to, Owner: h.owner(), Range: h.keys})
	}
}

// receiveKeys posts the receives of this round, mostly of the next round's part, once
// the slot is free.
func (p *ringPlan) receiveKeys() {
	for ; len(p.needs) > 0 && p.needs[0].post <= p.round; p.needs = p.needs[1:] {
		n := p.needs[0]
		h, _ := p.hop(n.part, n.round)
		v := &visit{hop: h, need: n.Need, kv: Slot{N: n.slot}}
		if p.pass == Backward {
			v.acc = Slot{Grad: true, N: gradAcc + n.turn%accSlots}
		}
		p.held[n.slot-1] = n.part
		p.visits[n.round] = v
		p.wait(v.kv)
		p.step(Step{Op: Recv, Slot: v.kv, Peer: h.from, Owner: h.owner(), Range: h.keys})
	}
}

// sendGradients sends the sum that was completed in the last round on, or home.
func (p *ringPlan) sendGradients() {
	v := p.visit(p.round - parts)
	if v == nil || !v.acc.Grad {
		return
	}
	to := v.owner()
	if next, ok := p.next(v.hop); ok {
		to = next.to
	}
	p.wait(v.acc)
	p.step(Step{Op: Send, Slot: v.acc, Peer: to, Owner: v.owner(), Range: v.grads})
}

// receiveGradients posts the receives of the sums that other ranks send in this
// round: of an own part, and of the part that this rank attends to.
func (p *ringPlan) receiveGradients() {
	if p.pass == Forward {
		return
	}
	i := (p.round + parts - 1) % parts
	own := part(parts*p.rank + i)
	h, ok := p.hop(own, p.round-parts)
	if _, passedOn := p.next(h); ok && !passedOn {
		p.comeHome(i)
		p.homes[i] = &h
		home := Slot{Grad: true, N: gradHome + i}
		p.wait(home)
		p.step(Step{Op: Recv, Slot: home, Peer: h.to, Owner: p.rank, Range: h.grads})
	}
	if now := p.visit(p.round); now != nil {
		if before, ok := p.prior(now.hop); ok {
			now.relay = Slot{Grad: true, N: gradRelay + p.round%relaySlots}
			p.wait(now.relay)
			p.step(Step{Op: Recv, Slot: now.relay, Peer: before.to, Owner: now.owner(), Range: before.grads})
		}
	}
}

// comeHome takes in the sum of an own part that comes home: as late as can be, since
// nobody waits for it.
func (p *ringPlan) comeHome(i int) {
	h := p.homes[i]
	if h == nil {
		return
	}
	home := Slot{Grad: true, N: gradHome + i}
	p.wait(home)
	p.step(Step{Op: Add, Slot: home, Acc: OwnGrad, Owner: p.rank, Range: h.grads})
	p.homes[i] = nil
}

// addGradients takes in the sum of the ranks before of the last round's part: ahead
// of this round's kernel, so that the sum can leave in the next round.
func (p *ringPlan) addGradients() {
	last := p.visit(p.round - 1)
	if last == nil || !last.relay.Grad {
		return
	}
	before, _ := p.prior(last.hop)
	p.wait(last.relay)
	p.step(Step{Op: Add, Slot: last.relay, Acc: last.acc, Owner: last.owner(), Range: before.grads})
}

// roundGradients makes what is sent of the sum of the last round's part, ahead of this
// round's kernel too.
func (p *ringPlan) roundGradients() {
	if last := p.visit(p.round - 1); last != nil {
		p.roundTo(Step{Slot: last.acc, Owner: last.owner(), Range: last.grads})
	}
}

// attend attends to this round's part; to own keys at first, and when no part is
// left.
func (p *ringPlan) attend() {
	now := p.visit(p.round)
	switch {
	case p.round == 0:
		p.attendTo(Step{Slot: OwnKV, Acc: OwnGrad, Owner: p.rank}, p.own)
	case now != nil:
		if p.pass == Backward {
			p.wait(now.acc)
			p.step(Step{Op: Zero, Slot: now.acc, Owner: now.owner(), Range: now.grads})
		}
		p.attendTo(Step{Slot: now.kv, Acc: now.acc, Owner: now.owner()}, now.need)
		p.left--
	case p.left == 0:
		p.attendTo(Step{Slot: OwnKV, Acc: OwnGrad, Owner: p.rank}, p.rest)
		p.rest = segments.Need{}
	}
}
