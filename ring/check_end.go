package ring

import (
	"fmt"

	"ringattn/segments"
)

// finish checks what a rank must have at the end.
func (c *checker) finish(r *checkRank) error {
	if err := r.atRest(); err != nil {
		return err
	}
	for owner := range c.ranks {
		if err := c.complete(r.rank, owner, r.attended[owner]); err != nil {
			return fmt.Errorf("owner %d is attended to in part: %w", owner, err)
		}
		if c.pass == Forward {
			continue
		}
		if err := c.complete(owner, r.rank, r.slots[OwnGrad].sums[owner]); err != nil {
			return fmt.Errorf("gradients of rank %d: %w", owner, err)
		}
	}
	return nil
}

// atRest checks that nothing is under way.
func (r *checkRank) atRest() error {
	for s, slot := range r.slots {
		if slot.recv != nil || len(slot.sends) > 0 || slot.computes {
			return fmt.Errorf("%v is still in use at the end", s)
		}
	}
	return nil
}

// complete checks that spans, which do not overlap, hold all keys of rank kv that
// rank q sees: every pair of the two ranks.
func (c *checker) complete(q, kv int, spans []segments.Span) error {
	need, pairs := c.job.Batch.Need(q, kv), int64(0)
	for _, n := range c.job.Batch.Needs(q, kv, spans...) {
		pairs += n.Pairs
	}
	if pairs != need.Pairs {
		return fmt.Errorf("%d of %d pairs, keys %v of %v", pairs, need.Pairs, spans, need.Keys)
	}
	return nil
}

// allMet checks that no message has one end alone.
func (c *checker) allMet() error {
	for e, m := range c.mail {
		if len(m.sends) != len(m.recvs) {
			return fmt.Errorf("ring: %v plan: %d sends and %d receives from rank %d to rank %d with tag %d", c.pass, len(m.sends), len(m.recvs), e.from, e.to, e.tag)
		}
	}
	return nil
}
