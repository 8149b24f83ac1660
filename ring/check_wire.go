package ring

import "fmt"

// checkWire checks in which form a step takes gradients: sums in float32, or as they are
// sent. Where the two are one there is nothing to round.
func (c *checker) checkWire(slot *checkSlot, s Step) error {
	want := F32
	if s.Slot.Grad && s.Op != Wait {
		want = c.job.Wire
	}
	switch {
	case s.Wire != want:
		return fmt.Errorf("gradients travel as %v", c.job.Wire)
	case want == F32 && s.Op == Round:
		return fmt.Errorf("there is nothing to round to")
	case want == F32:
		return nil
	case s.Op == Send && !slot.rounded:
		return fmt.Errorf("the sums are not rounded")
	case s.Op == Add && !slot.sent:
		return fmt.Errorf("the buffer holds sums, not what was sent of them")
	case s.Op == Round && (s.Slot.Own() || slot.holds(s.Owner, s.Range) != nil || slot.tokens != s.Range):
		return fmt.Errorf("there are no such sums")
	}
	return nil
}
