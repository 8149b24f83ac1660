package shard

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"

	"ringattn/half"
	"ringattn/segments"
	"ringattn/tensorfile"
)

// blockBytes bounds the buffer between file and memory.
const blockBytes = 1 << 20

// Mover copies one rank's tokens between tensors of a file and memory in kernel
// order. It keeps a block of at most about a mebibyte, or one token where that
// is larger.
type Mover struct {
	in    *Input
	rank  int
	spans []segments.Span
	places
	block []byte
}

// places maps the positions that a rank holds to its kernel order: at[b][i] for
// the i-th position of its spans in row b; -1 is padding.
type places struct{ at [][]int32 }

// NewMover prepares the moves of one rank.
func NewMover(in *Input, b *segments.Batch, rank int) *Mover {
	m := &Mover{in: in, rank: rank, spans: b.Layout.Spans[rank]}
	held := b.Layout.RankTokens(rank)
	m.at = make([][]int32, in.Batch)
	for row := range m.at {
		m.at[row] = make([]int32, held)
		for i := range m.at[row] {
			m.at[row][i] = -1
		}
	}
	for _, p := range b.Order(rank).Pieces {
		i := m.local(p.Pos.Start)
		for t := range p.Pos.Len() {
			m.at[p.Row][i+t] = int32(p.At + t)
		}
	}
	return m
}

// local counts the positions that the rank holds before pos.
func (m *Mover) local(pos int) int {
	n := 0
	for _, s := range m.spans {
		if pos < s.End {
			return n + pos - s.Start
		}
		n += s.Len()
	}
	return n
}

// Place says where the numbers of one token stand in memory: token t begins at
// byte Offset + t*Stride, its heads one after another.
type Place struct{ Offset, Stride int64 }

// Window is consecutive positions of one row, all of which the rank holds. At[i] numbers
// position Pos+i in the memory that is read or written: by kernel order, or as a caller
// likes that keeps a window's tokens elsewhere; -1 is padding.
type Window struct {
	Row, Pos int
	At       []int32
}

// Windows cuts what the rank holds into windows of at most n positions.
func (m *Mover) Windows(n int) iter.Seq[Window] {
	return func(yield func(Window) bool) {
		for row := range m.at {
			local := 0
			for _, s := range m.spans {
				for pos := s.Start; pos < s.End; {
					n := min(n, s.End-pos)
					if !yield(Window{row, pos, m.at[row][local : local+n]}) {
						return
					}
					pos, local = pos+n, local+n
				}
			}
		}
	}
}

// Load copies the rank's tokens of t, unconverted, to memory.
func (m *Mover) Load(t tensorfile.Tensor, memory []byte, to Place) error {
	for w := range m.Windows(math.MaxInt) {
		if err := m.LoadWindow(t, w, memory, to); err != nil {
			return err
		}
	}
	return nil
}

// LoadWindow copies a window of t.
func (m *Mover) LoadWindow(t tensorfile.Tensor, w Window, memory []byte, to Place) error {
	return m.blocks(t, w, func(block []byte, off, unit int64, at []int32, head int64) error {
		if err := m.in.File.ReadAt(t, block, off); err != nil {
			return err
		}
		for i, token := range at {
			if token >= 0 {
				copy(memory[to.Offset+int64(token)*to.Stride+head:][:unit], block[int64(i)*unit:])
			}
		}
		return nil
	})
}

// Store writes the rank's tokens of t from float32 memory, rounded to t's dtype
// at this one place; padding becomes fill.
func (m *Mover) Store(out *tensorfile.Writer, t tensorfile.Tensor, memory []byte, from Place, fill float32) error {
	for w := range m.Windows(math.MaxInt) {
		if err := m.StoreWindow(out, t, w, memory, from, fill); err != nil {
			return err
		}
	}
	return nil
}

// StoreWindow writes a window of t.
func (m *Mover) StoreWindow(out *tensorfile.Writer, t tensorfile.Tensor, w Window, memory []byte, from Place, fill float32) error {
	return m.blocks(t, w, func(block []byte, off, unit int64, at []int32, head int64) error {
		size := t.DType.Size()
		for i, token := range at {
			dst := block[int64(i)*unit:][:unit]
			if token < 0 {
				encode(t.DType, dst, nil, fill)
				continue
			}
			src := memory[from.Offset+int64(token)*from.Stride+head/size*4:][:unit/size*4]
			encode(t.DType, dst, src, 0)
		}
		return out.WriteAt(t, block, off)
	})
}

// blocks cuts a window of t into pieces that are contiguous in the file: block is a
// buffer for len(at) units of unit bytes, which stand at byte off of the tensor; unit i
// belongs to token at[i] (-1: padding), at byte head of that token's numbers.
func (m *Mover) blocks(t tensorfile.Tensor, w Window, do func(block []byte, off, unit int64, at []int32, head int64) error) error {
	// A head of one token: HeadDim numbers, or one in lse.
	heads, headBytes := t.Shape[1], t.DType.Size()
	if m.in.BSHD {
		heads = t.Shape[2]
	}
	if len(t.Shape) == 4 {
		headBytes *= t.Shape[3]
	}
	unit, passes := headBytes, heads
	if m.in.BSHD {
		unit, passes = heads*headBytes, 1
	}
	most := int(max(1, blockBytes/unit))
	for pass := range passes {
		for i := 0; i < len(w.At); {
			n := min(most, len(w.At)-i)
			if need := int64(n) * unit; int64(len(m.block)) < need {
				m.block = make([]byte, need)
			}
			pos := w.Pos + i
			off := ((int64(w.Row)*passes+pass)*int64(m.in.Tokens) + int64(pos)) * unit
			if err := do(m.block[:int64(n)*unit], off, unit, w.At[i:i+n], pass*headBytes); err != nil {
				return fmt.Errorf("shard: rank %d: tensor %q, row %d, tokens [%d,%d): %w", m.rank, t.Name, w.Row, pos, pos+n, err)
			}
			i += n
		}
	}
	return nil
}

// encode writes float32 numbers in the file's dtype; src nil stands for fill
// throughout.
func encode(d tensorfile.DType, dst, src []byte, fill float32) {
	n := len(dst) / int(d.Size())
	for i := range n {
		x := fill
		if src != nil {
			x = math.Float32frombits(binary.NativeEndian.Uint32(src[4*i:]))
		}
		switch d {
		case tensorfile.BF16:
			binary.LittleEndian.PutUint16(dst[2*i:], half.F32ToBF16(x))
		case tensorfile.F16:
			binary.LittleEndian.PutUint16(dst[2*i:], half.F32ToF16(x))
		default:
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	}
}
