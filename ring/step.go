package ring

import (
	"fmt"

	"ringattn/segments"
)

// Pass is one of the two computations of a job.
type Pass int

// The passes.
const (
	Forward Pass = iota
	Backward
)

func (p Pass) String() string {
	if p == Forward {
		return "forward"
	}
	return "backward"
}

// Op is what a Step does.
type Op uint8

// What a step can do. Recv, Send, Zero, Attend and Add only start what
// they name; Zero, Attend and Add then run one after another, in this order.
const (
	Recv   Op = iota // start receiving Owner's tokens Range from Peer into Slot
	Send             // start sending Owner's tokens Range from Slot to Peer
	Wait             // until every transfer and kernel that touches Slot is done
	Zero             // make Slot hold zero gradients of Owner's tokens Range
	Attend           // the rank's queries to Owner's tokens Range in Slot; backward, add to Acc
	Add              // add the gradients of Owner's tokens Range in Slot to Acc
)

func (o Op) String() string {
	return [...]string{"recv", "send", "wait", "zero", "attend", "add"}[o]
}

// Slot is a buffer of a rank: N = 0 is the rank's own keys and values, or their
// gradients; N >= 1 are the buffers for what is passing through.
type Slot struct {
	Grad bool
	N    int
}

// OwnKV and OwnGrad are the rank's own keys and values and their gradient sums.
var (
	OwnKV   = Slot{}
	OwnGrad = Slot{Grad: true}
)

// Own reports whether s belongs to the rank's own tokens.
func (s Slot) Own() bool { return s.N == 0 }

func (s Slot) String() string {
	kind := "kv"
	if s.Grad {
		kind = "grad"
	}
	if s.Own() {
		return "own-" + kind
	}
	return fmt.Sprintf("%s%d", kind, s.N)
}

// Step is one action of a plan. Fields that an Op does not use are zero.
type Step struct {
	Op    Op
	Slot  Slot
	Acc   Slot // Attend (backward), Add: the gradients that are added to
	Peer  int  // Recv, Send
	Owner int  // the rank whose tokens these are
	Range segments.Span
	Pairs int64 // Attend: visible pairs over all batch rows, not times heads
	Round int   // the place on the ring's clock
}

// Tag is the message tag of a Recv or Send step: it names owner and kind, so
// that messages which slipped a step cannot be taken for one another. The parts of
// a chunk keep their order.
func (s Step) Tag() int {
	tag := FirstTag + 2*s.Owner
	if s.Slot.Grad {
		tag++
	}
	return tag
}

// Bytes is the size of the message of a Recv or Send step.
func (s Step) Bytes(shape Shape) int64 { return int64(s.Range.Len()) * shape.tokenBytes(s.Slot) }

// tokenBytes is the size of one token in a slot.
func (s Shape) tokenBytes(slot Slot) int64 {
	if slot.Grad {
		return s.GradTokenBytes()
	}
	return s.KVTokenBytes()
}

func (s Step) String() string {
	switch s.Op {
	case Recv:
		return fmt.Sprintf("recv   %s <- rank %d: owner %d %v", s.Slot, s.Peer, s.Owner, s.Range)
	case Send:
		return fmt.Sprintf("send   %s -> rank %d: owner %d %v", s.Slot, s.Peer, s.Owner, s.Range)
	case Wait:
		return fmt.Sprintf("wait   %s", s.Slot)
	case Zero:
		return fmt.Sprintf("zero   %s: owner %d %v", s.Slot, s.Owner, s.Range)
	case Add:
		return fmt.Sprintf("add    %s += %s: owner %d %v", s.Acc, s.Slot, s.Owner, s.Range)
	}
	into := ""
	if s.Acc.Grad {
		into = fmt.Sprintf(", gradients to %s", s.Acc)
	}
	return fmt.Sprintf("attend %s: owner %d %v, %d pairs%s", s.Slot, s.Owner, s.Range, s.Pairs, into)
}

// SlotTokens lists the buffers that a plan uses besides the rank's own and the
// most tokens that each holds at a time.
func SlotTokens(steps []Step) map[Slot]int {
	most := map[Slot]int{}
	for _, s := range steps {
		if s.Op == Recv || s.Op == Zero {
			most[s.Slot] = max(most[s.Slot], s.Range.Len())
		}
	}
	return most
}
