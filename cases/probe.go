package cases

import (
	"fmt"
	"math"

	"ringattn/segments"
)

// Probe is a small case whose numbers anyone can check by hand, taken from a
// public bug report. The name is the report's letter and number and which of its
// variants this is. Run it with each of the layouts, forward and backward, and
// hold every row of every result against Check.
type Probe struct {
	Shape
	// Layouts are the ways to cut it: Layout.Ranks ranks, by Layout.Name
	// contiguous, zigzag or shards (Layout.RankTokens has their lengths).
	Layouts []segments.Layout
	// Large says that it wants a GPU, or much memory and time.
	Large bool
	Wants []Want
	// value is one number of q, k, v or dout, in every batch row; the dtype may
	// round it.
	value func(tensor string, head, pos, dim int) float64
}

// Value writes q, k, v or dout of one token, [H, D] or [Hkv, D], exact in the
// dtype. dst has Width(tensor) numbers.
func (p *Probe) Value(tensor string, _, pos int, dst []float32) {
	for i := range dst {
		dst[i] = p.at(tensor, i/p.HeadDim, pos, i%p.HeadDim)
	}
}

func (p *Probe) at(tensor string, head, pos, dim int) float32 {
	return float32(round(p.DType, p.value(tensor, head, pos, dim)))
}

// Want is a number, or a block of equal numbers, that a probe's result holds.
type Want struct {
	Tensor string        // out lse dq dk dv
	Heads  segments.Span // of Tensor: KV heads for dk and dv
	Tokens segments.Span
	Dim    int // component, or AllDims
	// Equals names an input tensor that has the wanted number at the same
	// token and dim (q and dout: of the same head; k and v: of the KV head that
	// the head reads); then Tol is relative. Without it the number is Value,
	// and Tol is absolute. 0 means exactly.
	Equals string
	Value  float64
	Tol    float64
}

// AllDims is the Dim of a Want for every component alike.
const AllDims = -1

// Check holds one row (b, head, token) of a result, stored in a dtype (lse is f32
// whatever it says), against the wants. The range Value-Tol .. Value+Tol is rounded to that dtype first: 261.25
// is 262 in bf16. NaN passes nowhere, and no infinity but -Inf of an lse.
func (p *Probe) Check(tensor, dtype string, b, head, pos int, got []float32) error {
	wrong := func(dim int, want any) error {
		return fmt.Errorf("cases: %s: %s[b=%d, head %d, token %d, dim %d] is %v, want %v", p.Name, tensor, b, head, pos, dim, got[dim], want)
	}
	if tensor == "lse" {
		dtype = "f32"
	}
	for d, x := range got {
		if f := float64(x); math.IsNaN(f) || math.IsInf(f, 1) || math.IsInf(f, -1) && tensor != "lse" {
			return wrong(d, "a finite number")
		}
	}
	for _, w := range p.Wants {
		if w.Tensor != tensor || !in(w.Heads, head) || !in(w.Tokens, pos) {
			continue
		}
		for d, x := range got {
			if w.Dim != AllDims && w.Dim != d {
				continue
			}
			value, tol := w.Value, w.Tol
			if w.Equals != "" {
				from := head * p.TensorHeads(w.Equals) / p.TensorHeads(tensor)
				value = float64(p.at(w.Equals, from, pos, d))
				tol *= math.Abs(value)
			}
			lo, hi := round(dtype, value-tol), round(dtype, value+tol)
			if f := float64(x); f < lo || f > hi {
				return wrong(d, fmt.Sprintf("%v within %.1e", value, tol))
			}
		}
	}
	return nil
}

func in(s segments.Span, i int) bool { return s.Start <= i && i < s.End }

// HeadDims are E4's: each is within tolerance of float64 or refused before anything
// is launched, naming it and the supported ones; S = 130, H = 2/1, two ranks, every
// dtype.
var HeadDims = []int{63, 64, 72, 80, 96, 128, 160, 192, 256, 320, 512, 576}

// WindowHops is C6: how many shards before its own the last of four ranks needs of
// 16 tokens under a causal window.
var WindowHops = []struct{ Window, Hops int }{{1, 0}, {2, 1}, {5, 1}, {6, 2}, {9, 2}, {10, 3}, {16, 3}}

// Probes lists the probes of sections A to E. Numbers stand as the reports print
// them, with half of the last printed digit as tolerance.
func Probes() []Probe {
	var all []Probe
	for _, section := range [][]*Probe{mergeProbes(), maskProbes(), shardProbes(), backwardProbes(), limitProbes()} {
		for _, p := range section {
			all = append(all, *p)
		}
	}
	return all
}
