package cases

import (
	"math"

	"ringattn/segments"
)

// Tolerances of the wanted numbers.
const (
	tolF32   = 1e-5 // f32 arithmetic: the bound of out and lse; relative above 1
	tolExact = 0    // exact zeros, and -Inf
	// Printed decimals: half of the last digit, and f32 rounding.
	tol3 = 0.501e-3
	tol4 = 0.510e-4
	tol5 = 0.600e-5
)

// newProbe is Q = 0, K = 0, V[j] = j, dout = 1: out is the mean of the visible
// positions, lse the logarithm of their number.
func newProbe(name, dtype string, tokens, heads, kvHeads, headDim int, mask segments.Mask, layouts ...segments.Layout) *Probe {
	p := &Probe{
		Shape: Shape{
			Name: name, Batch: 1, Tokens: tokens, Heads: heads, KVHeads: kvHeads, HeadDim: headDim,
			DType: dtype, Scale: DefaultScale(headDim), Mask: mask,
		},
		Layouts: layouts,
	}
	p.value = func(tensor string, _, pos, _ int) float64 {
		switch tensor {
		case "v":
			return float64(pos)
		case "dout":
			return 1
		}
		return 0
	}
	return p
}

// want adds one number for a token, in every head and dim.
func (p *Probe) want(tensor string, token int, value, tol float64) {
	p.block(tensor, segments.Span{Start: token, End: token + 1}, AllDims, value, tol)
}

// block adds one number for some tokens, in every head.
func (p *Probe) block(tensor string, tokens segments.Span, dim int, value, tol float64) {
	p.Wants = append(p.Wants, Want{
		Tensor: tensor, Heads: segments.Span{End: p.TensorHeads(tensor)}, Tokens: tokens, Dim: dim, Value: value, Tol: tol,
	})
}

// list adds a number a token, in every head and dim, to f32 accuracy. A zero is
// exact, but for the lse of a lone key.
func (p *Probe) list(tensor string, values ...float64) {
	for i, v := range values {
		switch {
		case v == 0 && tensor != "lse" || math.IsInf(v, -1):
			p.want(tensor, i, v, tolExact)
		default:
			p.want(tensor, i, v, tolF32*max(1, math.Abs(v)))
		}
	}
}

// printed adds a number a token, in every head and dim: n times the printed one,
// tol is the printed one's. Zeros are exact.
func (p *Probe) printed(tensor string, n, tol float64, values ...float64) {
	for i, v := range values {
		if v == 0 {
			p.want(tensor, i, 0, tolExact)
			continue
		}
		p.want(tensor, i, n*v, n*tol)
	}
}

// formula adds f(i) for every token i, to f32 accuracy.
func (p *Probe) formula(tensor string, f func(i int) float64) {
	values := make([]float64, p.Tokens)
	for i := range values {
		values[i] = f(i)
	}
	p.list(tensor, values...)
}

// zero adds exact zeros for all of some tensors.
func (p *Probe) zero(tensors ...string) {
	for _, t := range tensors {
		p.block(t, segments.Span{End: p.Tokens}, AllDims, 0, tolExact)
	}
}

// row is a row of one batch with document ids and token types, each may be nil.
func row(tokens int, ids, types []int64) []segments.Row {
	return []segments.Row{segments.NewRow(tokens, ids, types, nil)}
}

// ids repeats: ids(1, 6, 0, 10) is six 1s and ten 0s.
func ids(idAndCount ...int) []int64 {
	var out []int64
	for i := 0; i < len(idAndCount); i += 2 {
		for range idAndCount[i+1] {
			out = append(out, int64(idAndCount[i]))
		}
	}
	return out
}

// contiguous cuts a row for each of so many ranks.
func contiguous(tokens int, ranks ...int) []segments.Layout {
	var out []segments.Layout
	for _, n := range ranks {
		out = append(out, segments.Contiguous(tokens, n))
	}
	return out
}

// shards cuts a row by hand.
func shards(lengths ...int) segments.Layout {
	tokens := 0
	for _, n := range lengths {
		tokens += n
	}
	l, err := segments.Shards(tokens, lengths)
	if err != nil {
		panic(err) // lengths are literals
	}
	return l
}
