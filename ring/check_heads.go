package ring

import (
	"fmt"
	"slices"

	"ringattn/segments"
)

// headPiece is what one message of the head exchange carries, or what a rank keeps: those
// heads of an owner's tokens that a rank of its group computes with.
type headPiece struct {
	tensor          Tensor
	owner, computes int
	heads           segments.Span
}

// checkHeads proves the plans of a job with a head exchange, in three parts that follow one
// another on each rank, with nothing under way between them: the exchange, the plans of the
// ring of each member of the groups, the exchange home. Of an exchange it proves that each
// send meets its receive, that no rank waits for ever, that no buffer is read before what it
// waits for has come or written while it is in use, that it holds what a step takes it to
// hold, and that a rank ends up with each piece that it is to have once.
func (j *Job) checkHeads(p Pass, plans [][]Step) error {
	members := j.split.members
	before, after := make([][]Step, len(plans)), make([][]Step, len(plans))
	inner := make([][][]Step, members) // by member, then group
	for rank, steps := range plans {
		first, last := 0, len(steps)
		for first < last && steps[first].Slot.Heads {
			first++
		}
		for last > first && steps[last-1].Slot.Heads {
			last--
		}
		before[rank], after[rank] = steps[:first], steps[last:]
		ring := make([]Step, last-first)
		for i, s := range steps[first:last] {
			if err := j.toRing(rank, &s); err != nil {
				return fmt.Errorf("ring: %v plan of rank %d, step %d (%v): %w", p, rank, first+i, s, err)
			}
			ring[i] = s
		}
		inner[rank%members] = append(inner[rank%members], ring)
	}
	if err := j.checkExchange(p, false, before); err != nil {
		return err
	}
	for u, plans := range inner {
		if err := j.groups.Check(p, plans); err != nil {
			return fmt.Errorf("ring: member %d of each group as a rank of a ring: %w", u, err)
		}
	}
	return j.checkExchange(p, true, after)
}

// toRing makes a step of a member that of a rank of the ring over the groups.
func (j *Job) toRing(rank int, s *Step) error {
	members := j.split.members
	heads := 0
	switch s.Op {
	case Send, Recv:
		if s.Peer < 0 || s.Peer%members != rank%members {
			return fmt.Errorf("the peer is of another ring")
		}
		s.Peer /= members
		heads = j.planner.(*headPlanner).local
	case Zero:
		heads = j.planner.(*headPlanner).local
	}
	if want := (segments.Span{End: heads}); s.Heads != want {
		return fmt.Errorf("the heads are not those of the member")
	}
	s.Heads = segments.Span{}
	return nil
}

// checkExchange proves one exchange.
func (j *Job) checkExchange(p Pass, home bool, plans [][]Step) error {
	c := checker{job: j, pass: p, ranks: make([]checkRank, len(plans)), mail: map[envelope]*mailbox{}}
	for r := range c.ranks {
		c.ranks[r] = checkRank{rank: r, steps: plans[r], slots: map[Slot]*checkSlot{}, there: map[headPiece]bool{}}
	}
	if err := c.run(func(r *checkRank, s Step) (bool, error) { return c.takeHeads(r, s, home) }); err != nil {
		return err
	}
	for rank := range c.ranks {
		r := &c.ranks[rank]
		err := r.atRest()
		for _, x := range j.toHave(p, home, rank) {
			if err == nil && !r.there[x] {
				err = fmt.Errorf("%v heads %v of owner %d are missing", x.tensor, x.heads, x.owner)
			}
		}
		if err != nil {
			return fmt.Errorf("ring: %v plan of rank %d: %w", p, rank, err)
		}
	}
	return c.allMet()
}

// toHave lists what a rank is to have after an exchange: its part of the heads of each
// tensor, of the tokens of all members; or all heads of its own tokens, from each member.
func (j *Job) toHave(p Pass, home bool, rank int) (all []headPiece) {
	members := j.split.members
	for _, t := range exchanged(p, home) {
		for m := rank / members * members; m < (rank/members+1)*members; m++ {
			x := headPiece{t, m, rank, j.split.of(t, rank%members)}
			if home {
				x = headPiece{t, rank, m, j.split.of(t, m%members)}
			}
			if j.Batch.Order(x.owner).Tokens > 0 {
				all = append(all, x)
			}
		}
	}
	return all
}

