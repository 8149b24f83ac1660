package cases

import (
	"fmt"
	"math"
)

// Norm is what a tensor's errors are measured against: the first of two passes.
// Every rank adds the wanted rows that it owns and the ranks merge; then a
// Measure over the same rows can be made. The zero Norm is ready to use.
type Norm struct {
	Rows   float64 // that see something
	Sum2   float64 // of want^2
	MaxAbs float64 // |want|; of lse it widens the bounds
}

// Add counts one wanted row: the D numbers of one (batch, head, token), or one
// number of lse. A row that sees nothing has no size and is left out.
func (n *Norm) Add(want []float64, seesNothing bool) {
	if seesNothing {
		return
	}
	n.Rows++
	for _, w := range want {
		n.Sum2 += w * w
		n.MaxAbs = max(n.MaxAbs, math.Abs(w))
	}
}

// Values is n as numbers to be summed and to be maximised over ranks.
func (n Norm) Values() (sums, maxima []float64) {
	return []float64{n.Rows, n.Sum2}, []float64{n.MaxAbs}
}

// NormFromValues is the Norm of merged Values.
func NormFromValues(sums, maxima []float64) Norm {
	return Norm{Rows: sums[0], Sum2: sums[1], MaxAbs: maxima[0]}
}

// Measure is the error of a tensor, row by row.
//
// The tensor's error is ||got - want|| / ||want||. A row's error is ||got - want||
// of the row over the larger of ||want|| of the row and the root mean square of
// that over all rows. Rows have that floor because a row may be small by
// cancellation: dq of a token that sees itself alone is exactly 0, computed from
// terms of the usual size, and has no relative error; a floor of the usual size
// still shows a row that is wrong in full.
//
// Where want is 0 everywhere, a reference of the caller's stands for ||want||:
// scale x ||k|| x rms(dout.v).
//
// A row that sees nothing must be exactly 0, or -Inf of lse; it counts as Wrong
// where it is not, and has no part in the errors.
type Measure struct {
	norm   float64 // ||want||, or the reference
	floor  float64 // of a row's norm
	sum2   float64 // of (got - want)^2
	worst  float64 // row error
	rows   float64
	notNum float64
	wrong  float64
}

// NewMeasure starts the second pass. The norm is that of all ranks. The reference
// is used where the norm is 0; with a reference of 0 too, such a tensor must be
// exactly 0.
func NewMeasure(n Norm, reference float64) *Measure {
	norm := math.Sqrt(n.Sum2)
	if norm == 0 {
		norm = reference
	}
	return &Measure{norm: norm, floor: norm / math.Sqrt(max(n.Rows, 1))}
}

// AddRow measures one row, of the rows that Norm.Add was given. T is the type
// that results are stored in, widened to float32, or float64. A NaN or an infinity
// counts as NotFinite, and its row as infinitely wrong.
func AddRow[T float32 | float64](m *Measure, tensor string, got []T, want []float64, seesNothing bool) {
	m.rows++
	if seesNothing {
		nothing := 0.
		if tensor == "lse" {
			nothing = math.Inf(-1)
		}
		for _, g := range got {
			if float64(g) != nothing {
				m.wrong++
			}
		}
		return
	}
	var diff2, want2 float64
	finite := true
	for i, g := range got {
		d := float64(g) - want[i]
		if math.IsNaN(d) || math.IsInf(d, 0) {
			m.notNum++
			finite = false
			continue
		}
		diff2 += d * d
		want2 += want[i] * want[i]
	}
	m.sum2 += diff2
	m.worst = max(m.worst, ratio(math.Sqrt(diff2), max(math.Sqrt(want2), m.floor)))
	if !finite {
		m.worst = math.Inf(1)
	}
}

// ratio is a/b, with 0/0 = 0.
func ratio(a, b float64) float64 {
	if a == 0 {
		return 0
	}
	return a / b
}

// Values is m as numbers to be summed and to be maximised over ranks.
func (m *Measure) Values() (sums, maxima []float64) {
	return []float64{m.sum2, m.rows, m.notNum, m.wrong}, []float64{m.worst}
}

// SetValues makes m that of merged Values; the norm stays.
func (m *Measure) SetValues(sums, maxima []float64) {
	m.sum2, m.rows, m.notNum, m.wrong = sums[0], sums[1], sums[2], sums[3]
	m.worst = maxima[0]
}

// Rows is the number of rows added, those that see nothing included.
func (m *Measure) Rows() int { return int(m.rows) }

// NotFinite is the number of NaN and infinities where want is a number.
func (m *Measure) NotFinite() int { return int(m.notNum) }

// Wrong is the number of values that are not the exact 0 or -Inf that they must be.
func (m *Measure) Wrong() int { return int(m.wrong) }

// Tensor is the error of the tensor; infinite where a value is not finite.
func (m *Measure) Tensor() float64 {
	if m.notNum > 0 {
		return math.Inf(1)
	}
	return ratio(math.Sqrt(m.sum2), m.norm)
}

// WorstRow is the largest error of a row.
func (m *Measure) WorstRow() float64 { return m.worst }

// Check returns an error that says what is beyond the bounds, nil where nothing is.
func (m *Measure) Check(tensorBound, rowBound float64) error {
	switch {
	case m.notNum > 0:
		return fmt.Errorf("%d values are NaN or infinite", m.NotFinite())
	case m.wrong > 0:
		return fmt.Errorf("%d values of rows that see nothing are not exactly 0 (-Inf of lse)", m.Wrong())
	case !(m.Tensor() <= tensorBound):
		return fmt.Errorf("error %.3g, want <= %.3g", m.Tensor(), tensorBound)
	case !(m.worst <= rowBound):
		return fmt.Errorf("error of the worst row %.3g, want <= %.3g", m.worst, rowBound)
	}
	return nil
}

// Bounds on the error of a tensor.
const (
	// f32: some ten roundings of 2^-24 in a score and its exponential, which add
	// up over D; gradients go through dout.v - delta, which cancels, on top.
	boundF32, boundF32Grad = 1e-5, 3e-5
	// A score of size x is rounded to x 2^-24, its exponential by as much
	// relatively: a few such roundings where lse is large.
	boundLSE = 0x1p-22
	// bf16 has 8 bits: rounding once is an error of 2^-9 = 2e-3 at most, of p before
	// the product with v and of the result; gradients round ds as well.
	boundBF16, boundBF16Grad = 6e-3, 1e-2
	// f16 has 11 bits: 2^-12 = 2.4e-4.
	boundF16, boundF16Grad = 1e-3, 2e-3
	// A single row may be this much worse than its tensor.
	rowTimes = 4
)

// Bounds is what the errors of a tensor (out lse dq dk dv) may be where q, k and v
// are of a dtype: for the whole tensor, and for the worst of its rows. maxLSE is
// the largest |lse|, Norm.MaxAbs of lse. lse is f32 whatever the dtype, of inputs
// that are exact, and has the bound of f32 always.
func Bounds(dtype, tensor string, maxLSE float64) (tensorBound, rowBound float64) {
	out, grad := boundF32+boundLSE*maxLSE, boundF32Grad+boundLSE*maxLSE
	switch {
	case dtype == "bf16" && tensor != "lse":
		out, grad = boundBF16, boundBF16Grad
	case dtype == "f16" && tensor != "lse":
		out, grad = boundF16, boundF16Grad
	}
	switch tensor {
	case "out", "lse":
		return out, rowTimes * out
	case "dq", "dk", "dv":
		return grad, rowTimes * grad
	}
	panic(fmt.Sprintf("cases: there is no output tensor %q", tensor))
}
