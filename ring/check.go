package ring

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"ringattn/segments"
)

// Check proves the plans of a pass, one list of steps a rank, right or names the
// first step that is not. It runs them symbolically: a send completes once its
// receive is posted, a receive once its send is, as with messages of any size.
// It proves that
//
//   - each send meets the receive of its peer: same tag, owner, range;
//   - no rank waits for ever;
//   - no buffer is read before what it waits for has come, nor written while
//     somebody still reads or writes it;
//   - each buffer holds the tokens that a step takes it to hold;
//   - each visible pair is attended to once, the own tokens first, and no keys
//     are attended to that nobody sees;
//   - backward, each owner ends up with every rank's gradients of its tokens once;
//   - no step is idle: every wait has something to wait for.
func (j *Job) Check(p Pass, plans [][]Step) error {
	if len(plans) != j.Ranks() {
		return fmt.Errorf("ring: %d plans for %d ranks", len(plans), j.Ranks())
	}
	if j.groups != nil {
		return j.checkHeads(p, plans)
	}
	c := checker{job: j, pass: p, ranks: make([]checkRank, len(plans)), mail: map[envelope]*mailbox{}}
	for r := range c.ranks {
		c.ranks[r] = checkRank{rank: r, steps: plans[r], slots: map[Slot]*checkSlot{}, attended: map[int][]segments.Span{}}
		c.ranks[r].slots[OwnKV] = &checkSlot{filled: true, owner: r, tokens: segments.Span{End: j.Batch.Order(r).Tokens}}
		c.ranks[r].slots[OwnGrad] = &checkSlot{filled: true, owner: r, tokens: segments.Span{End: j.Batch.Order(r).Tokens}, sums: sums{}}
	}
	if err := c.run(c.take); err != nil {
		return err
	}
	for r := range c.ranks {
		if err := c.finish(&c.ranks[r]); err != nil {
			return fmt.Errorf("ring: %v plan of rank %d: %w", p, r, err)
		}
	}
	return c.allMet()
}

var errInUse = errors.New("the buffer is in use")

type checker struct {
	job   *Job
	pass  Pass
	ranks []checkRank
	mail  map[envelope]*mailbox
}

type checkRank struct {
	rank     int
	steps    []Step
	next     int
	slots    map[Slot]*checkSlot
	attended map[int][]segments.Span // by owner
	there    map[headPiece]bool      // what has come of the heads that the rank is to have
}

// checkSlot is what is known of a buffer.
type checkSlot struct {
	filled   bool // holds owner's tokens; false: undefined
	owner    int
	tokens   segments.Span
	sums     sums // gradients
	piece    headPiece
	sent     bool  // gradients as they are sent, and not sums
	rounded  bool  // the sums, and what is sent of them, which are two things
	recv     *post // a receive that nobody waited for yet
	sends    []*post
	computes bool // kernels read or write it
	writes   bool // kernels write it
}

// sums says whose contributions are in a sum of gradients, for which tokens.
type sums map[int][]segments.Span

// envelope and mailbox match the k-th send with the k-th receive.
type envelope struct{ from, to, tag int }

type mailbox struct{ sends, recvs []*post }

// post is a transfer that was started; content is what a send carries.
type post struct {
	step    Step
	box     *mailbox
	k       int
	content checkSlot
}

// run takes steps wherever one can be taken. What blocks a rank is only ever
// lifted by others, so the order does not matter.
func (c *checker) run(take func(*checkRank, Step) (bool, error)) error {
	for moved := true; moved; {
		moved = false
		for i := range c.ranks {
			r := &c.ranks[i]
			for r.next < len(r.steps) {
				done, err := take(r, r.steps[r.next])
				if err != nil {
					return fmt.Errorf("ring: %v plan of rank %d, step %d (%v): %w", c.pass, r.rank, r.next, r.steps[r.next], err)
				}
				if !done {
					break
				}
				r.next++
				moved = true
			}
		}
	}
	for i := range c.ranks {
		if r := &c.ranks[i]; r.next < len(r.steps) {
			return fmt.Errorf("ring: %v plan: rank %d waits for ever at step %d (%v)", c.pass, r.rank, r.next, r.steps[r.next])
		}
	}
	return nil
}

