package ring

import "ringattn/segments"

// writer writes down the steps of one rank's plan, whatever the schedule.
type writer struct {
	pass  Pass
	wire  DType // of gradients
	round int
	yield func(Step) bool
	ok    bool   // yield wants more
	busy  []bool // by slotIndex: something may still use it
}

func newWriter(p Pass, wire DType, yield func(Step) bool) writer {
	return writer{pass: p, wire: wire, yield: yield, ok: true}
}

// attendTo is there only where there are pairs; forward it has no accumulator.
func (w *writer) attendTo(s Step, n segments.Need) {
	if n.Pairs == 0 {
		return
	}
	s.Op, s.Range, s.Pairs = Attend, n.Keys, n.Pairs
	if w.pass == Forward {
		s.Acc = Slot{}
	}
	w.step(s)
}

// roundTo makes what is sent of a slot's gradients, once nothing more is added to them;
// it is there only where they do not travel as they are.
func (w *writer) roundTo(s Step) {
	if w.pass == Backward && w.wire != F32 {
		s.Op = Round
		w.step(s)
	}
}

// wait is there only for a slot that something may still use.
func (w *writer) wait(s Slot) {
	if i := slotIndex(s); i < len(w.busy) && w.busy[i] {
		w.step(Step{Op: Wait, Slot: s})
	}
}

// drain waits for all that is left.
func (w *writer) drain() {
	for i := range w.busy {
		w.wait(slotOf(i))
	}
}

func (w *writer) step(s Step) {
	if !w.ok {
		return
	}
	w.use(s.Slot, s.Op != Wait)
	if s.Acc.Grad {
		w.use(s.Acc, true)
	}
	s.Round = w.round
	if s.Slot.Grad && s.Op != Wait {
		s.Wire = w.wire
	}
	w.ok = w.yield(s)
}

func (w *writer) use(s Slot, busy bool) {
	for len(w.busy) <= slotIndex(s) {
		w.busy = append(w.busy, false)
	}
	w.busy[slotIndex(s)] = busy
}
