package ring

import (
	"cmp"
	"math"
	"slices"

	"ringattn/segments"
)

// The direct schedule.
//
// Each owner sends each rank exactly the ranges of its tokens that the rank's queries
// see, and gets back exactly the gradients of these: the fewest bytes that the layout
// allows.
//
// A rank attends to what it needs of others in stages of at most half a rank's tokens, or
// as many as are asked for, nearest owners first, so that at any time the ranks of a full
// mask send to different ones. A range has a slot of its own: it is attended to as soon as
// it is there, while the next stage comes in and the gradients of the last go to their
// owners. An owner adds up gradients in the order in which they are sent: by round, then by rank.
// Backward, half of the pairs with the own keys come first and half last, as with the
// ring.
//
// The clock has as many rounds as the rank with most stages has of them. A rank with
// fewer attends to them when the others have done as much of their work, so that
// nobody waits for gradients of a rank that is behind. Keys are there from the start, and
// are sent then; they travel when their receiver has room.
//
// Nothing can hang: before it sends the gradients of a round, a rank waits for kernels
// and for messages that both ends post in earlier rounds, and for nothing else; where it
// has too few slots for the gradients that others send in a round, it takes in the rest
// after that.

type directPlanner struct {
	batch  *segments.Batch
	wire   DType
	stages [][]*stage   // stages[rank]: what it attends to, in turn
	sends  [][]*portion // sends[rank]: what others attend to of its tokens, by round and rank
	rounds int
}

// stage is what a rank attends to in a round.
type stage struct {
	portions []*portion
	round    int // 1, 2 ..
	returns  int // the round in which its gradients are sent
	pairs    int64
}

// portion is a range of an owner's tokens that another rank attends to.
type portion struct {
	segments.Need
	owner, to int
	stage     *stage
	slot      int // of its keys, and of its gradients
}

// stageSets is how many stages a rank has slots for: keys of the one that it attends to,
// the next, and the last, whose kernels may still run; gradients of this one and of two
// that are on their way to their owners. It has slots to take in homes ranges of
// gradients at a time. A stage has at most stagePortions ranges.
const (
	stageSets     = 3
	stagePortions = 16
	homes         = 4
)

// newDirect plans stages of at most so many tokens; 0: half a rank's.
func newDirect(b *segments.Batch, wire DType, stageTokens int) planner {
	ranks := b.Ranks()
	d := &directPlanner{batch: b, wire: wire, stages: make([][]*stage, ranks), sends: make([][]*portion, ranks)}
	most := max(min(stageTokens, math.MaxInt32), 1)
	for rank := 0; stageTokens == 0 && rank < ranks; rank++ {
		most = max(most, (b.Order(rank).Tokens+1)/2)
	}
	eachRank(ranks, func(rank int) { d.stages[rank] = d.solve(rank, most) })
	for _, stages := range d.stages {
		d.rounds = max(d.rounds, len(stages))
	}
	for _, stages := range d.stages {
		setClock(stages, d.rounds)
		for _, s := range stages {
			for _, x := range s.portions {
				d.sends[x.owner] = append(d.sends[x.owner], x)
			}
		}
	}
	for _, sends := range d.sends {
		slices.SortStableFunc(sends, func(a, b *portion) int { return cmp.Compare(a.stage.round, b.stage.round) })
	}
	return d
}

// setClock gives the stages of a rank their rounds, by the pairs before them.
func setClock(stages []*stage, rounds int) {
	var all, before int64
	for _, s := range stages {
		all += s.pairs
	}
	last := 0
	for i, s := range stages {
		s.round = 1 + int(float64(before)/float64(all)*float64(rounds))
		s.round = min(max(s.round, last+1), rounds-(len(stages)-1-i))
		if i > 0 {
			stages[i-1].returns = s.round
		}
		s.returns = s.round + 1
		before, last = before+s.pairs, s.round
	}
}

// solve finds what a rank needs of others, in stages of at most so many tokens.
func (d *directPlanner) solve(rank, most int) (stages []*stage) {
	ranks, room := d.batch.Ranks(), 0
	for distance := 1; distance < ranks; distance++ {
		owner := (rank - distance + ranks) % ranks
		var ranges []segments.Span
		for _, keys := range d.batch.KeyRanges(rank, owner) {
			for n := (keys.Len() + most - 1) / most; n > 0; n-- {
				end := keys.Start + (keys.Len()+n-1)/n
				ranges = append(ranges, segments.Span{Start: keys.Start, End: end})
				keys.Start = end
			}
		}
		for _, need := range d.batch.Needs(rank, owner, ranges...) {
			if len(stages) == 0 || need.Keys.Len() > room || len(stages[len(stages)-1].portions) == stagePortions {
				stages, room = append(stages, &stage{}), most
			}
			s := stages[len(stages)-1]
			s.portions = append(s.portions, &portion{Need: need, owner: owner, to: rank, stage: s})
			s.pairs += need.Pairs
			room -= need.Keys.Len()
		}
	}
	for i, s := range stages {
		// The largest first, so that a slot is for ranges that are alike.
		slices.SortStableFunc(s.portions, func(a, b *portion) int { return cmp.Compare(b.Keys.Len(), a.Keys.Len()) })
		for k, x := range s.portions {
			x.slot = 1 + i%stageSets*stagePortions + k
		}
	}
	return stages
}

