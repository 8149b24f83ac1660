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

// What a step can do. All but Wait only start what they name; kernels (all but Recv, Send
// and Wait) then run one after another, in this order.
const (
	Recv   Op = iota // start receiving Owner's tokens Range from Peer into Slot
	Send             // start sending Owner's tokens Range from Slot to Peer
	Wait             // until every transfer and kernel that touches Slot is done
	Zero             // make Slot hold zero gradients of Owner's tokens Range
	Attend           // the rank's queries to Owner's tokens Range in Slot; backward, add to Acc
	Add              // add the gradients of Owner's tokens Range in Slot to Acc
	Round            // round the gradients of Owner's tokens Range in Slot to what is sent of them

	// Of the head exchange, with Heads of Owner's tokens Range of Tensor: copy what goes to
	// Peer into Slot; copy what came from Peer, or what the rank keeps, out of Slot.
	Pack
	Unpack
)

func (o Op) String() string {
	return [...]string{"recv", "send", "wait", "zero", "attend", "add", "round", "pack", "unpack"}[o]
}

// Slot is a buffer of a rank: N = 0 is the rank's own keys and values, or their
// gradients; N >= 1 are the buffers for what is passing through. With Heads set it is one
// of the head exchange.
type Slot struct {
	Grad, Heads bool
	N           int
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
	switch {
	case s.Heads:
		kind = "heads"
	case s.Grad:
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
	Peer  int  // Recv, Send, Pack, Unpack
	Owner int  // the rank whose tokens these are
	Range segments.Span
	Wire  DType // of gradients that are sent or received; Zero: that the slot has room to round to
	// Of the head exchange: what is carried, and the heads of the job that are. Else Heads
	// is as many KV heads as the ring carries, where these are not all of the job.
	Tensor Tensor
	Heads  segments.Span
	Pairs  int64 // Attend: visible pairs over all batch rows, not times heads
	Round  int   // the place on the ring's clock
}

// Tag is the message tag of a Recv or Send step: it names owner and kind, so
// that messages which slipped a step cannot be taken for one another. The parts of
// a chunk keep their order. In the head exchange two ranks, which send each other no
// chunks, have one message of each tensor each way.
func (s Step) Tag() int {
	if s.Tensor != NoTensor {
		return FirstTag + int(s.Tensor)
	}
	tag := FirstTag + 2*s.Owner
	if s.Slot.Grad {
		tag++
	}
	return tag
}

// Bytes is the size of the message of a Recv or Send step; shape is the job's.
func (s Step) Bytes(shape Shape) int64 {
	if s.Tensor != NoTensor {
		return int64(s.Range.Len()) * s.Tensor.tokenBytes(shape, s.Heads.Len())
	}
	shape.KVHeads = s.kvHeads(shape)
	if s.Slot.Grad {
		return int64(s.Range.Len()) * shape.wireTokenBytes(s.Wire)
	}
	return int64(s.Range.Len()) * shape.KVTokenBytes()
}

// kvHeads is as many as a step of the ring carries.
func (s Step) kvHeads(shape Shape) int {
	if s.Heads.Len() > 0 {
		return s.Heads.Len()
	}
	return shape.KVHeads
}

// room is the bytes that a Recv, Zero or Pack step wants of its slot: sums of gradients are
// float32, what is sent of them, where that is not the same, stands behind.
func (s Step) room(shape Shape) int64 {
	bytes := s.Bytes(shape)
	if s.Op == Zero && s.Wire != F32 {
		shape.KVHeads = s.kvHeads(shape)
		bytes += int64(s.Range.Len()) * shape.GradTokenBytes()
	}
	return bytes
}

// wireTokenBytes is the size of a token's dk and dv as they are sent.
func (s Shape) wireTokenBytes(wire DType) int64 { return s.GradTokenBytes() / 4 * wire.Size() }

func (s Step) String() string {
	if s.Tensor != NoTensor {
		return s.headsString()
	}
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
	case Round:
		return fmt.Sprintf("round  %s to %v: owner %d %v", s.Slot, s.Wire, s.Owner, s.Range)
	}
	into := ""
	if s.Acc.Grad {
		into = fmt.Sprintf(", gradients to %s", s.Acc)
	}
	return fmt.Sprintf("attend %s: owner %d %v, %d pairs%s", s.Slot, s.Owner, s.Range, s.Pairs, into)
}

// headsString is that of a step of the head exchange.
func (s Step) headsString() string {
	what := fmt.Sprintf("%v heads %v of owner %d %v", s.Tensor, s.Heads, s.Owner, s.Range)
	switch {
	case s.Op == Send || s.Op == Pack:
		return fmt.Sprintf("%-6v %s -> rank %d: %s", s.Op, s.Slot, s.Peer, what)
	case s.Slot.Own():
		return fmt.Sprintf("keep   %s: %s", s.Slot, what)
	}
	return fmt.Sprintf("%-6v %s <- rank %d: %s", s.Op, s.Slot, s.Peer, what)
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

// slotBytes is SlotTokens in bytes.
func slotBytes(shape Shape, plans ...[]Step) map[Slot]int64 {
	most := map[Slot]int64{}
	for _, steps := range plans {
		for _, s := range steps {
			if s.Op == Recv || s.Op == Zero || s.Op == Pack {
				most[s.Slot] = max(most[s.Slot], s.room(shape))
			}
		}
	}
	return most
}
