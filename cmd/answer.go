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
	numbers := make([]float32, v.Width(h.names[0]))
	for _, p := range v.order.Pieces {
		for i := 0; i < p.Pos.Len(); {
			n := min(h.window(), p.Pos.Len()-i)
			err := h.write(consecutive(p.At+i, n), func(memory []byte, at []int32) error {
				for _, name := range h.names {
					to := h.place(name)
					for j, token := range at {
						v.Value(name, p.Row, p.Pos.Start+i+j, numbers)
						put(v.dtype, memory[to.Offset+int64(token)*to.Stride:], numbers)
					}
				}
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
	for i, x := range numbers {
		switch d {
		case ring.BF16:
			binary.NativeEndian.PutUint16(dst[2*i:], half.F32ToBF16(x))
		case ring.F16:
			binary.NativeEndian.PutUint16(dst[2*i:], half.F32ToF16(x))
		default:
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