func (d *directPlanner) plan(rank int, pass Pass, yield func(Step) bool) {
	p := directPlan{
		writer: newWriter(pass, d.wire, yield), rank: rank, stages: d.stages[rank],
		own: d.batch.Need(rank, rank),
	}
	if pass == Backward {
		p.grads = slices.Clone(d.sends[rank])
		slices.SortStableFunc(p.grads, func(a, b *portion) int { return cmp.Compare(a.stage.returns, b.stage.returns) })
		if len(p.stages) > 0 {
			p.own, p.rest = halve(d.batch, rank)
		}
	}
	for _, x := range d.sends[rank] {
		p.step(Step{Op: Send, Slot: OwnKV, Peer: x.to, Owner: rank, Range: x.Keys})
	}
	for ; p.round <= d.rounds+1 && p.ok; p.round++ {
		p.attend()
		p.receiveGradients(homes - len(p.home))
		p.sendGradients()
		p.addGradients()
		p.receiveGradients(len(p.grads))
	}
	p.addGradients()
	p.drain()
}

// directPlan is the state of one rank's plan while it is being made.
type directPlan struct {
	writer
	rank       int
	stages     []*stage
	done, sent int           // stages that were attended to, whose gradients were sent
	own, rest  segments.Need // of the own keys: what comes first, and last
	grads      []*portion    // of the own tokens: to receive
	home       []*portion    // received and not added
	first      int           // so many were added
}

// attend attends to this round's stage; to own keys before the first and after the
// last. The next stage comes in beside the kernels.
func (p *directPlan) attend() {
	switch {
	case p.round == 0:
		p.attendTo(Step{Slot: OwnKV, Acc: OwnGrad, Owner: p.rank}, p.own)
		p.receiveKeys()
	case p.done < len(p.stages) && p.stages[p.done].round == p.round:
		for _, x := range p.stages[p.done].portions {
			p.attendToPortion(x)
		}
		p.done++
		p.receiveKeys()
	case p.done == len(p.stages) && p.done > 0 && p.stages[p.done-1].returns == p.round:
		p.attendTo(Step{Slot: OwnKV, Acc: OwnGrad, Owner: p.rank}, p.rest)
	}
}

func (p *directPlan) attendToPortion(x *portion) {
	kv, acc := Slot{N: x.slot}, Slot{Grad: true, N: x.slot}
	p.wait(kv)
	if p.pass == Backward {
		p.wait(acc)
		p.step(Step{Op: Zero, Slot: acc, Owner: x.owner, Range: x.Keys})
	}
	p.attendTo(Step{Slot: kv, Acc: acc, Owner: x.owner}, x.Need)
	p.roundTo(Step{Slot: acc, Owner: x.owner, Range: x.Keys})
}

// receiveKeys posts the receives of the next stage, once its slots are free.
func (p *directPlan) receiveKeys() {
	if p.done == len(p.stages) {
		return
	}
	for _, x := range p.stages[p.done].portions {
		kv := Slot{N: x.slot}
		p.wait(kv)
		p.step(Step{Op: Recv, Slot: kv, Peer: x.owner, Owner: x.owner, Range: x.Keys})
	}
}

// sendGradients sends those of the last stage to their owners.
func (p *directPlan) sendGradients() {
	for ; p.pass == Backward && p.sent < p.done && p.stages[p.sent].returns == p.round; p.sent++ {
		for _, x := range p.stages[p.sent].portions {
			acc := Slot{Grad: true, N: x.slot}
			p.wait(acc)
			p.step(Step{Op: Send, Slot: acc, Peer: x.owner, Owner: x.owner, Range: x.Keys})
		}
	}
}

// receiveGradients posts the receives of up to so many of those that other ranks send in
// this round, in slots that are free.
func (p *directPlan) receiveGradients(most int) {
	for ; most > 0 && len(p.grads) > 0 && p.grads[0].stage.returns == p.round; most-- {
		if len(p.home) == homes {
			p.comeHome()
		}
		x, slot := p.grads[0], p.homeSlot(len(p.home))
		p.wait(slot)
		p.step(Step{Op: Recv, Slot: slot, Peer: x.to, Owner: p.rank, Range: x.Keys})
		p.grads, p.home = p.grads[1:], append(p.home, x)
	}
}

// addGradients takes in those that were sent in earlier rounds.
func (p *directPlan) addGradients() {
	for len(p.home) > 0 && p.home[0].stage.returns < p.round {
		p.comeHome()
	}
}

// comeHome takes in the gradients that were received first.
func (p *directPlan) comeHome() {
	slot := p.homeSlot(0)
	p.wait(slot)
	p.step(Step{Op: Add, Slot: slot, Acc: OwnGrad, Owner: p.rank, Range: p.home[0].Keys})
	p.home = p.home[1:]
	p.first++
}

// homeSlot is the slot of the i-th gradients that are not added yet.
func (p *directPlan) homeSlot(i int) Slot {
	return Slot{Grad: true, N: 1 + stageSets*stagePortions + (p.first+i)%homes}
}
