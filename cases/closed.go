package cases

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"ringattn/segments"
)

// Problem is an attention problem whose tensors are products of a number a token
// and a pattern over heads and dims, so that its exact answer costs O(S) instead
// of O(S^2), whatever the mask:
//
//	q[i,h,d] = t_i Q[h,d]    k[j,g,d] = s_j K[g,d]    v[j,g,d] = u_j V[g,d]    dout[i,h,d] = r_i E[h,d]
//
// with t_i = +1 or -1, s_j of a few classes, u_j and r_i small, all exact in bf16
// and f16. With g the KV head of h, F_h = scale Q[h].K[g] and X_h = E[h].V[g], the
// score of (i, j) is F_h t_i s_j, and dout.v is X_h r_i u_j. With
// w_ij = exp(F_h t_i s_j) and sums over the keys j that i sees,
//
//	W_i = sum w_ij      o_i = sum w_ij u_j / W_i      c_i = sum w_ij s_j (u_j - o_i) / W_i
//	lse[i,h] = ln W_i   out[i,h] = o_i V[g]           dq[i,h] = scale X_h r_i c_i K[g]
//
// and, with sums over the queries i that see j and the heads h that read g,
//
//	dv[j,g] = sum_h E[h] a_j         a_j = sum_i r_i w_ij / W_i
//	dk[j,g] = sum_h scale X_h Q[h] b_j   b_j = sum_i t_i r_i w_ij (u_j - o_i) / W_i
//
// The five numbers a token 1/W, o, c, a and b depend on the head by F_h alone; they
// are tables, one set for each distinct F_h, made at the first Want: 40 bytes a
// token and set, O(S) time. Everything is float64 and accurate to about 1e-14 at
// any length: the sums over keys are counts of whole numbers, those over queries
// are compensated. A Problem is immutable and may be shared by goroutines.
type Problem struct {
	Shape
	form   form
	factor []float64 // F_h, [H]
	dov    []float64 // X_h, [H]
	batch  *segments.Batch
	once   sync.Once
	tables map[float64]*table
}

// form holds the numbers and patterns of a Problem. Numbers are periodic in the
// index n = position + rowShift x row; the periods of one form have no common
// divisor, so that no wrong offset, a power of two above all, looks right in
// all tensors.
type form struct {
	rowShift int
	t        []float64 // +1 or -1
	r        []float64
	class    []int     // of a key
	s        []float64 // by class
	uPeriod  int       // u = (uFirst + n mod uPeriod + uStep class) / uUnit
	uFirst   int
	uStep    int
	uUnit    float64
	// Patterns: Q and E are [H, D], K and V are [Hkv, D].
	q, k, v, e []float32
}

// Uniform is the form with q = k = 0: all visible keys weigh the same.
//
//	v[j] = (j mod 64)/64, dout = 1 in every head and dim; j is the position in the row
//
// so that out is the mean of the visible v, lse = ln(number visible), dv[j] is the
// sum over the queries that see j of 1/(number that each sees), times H/Hkv, and
// dq = dk = 0 exactly. It is blind to keys, scores and scale.
func Uniform(shape Shape) (*Problem, error) {
	f := form{t: []float64{1}, r: []float64{1}, class: []int{0}, s: []float64{0}, uPeriod: 64, uUnit: 64}
	return newProblem(shape, "uniform", func(*Shape) form {
		f.q, f.k = make([]float32, shape.Width("q")), make([]float32, shape.Width("k"))
		f.v, f.e = pattern(&shape, "v", func(_, _ int) float64 { return 1 }), pattern(&shape, "dout", func(_, _ int) float64 { return 1 })
		return f
	})
}

// Periods and signs of Classes.
var (
	classOf  = []int{3, 5, 0, 4, 2, 6, 1} // s = (class - 3) x step
	signOf   = []float64{1, 1, -1, 1, -1} // t
	weightOf = []float64{1, 2, 1}         // r
	dimSign  = []float64{1, -1, -1}       // of Q and K
	dimValue = []float64{1, -1, 0.5}      // of V and E
	dimTimes = []float64{1, 1, -0.5, 1, 2}
	kvValue  = []float64{1, -1, 0.5} // of V, by KV head
)

