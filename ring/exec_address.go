package ring

import "unsafe"

// address finds where a step's tokens stand. Steps come in plan order, so that what is
// known of a slot is what it holds at this step.
//
// A slot that is zeroed holds float32 sums, and behind them, where gradients travel in
// another form, what they are rounded to. A slot that receives holds what was sent.
func (e *Exec) address(b *boundStep) {
	slot, s := &e.slots[slotIndex(b.Slot)], e.shape
	switch b.Op {
	case Recv, Zero:
		slot.base, slot.tokens = b.Range.Start, 0
		if b.Op == Zero {
			slot.tokens = b.Range.Len()
		}
	}
	at := func(slot *slotState, tokenBytes int64) unsafe.Pointer {
		return unsafe.Add(slot.memory, int64(b.Range.Start-slot.base)*tokenBytes)
	}
	token, sums := s.KVTokenBytes(), s.GradTokenBytes()
	if b.Slot.Grad {
		token = s.wireTokenBytes(b.Wire)
		if b.Op == Zero || b.Op == Round {
			token = sums
		}
	}
	b.p, b.bytes = at(slot, token), int64(b.Range.Len())*token
	if b.Acc.Grad {
		b.acc = at(&e.slots[slotIndex(b.Acc)], sums)
	}
	if b.Wire == F32 {
		return
	}
	switch rounded := at(slot, s.wireTokenBytes(b.Wire)); b.Op {
	case Send:
		b.p = unsafe.Add(rounded, int64(slot.tokens)*sums)
	case Round:
		b.acc = unsafe.Add(rounded, int64(slot.tokens)*sums)
	}
}

// add adds received gradients to sums.
func (e *Exec) add(s *boundStep) error {
	n := s.bytes / s.Wire.Size()
	if s.Wire == F32 {
		return e.backend.Add(s.acc, s.p, n)
	}
	return e.backend.AddRounded(s.acc, s.p, n)
}
