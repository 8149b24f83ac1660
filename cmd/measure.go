package cmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"ringattn/cases"
	"ringattn/ring"
)

// hold compares every output with the right answer and lists what is wrong, a
// line a tensor.
func (a *attention) hold(ctx context.Context, want answer) (wrong []string, err error) {
	return a.holdEach(ctx, want, func(string, *cases.Measure, error) {})
}

// holdEach is hold and tells of each tensor.
func (a *attention) holdEach(ctx context.Context, want answer, tell func(tensor string, m *cases.Measure, wrong error)) (wrong []string, err error) {
	measures := map[string]*cases.Measure{}
	maxLSE := 0.0 // it widens the bounds of every tensor
	for _, tensor := range a.outputs() {
		read, err := want.open(a, tensor)
		if err != nil {
			return nil, err
		}
		n, err := a.norm(ctx, tensor, read)
		if err != nil {
			return nil, err
		}
		if tensor == "lse" {
			maxLSE = n.MaxAbs
		}
		if measures[tensor], err = a.measure(ctx, tensor, n, read); err != nil {
			return nil, err
		}
	}
	for _, tensor := range a.outputs() {
		m := measures[tensor]
		beyond := m.Check(cases.Bounds(a.precision(tensor), tensor, maxLSE))
		if beyond != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", tensor, beyond))
		}
		tell(tensor, m, beyond)
	}
	return wrong, nil
}

// precision is the dtype whose bounds a tensor has: that of the inputs, but dk and dv are
// rounded to what their sums travel as.
func (a *attention) precision(tensor string) string {
	if a.job.Wire != ring.F32 && (tensor == "dk" || tensor == "dv") {
		return a.job.Wire.String()
	}
	return a.shape.DType.String()
}

// eachToken calls do for every token of the rank.
func (a *attention) eachToken(do func(at, row, pos int)) {
	for _, p := range a.job.Batch.Order(a.world.Rank()).Pieces {
		for i := range p.Pos.Len() {
			do(p.At+i, p.Row, p.Pos.Start+i)
		}
	}
}

// parts is in how many parts the CPU goes through a rank's tokens at a time.
func parts() int { return min(runtime.GOMAXPROCS(0), 16) }

// sumTokens calls what start returns for every token of the rank, of consecutive tokens one
// after the other, in parts at a time, and merges the values of the parts in their order.
func (a *attention) sumTokens(start func() (do func(at, row, pos int), values func() (sums, maxima []float64))) (sums, maxima []float64) {
	n := parts()
	values := make([]func() (sums, maxima []float64), n)
	inParts(n, a.x.Tokens, func(part, first, end int) {
		do, result := start()
		values[part] = result
		a.eachToken(func(at, row, pos int) {
			if first <= at && at < end {
				do(at, row, pos)
			}
		})
	})
	sums, maxima = values[0]()
	for _, v := range values[1:] {
		s, m := v()
		for i := range sums {
			sums[i] += s[i]
		}
		for i := range maxima {
			maxima[i] = max(maxima[i], m[i])
		}
	}
	return sums, maxima
}

// inParts calls do for n parts of [0, count) at once.
func inParts(n, count int, do func(part, first, end int)) {
	var group sync.WaitGroup
	for part := range n {
		group.Go(func() { do(part, part*count/n, (part+1)*count/n) })
	}
	group.Wait()
}

// norm is the size of a tensor's right answer over all ranks.
func (a *attention) norm(ctx context.Context, tensor string, read reader) (cases.Norm, error) {
	step := a.rowLen(tensor)
	sums, maxima, err := a.merge(ctx, func() (sums, maxima []float64) {
		return a.sumTokens(func() (func(at, b, pos int), func() (sums, maxima []float64)) {
			var n cases.Norm
			row := make([]float64, a.width(tensor))
			return func(at, b, pos int) {
				read(at, b, pos, row)
				for i := 0; i < len(row); i += step {
					n.Add(row[i:i+step], false)
				}
			}, func() (sums, maxima []float64) { return n.Values() }
		})
	})
	if err != nil {
		return cases.Norm{}, err
	}
	return cases.NormFromValues(sums, maxima), nil
}

// rowLen is the numbers of one (batch, head, token) of a tensor.
func (a *attention) rowLen(tensor string) int {
	if tensor == "lse" {
		return 1
	}
	return a.shape.HeadDim
}

// merge sums and maximises over the ranks.
func (a *attention) merge(ctx context.Context, values func() (sums, maxima []float64)) (sums, maxima []float64, err error) {
	sums, maxima = values()
	if sums, err = a.world.AllReduceSum(ctx, sums); err != nil {
		return nil, nil, err
	}
	maxima, err = a.world.AllReduceMax(ctx, maxima)
	return sums, maxima, err
}

// measure is the error over all ranks of a tensor whose right answer has norm n.
func (a *attention) measure(ctx context.Context, tensor string, n cases.Norm, read reader) (*cases.Measure, error) {
	var err error
	reference := 0.0
	if n.Sum2 == 0 && a.backward && tensor != "out" && tensor != "lse" {
		if reference, err = a.reference(ctx); err != nil {
			return nil, err
		}
	}
	held, step := a.tensor(tensor), a.rowLen(tensor)
	values := func() (sums, maxima []float64) {
		return a.sumTokens(func() (func(at, b, pos int), func() (sums, maxima []float64)) {
			m, memory := cases.NewMeasure(n, reference), held.view(tensor)
			row, got := make([]float64, a.width(tensor)), make([]float32, a.width(tensor))
			return func(at, b, pos int) {
				read(at, b, pos, row)
				token := memory.token(at)
				for i := range got {
					got[i] = float32At(token, i)
				}
				for i := 0; i < len(row); i += step {
					cases.AddRow(m, tensor, got[i:i+step], row[i:i+step], false)
				}
			}, m.Values
		})
	}
	sums, maxima, err := a.merge(ctx, values)
	if err = errors.Join(held.err, err); err != nil {
		return nil, err
	}
	m := cases.NewMeasure(n, reference)
	m.SetValues(sums, maxima)
	return m, nil
}

// reference is scale x ||k|| x rms(dout.v), what a gradient is measured against
// that is 0 everywhere. The mean is over the pairs of a token with itself, which
// are visible under any mask.
func (a *attention) reference(ctx context.Context) (float64, error) {
	ks, vs, douts := a.tensor("k").view("k"), a.tensor("v").view("v"), a.tensor("dout").view("dout")
	s := a.shape
	var keys, products, n float64
	a.eachToken(func(at, _, _ int) {
		k, v, dout := ks.token(at), vs.token(at), douts.token(at)
		for i := range s.KVHeads * s.HeadDim {
			x := a.given(k, i)
			keys += x * x
		}
		for h := range s.Heads {
			dot := 0.0
			for d := range s.HeadDim {
				dot += a.given(dout, h*s.HeadDim+d) * a.given(v, h/(s.Heads/s.KVHeads)*s.HeadDim+d)
			}
			products += dot * dot
			n++
		}
	})
	if err := errors.Join(a.tensor("k").err, a.tensor("v").err, a.tensor("dout").err); err != nil {
		return 0, err
	}
	sums, err := a.world.AllReduceSum(ctx, []float64{keys, products, n})
	if err != nil || sums[2] == 0 {
		return 0, err
	}
	return float64(s.Scale) * math.Sqrt(sums[0]) * math.Sqrt(sums[1]/sums[2]), nil
}