func (r *checkRank) slot(s Slot) *checkSlot {
	if r.slots[s] == nil {
		r.slots[s] = &checkSlot{}
	}
	return r.slots[s]
}

// holds checks that s can be read as owner's tokens.
func (s *checkSlot) holds(owner int, tokens segments.Span) error {
	switch {
	case s.recv != nil:
		return fmt.Errorf("a message is still coming in")
	case !s.filled:
		return fmt.Errorf("the buffer is undefined")
	case s.owner != owner || !s.tokens.Contains(tokens) || tokens.Len() <= 0:
		return fmt.Errorf("the buffer holds owner %d %v", s.owner, s.tokens)
	}
	return nil
}

// take carries out one step; false: it has to wait.
func (c *checker) take(r *checkRank, s Step) (bool, error) {
	slot := r.slot(s.Slot)
	if s.Tensor != NoTensor || s.Slot.Heads || s.Acc.Heads || s.Heads != (segments.Span{}) {
		return false, fmt.Errorf("there is no head exchange")
	}
	if err := c.checkWire(slot, s); err != nil {
		return false, err
	}
	switch s.Op {
	case Recv:
		if s.Slot.Own() || s.Range.Len() <= 0 {
			return false, fmt.Errorf("nothing can be received there")
		}
		if slot.recv != nil || len(slot.sends) > 0 || slot.computes {
			return false, errInUse
		}
		p, err := c.post(r.rank, s, envelope{s.Peer, r.rank, s.Tag()})
		if err != nil {
			return false, err
		}
		*slot = checkSlot{recv: p}
	case Send:
		if err := slot.holds(s.Owner, s.Range); err != nil {
			return false, err
		}
		if slot.writes {
			return false, fmt.Errorf("a kernel still writes the buffer")
		}
		if err := slot.sumsWithin(s.Range); err != nil {
			return false, err
		}
		p, err := c.post(r.rank, s, envelope{r.rank, s.Peer, s.Tag()})
		if err != nil {
			return false, err
		}
		p.content = checkSlot{filled: true, owner: slot.owner, tokens: s.Range, sums: maps.Clone(slot.sums), sent: slot.rounded}
		slot.sends = append(slot.sends, p)
	case Wait:
		return c.wait(slot)
	case Zero:
		if !s.Slot.Grad || s.Slot.Own() || s.Range.Len() <= 0 {
			return false, fmt.Errorf("only a passing gradient buffer is zeroed")
		}
		if slot.recv != nil || len(slot.sends) > 0 || slot.computes {
			return false, errInUse
		}
		*slot = checkSlot{filled: true, owner: s.Owner, tokens: s.Range, sums: sums{}, computes: true, writes: true}
	case Attend:
		return true, c.attend(r, s)
	case Add:
		acc := r.slot(s.Acc)
		if !s.Slot.Grad || !s.Acc.Grad {
			return false, fmt.Errorf("only gradients are added")
		}
		if err := slot.holds(s.Owner, s.Range); err != nil {
			return false, err
		}
		if err := acc.writable(); err != nil {
			return false, err
		}
		if err := acc.holds(s.Owner, s.Range); err != nil {
			return false, fmt.Errorf("destination: %w", err)
		}
		if err := slot.sumsWithin(s.Range); err != nil {
			return false, err
		}
		for from, spans := range slot.sums {
			for _, tokens := range spans {
				if err := acc.sums.add(from, tokens); err != nil {
					return false, err
				}
			}
		}
		slot.computes, acc.computes, acc.writes = true, true, true
	case Round:
		if err := slot.writable(); err != nil {
			return false, err
		}
		if err := slot.sumsWithin(s.Range); err != nil {
			return false, err
		}
		slot.rounded, slot.computes, slot.writes = true, true, true
	default:
		return false, fmt.Errorf("unknown operation")
	}
	return true, nil
}

