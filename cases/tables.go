package cases

import (
	"math"

	"ringattn/segments"
)

// table holds the five numbers a token of Problem's docstring for one factor F,
// by row x S + position. Padding has zeros.
type table struct{ invW, o, c, a, b []float64 }

func newTable(n int) *table {
	make1 := func() []float64 { return make([]float64, n) }
	return &table{invW: make1(), o: make1(), c: make1(), a: make1(), b: make1()}
}

// token is what the sums need of one token, in kernel order.
type token struct {
	at    int // row x S + position
	units int32
	class uint8
	sign  uint8 // 0: t = +1, 1: t = -1
	r     float32
}

// kernelOrder lists the real tokens in the one-rank kernel order, in which the
// runs of the batch are counted.
func (p *Problem) kernelOrder() []token {
	order := p.batch.Order(0)
	tokens := make([]token, 0, order.Tokens)
	for _, piece := range order.Pieces {
		for pos := piece.Pos.Start; pos < piece.Pos.End; pos++ {
			n := p.form.index(piece.Row, pos)
			t := token{
				at: piece.Row*p.Tokens + pos, units: int32(p.form.unitsAt(n)),
				class: uint8(p.form.classAt(n)), r: float32(p.form.rAt(n)),
			}
			if p.form.tAt(n) < 0 {
				t.sign = 1
			}
			tokens = append(tokens, t)
		}
	}
	return tokens
}

// maxClasses bounds the score classes of a form.
const maxClasses = 8

// weights is exp(F t s) by the sign of t and the class.
type weights [2][maxClasses]float64

// fill makes both passes. Neither needs prefix sums: along the kernel order the
// ends of the intervals never decrease, so that the keys that a query sees, and
// the queries that see a key, are windows that slide forward.
func (t *table) fill(f *form, factor float64, tokens []token, runs []segments.Run) {
	var w weights
	for c, s := range f.s {
		w[0][c], w[1][c] = math.Exp(factor*s), math.Exp(-factor*s)
	}
	t.queries(f, &w, tokens, runs)
	t.keys(f, &w, tokens, runs)
}

// queries fills 1/W, o and c. The keys in the window are counted by class, as
// whole numbers: nothing is lost however far the window slides.
func (t *table) queries(f *form, w *weights, tokens []token, runs []segments.Run) {
	var count, units [maxClasses]int64
	first, end := 0, 0
	for _, r := range runs {
		for i := range r.Q.Len() {
			lo, hi := r.Interval(i)
			for ; end < hi; end++ {
				k := &tokens[end]
				count[k.class]++
				units[k.class] += int64(k.units)
			}
			for ; first < lo; first++ {
				k := &tokens[first]
				count[k.class]--
				units[k.class] -= int64(k.units)
			}
			q := &tokens[r.Q.Start+i]
			weight := &w[q.sign]
			var sum, sumU float64
			for c := range f.s {
				sum += weight[c] * float64(count[c])
				sumU += weight[c] * float64(units[c])
			}
			invW, o := 1/sum, sumU/sum/f.uUnit
			var cov float64
			for c, s := range f.s {
				cov += weight[c] * s * (float64(units[c])/f.uUnit - o*float64(count[c]))
			}
			if hi-lo == 1 {
				// The gradients are 0, and no rounding may stand in their place: it would
				// be what their errors are measured by.
				o, cov = float64(tokens[lo].units)/f.uUnit, 0
			}
			t.invW[q.at], t.o[q.at], t.c[q.at] = invW, o, cov*invW
		}
	}
}

// keys fills a and b. Queries enter and leave the window of those that see a key;
// by the sign of t it keeps
//
//	sum r/W    and    sum r o/W
//
// The conversions keep a compiler from fusing a product into the sum: what leaves
// must be what entered, to the bit.
func (t *table) keys(f *form, w *weights, tokens []token, runs []segments.Run) {
	enter, leave := cursor{runs: runs}, cursor{runs: runs}
	var sum, sumO [2]compensated
	inside := 0
	for j := range tokens {
		k := &tokens[j]
		for ; !enter.done() && enter.lo() <= j; enter.next() {
			q := &tokens[enter.query()]
			x := float64(q.r) * t.invW[q.at]
			sum[q.sign].add(x)
			sumO[q.sign].add(float64(x * t.o[q.at]))
			inside++
		}
		for ; !leave.done() && leave.hi() <= j; leave.next() {
			q := &tokens[leave.query()]
			x := float64(q.r) * t.invW[q.at]
			sum[q.sign].add(-x)
			sumO[q.sign].add(-float64(x * t.o[q.at]))
			inside--
		}
		if inside == 0 { // between documents
			sum, sumO = [2]compensated{}, [2]compensated{}
		}
		u := float64(k.units) / f.uUnit
		plus, minus := w[0][k.class], w[1][k.class]
		t.a[k.at] = plus*sum[0].value() + minus*sum[1].value()
		t.b[k.at] = plus*(u*sum[0].value()-sumO[0].value()) - minus*(u*sum[1].value()-sumO[1].value())
	}
}

// cursor goes over the queries of runs.
type cursor struct {
	runs   []segments.Run
	run, i int
}

func (c *cursor) done() bool { return c.run == len(c.runs) }
func (c *cursor) query() int { return c.runs[c.run].Q.Start + c.i }
func (c *cursor) lo() int    { lo, _ := c.runs[c.run].Interval(c.i); return lo }
func (c *cursor) hi() int    { _, hi := c.runs[c.run].Interval(c.i); return hi }

func (c *cursor) next() {
	if c.i++; c.i == c.runs[c.run].Q.Len() {
		c.run, c.i = c.run+1, 0
	}
}

// compensated is a sum and the rounding errors of its additions (Neumaier, ZAMM
// 54, 1974, in Knuth's branch-free form): what was added can be taken out again,
// ten million terms later, with an error far below that of one addition.
type compensated struct{ sum, err float64 }

func (s *compensated) add(x float64) {
	t := s.sum + x
	y := t - s.sum
	s.err += (s.sum - (t - y)) + (x - y)
	s.sum = t
}

func (s *compensated) value() float64 { return s.sum + s.err }
