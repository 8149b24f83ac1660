package backendtest

import (
	"math"
	"sync"
	"testing"

	"ringattn/ring"
)

// truth is the exact result in float64. Rows outside the call hold marker, dk and dv
// start from 0.
type truth struct{ out, lse, dq, dk, dv []float64 }

// solve computes a problem by the definition, over the visible pairs alone, so that
// an Inf or NaN goes exactly where it may.
func (p *problem) solve() *truth {
	n := p.tokens * p.heads
	fill := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = marker
		}
		return x
	}
	w := &truth{
		out: fill(n * p.dim), lse: fill(n), dq: fill(n * p.dim),
		dk: make([]float64, len(p.k)), dv: make([]float64, len(p.k)),
	}
	scale, group := float64(p.shape.Scale), p.heads/p.kvHeads
	scores := make([]float64, p.keys)
	for i, seen := range p.intervals {
		for h := range p.heads {
			row := (p.before+i)*p.heads + h
			q, dout := p.q[row*p.dim:][:p.dim], p.dout[row*p.dim:][:p.dim]
			out, dq := w.out[row*p.dim:][:p.dim], w.dq[row*p.dim:][:p.dim]
			clear(out)
			clear(dq)
			at := func(j int) int { return (j*p.kvHeads + h/group) * p.dim }
			top, sum := math.Inf(-1), 0.0
			for j := seen.lo; j < seen.hi; j++ {
				scores[j] = scale * inner(q, p.k[at(j):])
				top = math.Max(top, scores[j])
			}
			for j := seen.lo; j < seen.hi; j++ {
				sum += math.Exp(scores[j] - top)
			}
			lse := top + math.Log(sum)
			if seen.lo >= seen.hi {
				lse = math.Inf(-1)
			}
			w.lse[row] = lse
			for j := seen.lo; j < seen.hi; j++ {
				add(out, math.Exp(scores[j]-lse), p.v[at(j):])
			}
			delta := inner(out, dout)
			for j := seen.lo; j < seen.hi; j++ {
				e := math.Exp(scores[j] - lse)
				ds := scale * e * (inner(dout, p.v[at(j):]) - delta)
				add(dq, ds, p.k[at(j):])
				add(w.dk[at(j):][:p.dim], ds, q)
				add(w.dv[at(j):][:p.dim], e, dout)
			}
		}
	}
	return w
}

// inner and add are most of the suite's work. They see their arguments alone, so the
// race detector, which makes them ten times slower, is told to leave them out.
//
//go:norace
func inner(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// add computes dst += w x.
//
//go:norace
func add(dst []float64, w float64, x []float64) {
	for i := range dst {
		dst[i] += w * x[i]
	}
}

// solved holds what was solved: several backends run one suite.
var solved sync.Map

// solveOnce is solve for a problem that key tells from all others.
func (p *problem) solveOnce(key any) *truth {
	known, ok := solved.Load(key)
	if !ok {
		known, _ = solved.LoadOrStore(key, p.solve())
	}
	return known.(*truth)
}

// check runs p on b, over the chunks forwards and backwards, and compares. Nothing
// but its config may have gone into p.
func (p *problem) check(t *testing.T, b ring.Backend) {
	t.Helper()
	want := p.solveOnce(p.config)
	orders := 1
	if p.chunks > 1 {
		orders = 2
	}
	for i := range orders {
		p.compare(t, b, p.run(t, b, p.order(i)), want)
	}
}

// compare checks all of b's result. Where the truth is not finite anything may stand,
// but for the lse of a row that sees nothing; where it is, nothing but that value.
func (p *problem) compare(t *testing.T, b ring.Backend, got *result, want *truth) {
	t.Helper()
	tolOut, tolGrad := bounds(b, p.dtype)
	most := 0.0
	for _, x := range want.lse {
		if x != marker && !math.IsInf(x, 0) && x == x {
			most = math.Max(most, math.Abs(x))
		}
	}
	// A row that sees a single key has ds = 0 in truth and a rounding of dout.v in
	// practice, so dq and dk count as no smaller than a part of scale |k| |dout.v|,
	// and of a sum of as many of these as there are queries to a key.
	floor := cancelled * float64(p.shape.Scale) * p.size() * float64(p.dim)
	many := math.Sqrt(max(1, float64(p.queries*p.heads/p.kvHeads)/float64(max(p.keys, 1))))
	p.vectors(t, "out", got.out, want.out, p.dim, tolOut+TolScore*most, 0)
	p.vectors(t, "lse", got.lse, want.lse, p.heads, TolOut+TolScore*most, 0)
	p.vectors(t, "dq", got.dq, want.dq, p.dim, tolGrad+TolScore*most, floor)
	p.vectors(t, "dk", got.dk, want.dk, p.dim, tolGrad+TolScore*most, floor*many)
	p.vectors(t, "dv", got.dv, want.dv, p.dim, tolGrad+TolScore*most, 0)
	for i, seen := range p.intervals {
		for h := range p.heads {
			row := (p.before+i)*p.heads + h
			if seen.lo < seen.hi {
				continue
			}
			if !math.IsInf(float64(got.lse[row]), -1) {
				t.Errorf("%v: row %d head %d sees nothing, lse is %v, want -Inf", p.config, i, h, got.lse[row])
			}
			for d := range p.dim {
				if got.out[row*p.dim+d] != 0 || got.dq[row*p.dim+d] != 0 {
					t.Fatalf("%v: row %d head %d sees nothing, out is %v, dq is %v, want 0", p.config, i, h,
						got.out[row*p.dim+d], got.dq[row*p.dim+d])
				}
			}
		}
	}
}

// vectors compares tensors made of vectors of size elements, one by one and in all.
// Elements where the truth is marker must be marker; vectors where it is not finite
// are left out. A vector counts as no smaller than the root mean square of all.
//
//go:norace
func (p *problem) vectors(t *testing.T, name string, got []float32, want []float64, size int, bound, floor float64) {
	t.Helper()
	type pair struct{ err, norm float64 }
	pairs := make([]pair, 0, len(want)/size)
	var all pair
	for i := 0; i < len(want); i += size {
		var v pair
		marked := want[i] == marker
		for j := i; j < i+size; j++ {
			g, w := float64(got[j]), want[j]
			if marked && g != marker {
				t.Errorf("%v: %s[%d] was written: %v", p.config, name, j, g)
				return
			}
			if g == w { // -Inf too
				g, w = 0, 0
				if !math.IsInf(want[j], 0) && !marked {
					g, w = want[j], want[j]
				}
			}
			v.err += (g - w) * (g - w)
			v.norm += w * w
		}
		if marked || math.IsNaN(v.norm) || math.IsInf(v.norm, 0) {
			continue
		}
		pairs = append(pairs, v)
		all.err += v.err
		all.norm += v.norm
	}
	if len(pairs) == 0 {
		return
	}
	mean := math.Max(all.norm/float64(len(pairs)), floor*floor)
	total := mean * float64(len(pairs))
	if !(all.err <= bound*bound*total) {
		t.Errorf("%v: %s is off by %.2e, bound %.2e", p.config, name, math.Sqrt(all.err/total), bound)
		return
	}
	for i, v := range pairs {
		if !(v.err <= RowFactor*RowFactor*bound*bound*math.Max(v.norm, mean)) {
			t.Errorf("%v: %s vector %d of those that are finite is off by %.2e, bound %.2e", p.config, name, i,
				math.Sqrt(v.err/math.Max(v.norm, mean)), RowFactor*bound)
			return
		}
	}
}
