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
// At either end of the backward pass a hop has no chunk of others beside it: the
// first of keys, the last of gradients. But a rank's own keys are always there, and
// their gradients need no hop: half of these pairs come first, half last.
//
// Nothing can hang: in a round a rank waits for kernels, and for messages that both
// ends post in earlier rounds, and for nothing else.

// hop is a part's way from one rank to the next that needs it.
type hop struct {
	part
	from, to int
	round    int           // in which to attends to it
	keys     segments.Span // what the message carries: for to and for those it feeds
	grads    segments.Span // the tokens whose gradients to sums up, its own and those before
}

// kvSlots is how many parts of others' chunks a rank holds at a time.
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
	gradSlots  = gradHome + parts
)

// route finds the hops of every part.
func (j *Job) route() {
	ranks := j.Ranks()
	j.hops = make([][]hop, parts*ranks)
	until := make([][]int, ranks) // until[rank][i]: the round in which the i-th part gives up its slot
	type place struct{ rank, i int }
	users := make([][]place, parts*ranks) // users[part]: who needs it, by round
	index := make([]int, ranks)
	for round := 1; round <= parts*(ranks-1); round++ {
		for owner := range ranks {
			rank := (owner + (round-1)/parts + 1) % ranks
			if i := index[rank]; i < len(j.needs[rank]) && j.needs[rank][i].round == round {
				p := j.needs[rank][i].part
				users[p] = append(users[p], place{rank, i})
				index[rank]++
			}
		}
	}
	for rank, needs := range j.needs {
		until[rank] = make([]int, len(needs))
		for i := range needs {
			until[rank][i] = parts * ranks
			if i+kvSlots < len(needs) {
				until[rank][i] = needs[i+kvSlots].round
			}
		}
	}
	j.sends = make([][]hop, ranks)
	for i, way := range users {
		hops := make([]hop, len(way))
		for k, to := range way {
			n := j.needs[to.rank][to.i]
			h := hop{part: part(i), from: part(i).owner(), to: to.rank, round: n.round, keys: n.Keys, grads: n.Keys}
			for l := k - 1; l >= 0; l-- {
				if holder := way[l]; until[holder.rank][holder.i] > n.round {
					h.from = holder.rank
					break
				}
			}
			if k > 0 && hops[k-1].round == n.round-parts {
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
		j.hops[i] = hops
	}
	// By round within a rank: all parts, round by round.
	at := make([]int, len(j.hops))
	for round := 1; round <= parts*(ranks-1); round++ {
		for i, hops := range j.hops {
			if at[i] < len(hops) && hops[at[i]].round == round {
				h := hops[at[i]]
				j.sends[h.from] = append(j.sends[h.from], h)
				at[i]++
			}
		}
	}
}

// hop finds the hop of a part in a round, if there is one.
func (j *Job) hop(p part, round int) (hop, bool) {
	i, ok := slices.BinarySearchFunc(j.hops[p], round, func(h hop, round int) int { return cmp.Compare(h.round, round) })
	if !ok {
		return hop{}, false
	}
	return j.hops[p][i], true
}

// ring yields the steps of one rank, a few phases a round.
//
// What others wait for comes before what only this rank does: first whatever can be
// posted at once, then what has to wait for the kernel of the last round but one.
func (j *Job) ring(rank int, pass Pass, yield func(Step) bool) {
	p := ringPlan{
		job: j, rank: rank, pass: pass, yield: yield, ok: true,
		sends: j.sends[rank], needs: j.needs[rank], left: len(j.needs[rank]),
		own: j.Batch.Need(rank, rank),
	}
	for i := range p.held {
		p.held[i] = -1
	}
	if pass == Backward && p.left > 0 {
		p.own, p.rest = j.halve(rank)
	}
	// The gradients of the last part leave parts rounds after it.
	for ; p.round <= parts*j.Ranks() && p.ok; p.round++ {
		p.awaitKeys()
		p.sendKeys()
		p.receiveGradients()
		p.receiveKeys()
		p.sendGradients()
		p.addGradients()
		p.attend()
	}
	for i := range parts {
		p.comeHome(i)
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
	ok    bool                // yield wants more
	busy  [2 * gradSlots]bool // by slotIndex: something may still use it

	own, rest segments.Need     // of the own keys: what comes first, and last
	sends     []hop             // of keys, those to come
	needs     []need            // parts to come
	got       int               // parts that have come
	left      int               // parts to attend to
	held      [kvSlots]part     // which parts the slots have
	visits    [parts + 2]*visit // of the next round, this one and the last, by round modulo their number
	homes     [parts]*hop       // by own part, of the rank whose sum comes home; nil: none does
}

// visit is a part of another rank's chunk at this one.
type visit struct {
	hop
	need    segments.Need
	kv, acc Slot
	relay   Slot // where the sum of the ranks before comes in; zero: none does
}

// visit is what the rank attends to in a round; nil: nothing.
func (p *ringPlan) visit(round int) *visit {
	if round < 1 {
		return nil
	}
	return p.visits[round%len(p.visits)]
}

// awaitKeys waits for this round's part.
func (p *ringPlan) awaitKeys() {
	if now := p.visit(p.round); now != nil {
		p.wait(now.kv)
	}
}

// sendKeys passes on the part that has come, and hands out own ones, to ranks that
// attend to them parts rounds from now.
func (p *ringPlan) sendKeys() {
	for ; len(p.sends) > 0 && p.sends[0].round <= p.round+parts; p.sends = p.sends[1:] {
		h, slot := p.sends[0], OwnKV
		if h.owner() != p.rank {
			slot = Slot{N: 1 + slices.Index(p.held[:], h.part)}
		}
		p.step(Step{Op: Send, Slot: slot, Peer: h.to, Owner: h.owner(), Range: h.keys})
	}
}

// receiveKeys posts the receive of the next round's part, once its slot is free.
func (p *ringPlan) receiveKeys() {
	next := &p.visits[(p.round+1)%len(p.visits)]
	*next = nil
	if len(p.needs) == 0 || p.needs[0].round != p.round+1 {
		return
	}
	n := p.needs[0]
	p.needs = p.needs[1:]
	h, _ := p.job.hop(n.part, n.round)
	v := &visit{hop: h, need: n.Need, kv: Slot{N: 1 + p.got%kvSlots}}
	if p.pass == Backward {
		v.acc = Slot{Grad: true, N: gradAcc + p.got%accSlots}
	}
	p.held[p.got%kvSlots] = n.part
	p.got++
	*next = v
	p.wait(v.kv)
	p.step(Step{Op: Recv, Slot: v.kv, Peer: h.from, Owner: h.owner(), Range: h.keys})
}

// sendGradients sends the sum that was completed in the last round on, or home.
func (p *ringPlan) sendGradients() {
	v := p.visit(p.round - parts)
	if v == nil || !v.acc.Grad {
		return
	}
	to := v.owner()
	if next, ok := p.job.hop(v.part, p.round); ok {
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
	h, ok := p.job.hop(own, p.round-parts)
	if _, passedOn := p.job.hop(own, p.round); ok && !passedOn {
		p.comeHome(i)
		p.homes[i] = &h
		home := Slot{Grad: true, N: gradHome + i}
		p.wait(home)
		p.step(Step{Op: Recv, Slot: home, Peer: h.to, Owner: p.rank, Range: h.grads})
	}
	if now := p.visit(p.round); now != nil {
		if before, ok := p.job.hop(now.part, p.round-parts); ok {
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
	before, _ := p.job.hop(last.part, last.round-parts)
	p.wait(last.relay)
	p.step(Step{Op: Add, Slot: last.relay, Acc: last.acc, Owner: last.owner(), Range: before.grads})
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

func (p *ringPlan) attendTo(s Step, n segments.Need) {
	if n.Pairs == 0 {
		return
	}
	s.Op, s.Range, s.Pairs = Attend, n.Keys, n.Pairs
	if p.pass == Forward {
		s.Acc = Slot{}
	}
	p.step(s)
}

// drain waits for all that is left.
func (p *ringPlan) drain() {
	for n := range gradSlots {
		p.wait(Slot{N: n})
		p.wait(Slot{Grad: true, N: n})
	}
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
