package cases

import (
	"fmt"
	"math"

	"ringattn/half"
	"ringattn/segments"
)

// Shape is what a case is apart from its values. B rows of S tokens; q, out,
// dout, dq are [B, H, S, D], k, v, dk, dv are [B, Hkv, S, D], lse is [B, H, S].
type Shape struct {
	Name    string
	Batch   int     // B
	Tokens  int     // S, of one row
	Heads   int     // H, of the queries
	KVHeads int     // Hkv, a divisor of H; query head h reads KV head h/(H/Hkv)
	HeadDim int     // D
	DType   string  // of the tensors but lse: f32, bf16 or f16
	Scale   float64 // of q.k, a float32; 0 stands for DefaultScale(D)
	Mask    segments.Mask
}

// DefaultScale is 1/sqrt(D), rounded to the float32 that kernels compute with.
func DefaultScale(headDim int) float64 { return float64(float32(1 / math.Sqrt(float64(headDim)))) }

// TensorHeads is the number of heads of a tensor: Hkv of k, v, dk, dv, else H.
func (s *Shape) TensorHeads(tensor string) int {
	switch tensor {
	case "k", "v", "dk", "dv":
		return s.KVHeads
	}
	return s.Heads
}

// RowLen is the numbers of one (batch, head, token) of a tensor: 1 of lse, else D.
func (s *Shape) RowLen(tensor string) int {
	if tensor == "lse" {
		return 1
	}
	return s.HeadDim
}

// Width is the numbers of one token of a tensor, all heads together.
func (s *Shape) Width(tensor string) int { return s.TensorHeads(tensor) * s.RowLen(tensor) }

// validate checks a shape, but for what segments.NewBatch checks of its mask.
func (s *Shape) validate() error {
	switch {
	case s.Batch < 1 || s.Tokens < 1 || s.HeadDim < 1:
		return fmt.Errorf("cases: %s: batch %d, tokens %d, head dim %d: want each >= 1", s.Name, s.Batch, s.Tokens, s.HeadDim)
	case s.KVHeads < 1 || s.Heads < 1 || s.Heads%s.KVHeads != 0:
		return fmt.Errorf("cases: %s: %d query heads are not a multiple of %d KV heads", s.Name, s.Heads, s.KVHeads)
	case s.DType != "f32" && s.DType != "bf16" && s.DType != "f16":
		return fmt.Errorf("cases: %s: dtype is %q, want f32, bf16 or f16", s.Name, s.DType)
	case s.Scale != float64(float32(s.Scale)) || math.IsInf(s.Scale, 0):
		return fmt.Errorf("cases: %s: scale %v is not a finite float32", s.Name, s.Scale)
	case len(s.Mask.Rows) != s.Batch:
		return fmt.Errorf("cases: %s: the mask has %d rows, the batch %d", s.Name, len(s.Mask.Rows), s.Batch)
	}
	return nil
}

// round is x rounded to a dtype.
func round(dtype string, x float64) float64 {
	switch f := float32(x); dtype {
	case "bf16":
		return float64(half.BF16ToF32(half.F32ToBF16(f)))
	case "f16":
		return float64(half.F16ToF32(half.F32ToF16(f)))
	default:
		return float64(f)
	}
}
