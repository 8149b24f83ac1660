package cmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"ringattn/cases"
)

// sampledRow is a row of a head with its right results.
type sampledRow struct {
	at, row, pos, head int // at: the rank's token
	want               map[string][]float64
	terms2             float64 // square of the size of what dq is a sum of
}

// As many rows are sampled as take, of all keys and forward, no more FLOPs than this on all ranks
// together, but one at the least.
const (
	mostSamples  = 16
	samplesFLOPs = 1 << 32
)

// holdSamples compares out, lse and dq of some rows of random numbers, see randomise, with what
// float64 makes of the same inputs, and lists what is wrong, a line a tensor. Every rank can make
// all keys and values. The error of dq is measured against the terms of its sum where it is less
// than they: of a row that sees one key they cancel.
func (a *attention) holdSamples(ctx context.Context) (wrong []string, err error) {
	samples := a.samples()
	random := map[string]randomNumbers{}
	for _, name := range a.inputs() {
		random[name] = a.randomOf(a.tensor(name))
	}
	inParts(parts(), len(samples), func(_, first, end int) {
		for i := range samples[first:end] {
			a.solve(&samples[first+i], random)
		}
	})
	maxLSE := 0.0
	for _, tensor := range []string{"lse", "out", "dq"} { // lse first: it widens the bounds of the others
		if !slices.Contains(a.outputs(), tensor) {
			continue
		}
		sums, maxima, err := a.merge(ctx, func() (sums, maxima []float64) {
			var n cases.Norm
			for _, s := range samples {
				n.Add(s.want[tensor], false)
				if tensor == "dq" {
					n.Sum2 += max(0, s.terms2-dot(s.want[tensor], s.want[tensor]))
				}
			}
			return n.Values()
		})
		if err != nil {
			return nil, err
		}
		n := cases.NormFromValues(sums, maxima)
		if n.Rows == 0 {
			return nil, &coded{exitInternal, errors.New("no row of random numbers was sampled")}
		}
		if tensor == "lse" {
			maxLSE = n.MaxAbs
		}
		held, step := a.tensor(tensor), a.rowLen(tensor)
		sums, maxima, err = a.merge(ctx, func() (sums, maxima []float64) {
			m, memory, got := cases.NewMeasure(n, 0), held.view(tensor), make([]float32, step)
			for _, s := range samples {
				token := memory.token(s.at)
				for i := range got {
					got[i] = float32At(token, s.head*step+i)
				}
				cases.AddRow(m, tensor, got, s.want[tensor], false)
			}
			return m.Values()
		})
		if err = errors.Join(held.err, err); err != nil {
			return nil, err
		}
		m := cases.NewMeasure(n, 0)
		m.SetValues(sums, maxima)
		if beyond := m.Check(cases.Bounds(a.precision(tensor), tensor, maxLSE)); beyond != nil {
			wrong = append(wrong, fmt.Sprintf("sampled rows of random numbers: %s: %v", tensor, beyond))
		}
	}
	return wrong, nil
}

// samples are those that the rank has the tokens of: of each part of the rows one, anywhere in it,
// of some head and batch row, and the last position.
func (a *attention) samples() (list []sampledRow) {
	n := min(mostSamples, max(1, samplesFLOPs/(4*a.tokens*a.shape.HeadDim)), a.tokens)
	wanted := map[[2]int]int{} // head, by row and position
	random := rand.New(rand.NewPCG(0, uint64(a.tokens)))
	for i := range n {
		first, end := i*a.tokens/n, (i+1)*a.tokens/n
		pos := first + random.IntN(end-first)
		if i == n-1 {
			pos = end - 1
		}
		wanted[[2]int{random.IntN(a.batch), pos}] = random.IntN(a.shape.Heads)
	}
	a.eachToken(func(at, row, pos int) {
		if head, ok := wanted[[2]int{row, pos}]; ok {
			list = append(list, sampledRow{at: at, row: row, pos: pos, head: head})
		}
	})
	return list
}

// solve finds a sample's results.
func (a *attention) solve(x *sampledRow, random map[string]randomNumbers) {
	s := a.shape
	scale, group := float64(s.Scale), s.Heads/s.KVHeads
	// The numbers of a head of a token.
	of := func(name string) func(pos, head int, dst []float64) []float64 {
		return func(pos, head int, dst []float64) []float64 {
			token := random[name].token(name, x.row, pos)
			for d := range dst {
				dst[d] = a.given(token, head*s.HeadDim+d)
			}
			return dst
		}
	}
	numbers := func() []float64 { return make([]float64, s.HeadDim) }
	q, k, v := of("q")(x.pos, x.head, numbers()), of("k"), of("v")
	key, value := numbers(), numbers()
	spans := a.mask.Keys(x.row, x.pos)
	each := func(do func(score float64)) {
		for _, span := range spans {
			for j := span.Start; j < span.End; j++ {
				k(j, x.head/group, key)
				v(j, x.head/group, value)
				do(scale * dot(q, key))
			}
		}
	}
	top, sum := math.Inf(-1), 0.0
	out, dq := numbers(), numbers()
	each(func(score float64) {
		if score > top {
			factor := math.Exp(top - score)
			top, sum = score, sum*factor
			for d := range out {
				out[d] *= factor
			}
		}
		p := math.Exp(score - top)
		sum += p
		for d := range out {
			out[d] += p * value[d]
		}
	})
	for d := range out {
		out[d] /= sum
	}
	lse := top + math.Log(sum)
	x.want = map[string][]float64{"out": out, "lse": {lse}}
	if !a.backward {
		return
	}
	dout := of("dout")(x.pos, x.head, numbers())
	delta := dot(out, dout)
	each(func(score float64) {
		p, dp := scale*math.Exp(score-lse), dot(dout, value)
		ds := p * (dp - delta)
		x.terms2 += p * p * (dp*dp + delta*delta) * dot(key, key)
		for d := range dq {
			dq[d] += ds * key[d]
		}
	})
	x.want["dq"] = dq
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}