// Classes is the form with scores: keys of seven classes, queries of both signs,
// and other values in every head and dim, so that each of a wrong scale, key,
// head, dim, row or position changes the answer. With n = position + 17 row:
//
//	t: +1 or -1 by n mod 5    Q[h,d] = (1 + h mod 2) m_d                m_d: +1 or -1 by d mod 3
//	s = step c, c: -3..3 by n mod 7   K[g,d] = (-1)^g m_d (3, -1, 1, -1 ..)   so that m.K = 2 (even D) or 3
//	u = (n mod 61 - 30 + 24 c)/128    V[g,d] = (1, -1, 1/2)[g mod 3] x_d     x_d = (1, -1, 1/2)[d mod 3]
//	r: 1 or 2 by n mod 3      E[h,d] = (1 + h mod 4)/8 x_d (1, 1, -1/2, 1, 2)[d mod 5]
//
// step is a power of two that makes the largest score about 4 whatever scale and
// D. u depends on c, and strongly, because dq is the covariance of u and s under the
// weights: of independent ones it would vanish as 1/S, and no f32 sum could follow it.
func Classes(shape Shape) (*Problem, error) {
	return newProblem(shape, "classes", func(s *Shape) form {
		f := form{
			rowShift: 17, t: signOf, r: weightOf, class: classOf, s: make([]float64, len(classOf)),
			uPeriod: 61, uFirst: -30 - 3*24, uStep: 24, uUnit: 128,
		}
		dot := float64(2 + s.HeadDim%2)
		// Within 2^-7 .. 2^7 3 x 3 x step is normal and finite in f16.
		step := math.Exp2(min(max(math.Round(math.Log2(0.7/math.Abs(s.Scale*dot))), -7), 7))
		for c := range f.s {
			f.s[c] = float64(c-len(f.s)/2) * step
		}
		at := func(list []float64, i int) float64 { return list[i%len(list)] }
		f.q = pattern(s, "q", func(h, d int) float64 { return float64(1+h%2) * at(dimSign, d) })
		f.k = pattern(s, "k", func(g, d int) float64 {
			sign := float64(1 - 2*((g+d)%2))
			if d == 0 {
				sign *= 3
			}
			return sign * at(dimSign, d)
		})
		f.v = pattern(s, "v", func(g, d int) float64 { return at(kvValue, g) * at(dimValue, d) })
		f.e = pattern(s, "dout", func(h, d int) float64 { return float64(1+h%4) / 8 * at(dimValue, d) * at(dimTimes, d) })
		return f
	})
}

// pattern is [heads, D] of a tensor.
func pattern(s *Shape, tensor string, value func(head, d int) float64) []float32 {
	p := make([]float32, s.Width(tensor))
	for i := range p {
		p[i] = float32(value(i/s.HeadDim, i%s.HeadDim))
	}
	return p
}

func newProblem(shape Shape, name string, makeForm func(*Shape) form) (*Problem, error) {
	if shape.Name == "" {
		shape.Name = name
	}
	if shape.Scale == 0 {
		shape.Scale = DefaultScale(shape.HeadDim)
	}
	if err := shape.validate(); err != nil {
		return nil, err
	}
	batch, err := segments.NewBatch(segments.Contiguous(shape.Tokens, 1), shape.Mask)
	if err != nil {
		return nil, fmt.Errorf("cases: %s: %w", shape.Name, err)
	}
	p := &Problem{Shape: shape, form: makeForm(&shape), batch: batch}
	p.factor, p.dov = make([]float64, p.Heads), make([]float64, p.Heads)
	for h := range p.Heads {
		g := p.kvHead(h)
		p.factor[h] = p.Scale * dot(p.row(p.form.q, h), p.row(p.form.k, g))
		p.dov[h] = dot(p.row(p.form.e, h), p.row(p.form.v, g))
	}
	return p, nil
}

func (p *Problem) kvHead(h int) int { return h / (p.Heads / p.KVHeads) }