// takeHeads carries out one step of an exchange; false: it has to wait.
func (c *checker) takeHeads(r *checkRank, s Step, home bool) (bool, error) {
	slot := r.slot(s.Slot)
	switch {
	case !s.Slot.Heads || s.Slot.Grad || s.Acc != (Slot{}) || s.Pairs != 0 || s.Wire != F32:
		return false, fmt.Errorf("it is not of the head exchange")
	case s.Op == Wait:
		return c.wait(slot)
	case s.Owner < 0 || s.Owner >= len(c.ranks) || s.Range != (segments.Span{End: c.job.Batch.Order(s.Owner).Tokens}) || s.Range.Len() == 0:
		return false, fmt.Errorf("these are not all tokens of the owner")
	}
	piece := headPiece{s.Tensor, s.Owner, s.Peer, s.Heads}
	if to := s.Op == Pack || s.Op == Send; to == home {
		piece.computes = r.rank
	}
	switch s.Op {
	case Recv:
		switch {
		case s.Slot.Own() || slot.inUse():
			return false, errInUse
		case !c.job.due(s, c.pass, home, s.Peer, r.rank):
			return false, fmt.Errorf("this rank is not to have it from the peer")
		}
		post, err := c.post(r.rank, s, envelope{s.Peer, r.rank, s.Tag()})
		if err != nil {
			return false, err
		}
		*slot = checkSlot{recv: post}
	case Pack:
		switch {
		case s.Slot.Own() || slot.inUse():
			return false, errInUse
		case s.Peer == r.rank || !c.job.due(s, c.pass, home, r.rank, s.Peer):
			return false, fmt.Errorf("the peer is not to have it from this rank")
		}
		*slot = checkSlot{filled: true, piece: piece, computes: true, writes: true}
	case Send:
		switch {
		case slot.recv != nil || !slot.filled || slot.piece != piece:
			return false, fmt.Errorf("the buffer does not hold it")
		case slot.writes:
			return false, fmt.Errorf("a kernel still writes the buffer")
		case !c.job.due(s, c.pass, home, r.rank, s.Peer):
			return false, fmt.Errorf("the peer is not to have it from this rank")
		}
		post, err := c.post(r.rank, s, envelope{r.rank, s.Peer, s.Tag()})
		if err != nil {
			return false, err
		}
		post.content = checkSlot{filled: true, piece: piece}
		slot.sends = append(slot.sends, post)
	case Unpack:
		own := s.Slot.Own()
		switch {
		case !c.job.due(s, c.pass, home, s.Peer, r.rank) || own != (s.Peer == r.rank):
			return false, fmt.Errorf("this rank is not to have it from the peer")
		case !own && (slot.recv != nil || !slot.filled || slot.piece != piece):
			return false, fmt.Errorf("the buffer does not hold it")
		case r.there[piece]:
			return false, fmt.Errorf("it is there already")
		}
		r.there[piece] = true
		slot.computes = true
	default:
		return false, fmt.Errorf("it is not of the head exchange")
	}
	return true, nil
}

// inUse reports whether a transfer or kernel may still touch a slot.
func (s *checkSlot) inUse() bool { return s.recv != nil || len(s.sends) > 0 || s.computes }

// due reports whether in an exchange of this pass one rank is to give another what a step
// names.
func (j *Job) due(s Step, p Pass, home bool, from, to int) bool {
	members := j.split.members
	if from < 0 || to < 0 || from/members != to/members || !slices.Contains(exchanged(p, home), s.Tensor) {
		return false
	}
	owner, computes := from, to
	if home {
		owner, computes = to, from
	}
	return s.Owner == owner && s.Heads == j.split.of(s.Tensor, computes%members)
}