// writable checks that kernels may write to s; what kernels did before comes
// first by itself.
func (s *checkSlot) writable() error {
	if s.sent || s.rounded {
		return fmt.Errorf("the sums are complete")
	}
	if s.recv != nil {
		return fmt.Errorf("a message is still coming in")
	}
	if len(s.sends) > 0 {
		return fmt.Errorf("the buffer is still being sent")
	}
	return nil
}

// sumsWithin checks that no contribution lies outside a range that is passed on.
func (s *checkSlot) sumsWithin(tokens segments.Span) error {
	for from, spans := range s.sums {
		for _, t := range spans {
			if !tokens.Contains(t) {
				return fmt.Errorf("gradients of rank %d for %v are left behind", from, t)
			}
		}
	}
	return nil
}

// add notes what a rank contributes for some tokens. Lists are never changed, so
// that a clone of sums stays what it was.
func (s sums) add(from int, tokens segments.Span) error {
	if overlap(s[from], tokens) {
		return fmt.Errorf("the gradients of rank %d are added twice", from)
	}
	s[from] = append(slices.Clip(s[from]), tokens)
	return nil
}

func (c *checker) attend(r *checkRank, s Step) error {
	slot := r.slot(s.Slot)
	if s.Slot.Grad {
		return fmt.Errorf("gradients are no keys")
	}
	if err := slot.holds(s.Owner, s.Range); err != nil {
		return err
	}
	need := c.job.Batch.Needs(r.rank, s.Owner, s.Range)[0]
	switch {
	case need.Pairs == 0:
		return fmt.Errorf("there is no visible pair")
	case overlap(r.attended[s.Owner], s.Range):
		return fmt.Errorf("these keys were attended to before")
	case s.Owner != r.rank && r.attended[r.rank] == nil:
		return fmt.Errorf("the own keys come first")
	case s.Pairs != need.Pairs || s.Range != need.Keys:
		return fmt.Errorf("needed are %d pairs, keys %v", need.Pairs, need.Keys)
	}
	r.attended[s.Owner] = append(r.attended[s.Owner], s.Range)
	slot.computes = true
	if c.pass == Forward {
		if s.Acc != (Slot{}) {
			return fmt.Errorf("there are no gradients forward")
		}
		return nil
	}
	acc := r.slot(s.Acc)
	if !s.Acc.Grad {
		return fmt.Errorf("the gradients have no buffer")
	}
	if err := acc.writable(); err != nil {
		return err
	}
	if err := acc.holds(s.Owner, s.Range); err != nil {
		return fmt.Errorf("gradients: %w", err)
	}
	if err := acc.sums.add(r.rank, s.Range); err != nil {
		return err
	}
	acc.computes, acc.writes = true, true
	return nil
}

// post starts a transfer and holds it against its counterpart, if that is there.
func (c *checker) post(rank int, s Step, e envelope) (*post, error) {
	if s.Peer == rank || s.Peer < 0 || s.Peer >= len(c.ranks) {
		return nil, fmt.Errorf("there is no such peer")
	}
	box := c.mail[e]
	if box == nil {
		box = &mailbox{}
		c.mail[e] = box
	}
	mine, theirs := &box.sends, &box.recvs
	if s.Op == Recv {
		mine, theirs = theirs, mine
	}
	p := &post{step: s, box: box, k: len(*mine)}
	*mine = append(*mine, p)
	if p.k < len(*theirs) {
		if other := (*theirs)[p.k].step; other.Range != s.Range || other.Owner != s.Owner || other.Tensor != s.Tensor || other.Heads != s.Heads {
			return nil, fmt.Errorf("the peer has %v", other)
		}
	}
	return p, nil
}

func (c *checker) wait(slot *checkSlot) (bool, error) {
	if slot.recv == nil && len(slot.sends) == 0 && !slot.computes {
		return false, fmt.Errorf("there is nothing to wait for")
	}
	for _, p := range slot.sends {
		if p.k >= len(p.box.recvs) {
			return false, nil
		}
	}
	if p := slot.recv; p != nil {
		if p.k >= len(p.box.sends) {
			return false, nil
		}
		*slot = p.box.sends[p.k].content
		slot.sums = maps.Clone(slot.sums)
	}
	slot.recv, slot.sends, slot.computes, slot.writes = nil, nil, false, false
	return true, nil
}