// row is one head of a pattern.
func (p *Problem) row(pattern []float32, head int) []float32 {
	return pattern[head*p.HeadDim : (head+1)*p.HeadDim]
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// Numbers of the token with index n = position + rowShift x row.
func (f *form) index(b, pos int) int { return pos + f.rowShift*b }
func (f *form) tAt(n int) float64    { return f.t[n%len(f.t)] }
func (f *form) rAt(n int) float64    { return f.r[n%len(f.r)] }
func (f *form) classAt(n int) int    { return f.class[n%len(f.class)] }
func (f *form) unitsAt(n int) int    { return f.uFirst + n%f.uPeriod + f.uStep*f.classAt(n) }
func (f *form) uAt(n int) float64    { return float64(f.unitsAt(n)) / f.uUnit }

// Value writes q, k, v or dout of one token, [H, D] or [Hkv, D]: values exact in
// the problem's dtype. Padding has values like any other token, which must change
// nothing. dst has Width(tensor) numbers.
func (p *Problem) Value(tensor string, b, pos int, dst []float32) {
	n := p.form.index(b, pos)
	var x float64
	var pattern []float32
	switch f := &p.form; tensor {
	case "q":
		x, pattern = f.tAt(n), f.q
	case "k":
		x, pattern = f.s[f.classAt(n)], f.k
	case "v":
		x, pattern = f.uAt(n), f.v
	case "dout":
		x, pattern = f.rAt(n), f.e
	default:
		panic(fmt.Sprintf("cases: %s: there is no input tensor %q", p.Name, tensor))
	}
	for i, y := range pattern {
		dst[i] = float32(x) * y
	}
}

// SeesNothing reports whether a token is padding: every other token sees itself,
// whatever the mask. Such rows of out, dq, dk and dv are exact zeros, of lse -Inf.
func (p *Problem) SeesNothing(b, pos int) bool {
	p.once.Do(p.build)
	return p.tables[p.factor[0]].invW[b*p.Tokens+pos] == 0
}

// Want writes the exact out, lse, dq, dk or dv of one token: [H, D], [H] or
// [Hkv, D]. The first call of all makes the tables. dst has Width(tensor) numbers.
func (p *Problem) Want(tensor string, b, pos int, dst []float64) {
	p.once.Do(p.build)
	at, r := b*p.Tokens+pos, p.form.rAt(p.form.index(b, pos))
	clear(dst)
	for h := range p.Heads {
		g := p.kvHead(h)
		t := p.tables[p.factor[h]]
		switch tensor {
		case "lse":
			dst[h] = math.Inf(-1)
			if t.invW[at] > 0 {
				dst[h] = -math.Log(t.invW[at])
			}
		case "out":
			p.add(dst, h, t.o[at], p.form.v, g)
		case "dq":
			p.add(dst, h, p.Scale*p.dov[h]*r*t.c[at], p.form.k, g)
		case "dk":
			p.add(dst, g, p.Scale*p.dov[h]*t.b[at], p.form.q, h)
		case "dv":
			p.add(dst, g, t.a[at], p.form.e, h)
		default:
			panic(fmt.Sprintf("cases: %s: there is no output tensor %q", p.Name, tensor))
		}
	}
}

// add adds x times one head of a pattern to a head of dst, [heads, D].
func (p *Problem) add(dst []float64, to int, x float64, pattern []float32, head int) {
	dst = dst[to*p.HeadDim : (to+1)*p.HeadDim]
	for d, y := range p.row(pattern, head) {
		dst[d] += x * float64(y)
	}
}

// Reference is scale x ||k|| x rms(dout.v), what a gradient is measured against
// that is 0 everywhere (Norm). The mean is over all pairs of tokens of one row,
// and all heads.
func (p *Problem) Reference() float64 {
	var k2, u2, r2 float64
	for b := range p.Batch {
		for pos := range p.Tokens {
			n := p.form.index(b, pos)
			s, u, r := p.form.s[p.form.classAt(n)], p.form.uAt(n), p.form.rAt(n)
			k2, u2, r2 = k2+s*s, u2+u*u, r2+r*r
		}
	}
	var x2 float64
	for _, x := range p.dov {
		x2 += x * x
	}
	tokens := float64(p.Batch) * float64(p.Tokens)
	rms := math.Sqrt(u2 / tokens * (r2 / tokens) * (x2 / float64(p.Heads)))
	return math.Abs(p.Scale) * math.Sqrt(k2*dot(p.form.k, p.form.k)) * rms
}

// build makes the tables, one goroutine a distinct factor.
func (p *Problem) build() {
	p.tables = map[float64]*table{}
	keys := p.kernelOrder()
	runs := p.batch.Runs(0, 0)
	var wait sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, factor := range p.factor {
		if p.tables[factor] != nil {
			continue
		}
		t := newTable(p.Batch * p.Tokens)
		p.tables[factor] = t
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t.fill(&p.form, factor, keys, runs)
		})
	}
	wait.Wait()
}
