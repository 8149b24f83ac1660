package cases

import (
	"math"
	"strings"
	"testing"
)

func TestMeasure(t *testing.T) {
	want := [][]float64{{3, 4}, {0, 0}, {0, 0}, {6, 8}}
	got := [][]float32{{3, 4.5}, {0, 1}, {0, 0}, {6, 8}}
	blind := []bool{false, false, true, false}
	// Two ranks: the first two rows, and the others.
	var norms [2]Norm
	for i := range want {
		norms[i/2].Add(want[i], blind[i])
	}
	sums, maxima := norms[0].Values()
	sums1, maxima1 := norms[1].Values()
	n := NormFromValues(merge(sums, sums1, maxima, maxima1))
	if n != (Norm{Rows: 3, Sum2: 125, MaxAbs: 8}) {
		t.Errorf("norm is %+v", n)
	}
	ranks := [2]*Measure{NewMeasure(n, 7), NewMeasure(n, 7)}
	for i := range want {
		AddRow(ranks[i/2], "out", got[i], want[i], blind[i])
	}
	m := NewMeasure(n, 7)
	sums, maxima = ranks[0].Values()
	sums1, maxima1 = ranks[1].Values()
	m.SetValues(merge(sums, sums1, maxima, maxima1))
	if got, want := m.Tensor(), math.Sqrt(1.25/125); math.Abs(got-want) > 1e-15 {
		t.Errorf("error is %v, want %v", got, want)
	}
	// Row 0: 0.5 over the floor sqrt(125/3) = 6.5; row 1: 1 over the floor.
	if got, want := m.WorstRow(), 1/math.Sqrt(125./3); math.Abs(got-want) > 1e-15 {
		t.Errorf("worst row is %v, want %v", got, want)
	}
	if m.Rows() != 4 || m.Wrong() != 0 || m.NotFinite() != 0 {
		t.Errorf("%+v", m)
	}
	if err := m.Check(0.11, 0.16); err != nil {
		t.Error(err)
	}
	if err := m.Check(0.09, 0.16); err == nil || !strings.Contains(err.Error(), "error 0.1, want <= 0.09") {
		t.Error(err)
	}
	if err := m.Check(0.11, 0.15); err == nil || !strings.Contains(err.Error(), "worst row 0.155") {
		t.Error(err)
	}
}

// merge is what an exchange over two ranks does.
func merge(sums, sums1, maxima, maxima1 []float64) ([]float64, []float64) {
	for i, x := range sums1 {
		sums[i] += x
	}
	for i, x := range maxima1 {
		maxima[i] = max(maxima[i], x)
	}
	return sums, maxima
}

func TestMeasureOfWhatMustBeExact(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		name, tensor string
		got, want    []float64
		blind        bool
		reference    float64
		err          string
	}{
		{"zeros", "out", []float64{0, 0}, []float64{0, 0}, true, 0, ""},
		{"nearly zero", "out", []float64{0, 1e-300}, []float64{0, 0}, true, 0, "1 values of rows that see nothing"},
		{"NaN in padding", "dk", []float64{math.NaN(), 0}, []float64{0, 0}, true, 0, "see nothing"},
		{"-Inf", "lse", []float64{-inf}, []float64{-inf}, true, 0, ""},
		{"+Inf", "lse", []float64{inf}, []float64{-inf}, true, 0, "see nothing"},
		{"a number for -Inf", "lse", []float64{-1e30}, []float64{-inf}, true, 0, "see nothing"},
		{"-Inf of a row that sees", "lse", []float64{-inf}, []float64{2}, false, 0, "1 values are NaN or infinite"},
		{"NaN", "dq", []float64{1, math.NaN()}, []float64{1, 1}, false, 0, "1 values are NaN or infinite"},
		{"zero everywhere", "dq", []float64{1e-6, 0}, []float64{0, 0}, false, 1, ""},
		{"not zero enough", "dq", []float64{1e-4, 0}, []float64{0, 0}, false, 1, "error 0.0001"},
		{"zero without a reference", "dq", []float64{0, 0}, []float64{0, 0}, false, 0, ""},
		{"not zero without a reference", "dq", []float64{1e-30, 0}, []float64{0, 0}, false, 0, "error +Inf"},
	} {
		var n Norm
		n.Add(c.want, c.blind)
		m := NewMeasure(n, c.reference)
		AddRow(m, c.tensor, c.got, c.want, c.blind)
		err := m.Check(Bounds("f32", c.tensor, 0))
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if m.NotFinite() > 0 && !(math.IsInf(m.Tensor(), 1) && math.IsInf(m.WorstRow(), 1)) {
			t.Errorf("%s: errors %v, %v", c.name, m.Tensor(), m.WorstRow())
		}
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		dtype, tensor string
		maxLSE, want  float64
	}{
		{"f32", "out", 0, 1e-5},
		{"f32", "lse", 4, 1e-5 + 0x1p-20},
		{"f32", "dk", 4, 3e-5 + 0x1p-20},
		{"bf16", "out", 4, 6e-3},
		{"bf16", "dv", 4, 1e-2},
		{"bf16", "lse", 4, 1e-5 + 0x1p-20},
		{"f16", "out", 4, 1e-3},
		{"f16", "dq", 4, 2e-3},
		{"f16", "lse", 0, 1e-5},
	} {
		tensor, row := Bounds(c.dtype, c.tensor, c.maxLSE)
		if tensor != c.want || row != 4*c.want {
			t.Errorf("Bounds(%s, %s, %v) = %v, %v, want %v, %v", c.dtype, c.tensor, c.maxLSE, tensor, row, c.want, 4*c.want)
		}
	}
}
