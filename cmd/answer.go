package cmd

import (
	"encoding/binary"
	"fmt"
	"math"

	"ringattn/cases"
	"ringattn/half"
	"ringattn/ring"
	"ringattn/segments"
	"ringattn/shard"
)

// answer knows the right result of a problem.
type answer interface {
	open(a *attention, tensor string) (reader, error)
}

// reader gives a tensor's wanted numbers, all heads of a token at a time: of the
// rank's token at, which is position pos of a batch row.
type reader func(at, row, pos int, dst []float64)

// fileAnswer is a file that holds the right results beside the inputs, or alone.
type fileAnswer struct{ in *shard.Input }

func (f fileAnswer) open(a *attention, tensor string) (reader, error) {
	t, ok := f.in.File.Lookup(tensor)
	if !ok {
		return nil, fmt.Errorf("%s has no tensor %q", f.in.Path, tensor)
	}
	width := a.width(tensor)
	memory := make([]byte, 4*width*a.x.Tokens)
	if err := shard.NewMover(f.in, a.job.Batch, a.world.Rank()).Load(t, memory, shard.Place{Stride: int64(4 * width)}); err != nil {
		return nil, err
	}
	return func(at, _, _ int, dst []float64) {
		for i := range dst {
			dst[i] = float64(float32At(memory, at*width+i))
		}
	}, nil
}

// closedAnswer is a closed form.
type closedAnswer struct{ *cases.Problem }

func (c closedAnswer) open(_ *attention, tensor string) (reader, error) {
	return func(_, row, pos int, dst []float64) { c.Want(tensor, row, pos, dst) }, nil
}

// valued is a case whose inputs are functions: a closed form or a probe.
type valued interface {
	Width(tensor string) int
	Value(tensor string, b, pos int, dst []float32)
}

// valuedSource makes the tensors of a case.
type valuedSource struct {
	valued
	dtype ring.DType
	order *segments.Order
}

func (v valuedSource) load(h *held) error {
	return h.fillWith(v.order, func() func(name string, row, pos int, dst []byte) {
		numbers := make([]float32, v.Width(h.names[0]))
		return func(name string, row, pos int, dst []byte) {
			v.Value(name, row, pos, numbers)
			put(v.dtype, dst, numbers)
		}
	})
}

// fillWith fills the memory with what token makes of a rank's tokens, in parts at a time, each
// with a token function of its own.
func (h *held) fillWith(order *segments.Order, start func() (token func(name string, row, pos int, dst []byte))) error {
	for _, p := range order.Pieces {
		for i := 0; i < p.Pos.Len(); {
			n := min(h.window(), p.Pos.Len()-i)
			err := h.write(consecutive(p.At+i, n), func(memory []byte, at []int32) error {
				inParts(parts(), len(at), func(_, first, end int) {
					token := start()
					for _, name := range h.names {
						to := h.place(name)
						for j := first; j < end; j++ {
							dst := memory[to.Offset+int64(at[j])*to.Stride:]
							token(name, p.Row, p.Pos.Start+i+j, dst[:h.width])
						}
					}
				})
				return nil
			})
			if err != nil {
				return err
			}
			i += n
		}
	}
	return nil
}

// put writes numbers, rounded to a dtype.
func put(d ring.DType, dst []byte, numbers []float32) {
	switch d {
	case ring.BF16:
		for i, x := range numbers {
			binary.NativeEndian.PutUint16(dst[2*i:], half.F32ToBF16(x))
		}
	case ring.F16:
		for i, x := range numbers {
			binary.NativeEndian.PutUint16(dst[2*i:], half.F32ToF16(x))
		}
	default:
		for i, x := range numbers {
			binary.NativeEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	}
}

// valuedProblem is a case as a problem.
func valuedProblem(c *cases.Shape, v valued) *problem {
	p := shapeProblem(c)
	p.open = func(b *segments.Batch, rank int) source { return valuedSource{v, p.shape.DType, b.Order(rank)} }
	return p
}

func float32At(memory []byte, i int) float32 {
	return math.Float32frombits(binary.NativeEndian.Uint32(memory[4*i:]))
}

// given reads one number of an input tensor.
func (a *attention) given(memory []byte, i int) float64 {
	switch a.shape.DType {
	case ring.BF16:
		return float64(half.BF16ToF32(binary.NativeEndian.Uint16(memory[2*i:])))
	case ring.F16:
		return float64(half.F16ToF32(binary.NativeEndian.Uint16(memory[2*i:])))
	}
	return float64(float32At(memory, i))
}

// width is the numbers of one token of a tensor, all heads together.
func (a *attention) width(tensor string) int {
	s := a.shape
	switch tensor {
	case "lse":
		return s.Heads
	case "k", "v", "dk", "dv":
		return s.KVHeads * s.HeadDim
	}
	return s.Heads * s.HeadDim
}
