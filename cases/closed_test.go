package cases

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ringattn/half"
	"ringattn/segments"
	"ringattn/segments/segmentstest"
)

var outputs = []string{"out", "lse", "dq", "dk", "dv"}

// tolClosed is float64 rounding of sums of a few dozen terms of order 10.
const tolClosed = 1e-11

func drawShape(t *rapid.T) Shape {
	tokens := rapid.IntRange(1, 24).Draw(t, "tokens")
	mask := segmentstest.Mask(t, tokens)
	kvHeads := rapid.IntRange(1, 3).Draw(t, "kv heads")
	return Shape{
		Batch: len(mask.Rows), Tokens: tokens, KVHeads: kvHeads,
		Heads:   kvHeads * rapid.IntRange(1, 3).Draw(t, "group"),
		HeadDim: rapid.SampledFrom([]int{1, 2, 3, 6, 7}).Draw(t, "head dim"),
		DType:   rapid.SampledFrom([]string{"f32", "bf16", "f16"}).Draw(t, "dtype"),
		Scale:   rapid.SampledFrom([]float64{0, 1, 0.25, -0.5, 8}).Draw(t, "scale"),
		Mask:    mask,
	}
}

var forms = map[string]func(Shape) (*Problem, error){"uniform": Uniform, "classes": Classes}

func TestClosedFormsEqualTheDefinition(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p, err := form(drawShape(t))
				if err != nil {
					t.Fatal(err)
				}
				want := attention[float64](&p.Shape, p.Value)
				for _, tensor := range outputs {
					width := p.Width(tensor)
					got := make([]float64, width)
					for b := range p.Batch {
						for pos := range p.Tokens {
							p.Want(tensor, b, pos, got)
							at := (b*p.Tokens + pos) * width
							for i, g := range got {
								w := want[tensor][at+i]
								if g != w && !(math.Abs(g-w) <= tolClosed*max(1, math.Abs(w))) {
									t.Fatalf("%s of row %d, token %d, number %d is %v, the definition says %v", tensor, b, pos, i, g, w)
								}
								if p.SeesNothing(b, pos) && g != 0 && !math.IsInf(g, -1) {
									t.Fatalf("%s of token %d, which sees nothing, is %v", tensor, pos, g)
								}
							}
							if p.SeesNothing(b, pos) != !p.Mask.Sees(b, pos, pos) {
								t.Fatalf("SeesNothing(%d, %d) is %v", b, pos, p.SeesNothing(b, pos))
							}
						}
					}
				}
			})
		})
	}
}

// A token that sees itself alone has no gradient of its scores, to the bit: where all
// are so, their error is measured by what the terms are (Reference).
func TestSingleKeysHaveNoGradient(t *testing.T) {
	const tokens, batch = 50, 2
	spec, err := ParseMask("window:1")
	if err != nil {
		t.Fatal(err)
	}
	mask, err := spec.Build(tokens, batch)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Classes(Shape{Batch: batch, Tokens: tokens, Heads: 4, KVHeads: 2, HeadDim: 6, DType: "bf16", Mask: mask})
	if err != nil {
		t.Fatal(err)
	}
	for _, tensor := range []string{"dq", "dk"} {
		got := make([]float64, p.Width(tensor))
		for b := range batch {
			for pos := range tokens {
				p.Want(tensor, b, pos, got)
				for _, x := range got {
					if x != 0 {
						t.Fatalf("%s of row %d, token %d is %v, want 0", tensor, b, pos, x)
					}
				}
			}
		}
	}
}

func TestInputsAreExactInTheirDType(t *testing.T) {
	to16 := map[string]func(float32) float32{
		"bf16": func(f float32) float32 { return half.BF16ToF32(half.F32ToBF16(f)) },
		"f16":  func(f float32) float32 { return half.F16ToF32(half.F32ToF16(f)) },
	}
	for name, form := range forms {
		for dtype, convert := range to16 {
			for _, scale := range []float64{0, 1e-6, 1e6} {
				const tokens = 5*7*61 + 3
				p, err := form(Shape{Batch: 1, Tokens: tokens, Heads: 6, KVHeads: 3, HeadDim: 5, DType: dtype, Scale: float64(float32(scale)), Mask: one(tokens, true, 0)})
				if err != nil {
					t.Fatal(err)
				}
				for _, tensor := range []string{"q", "k", "v", "dout"} {
					x := make([]float32, p.Width(tensor))
					for pos := range tokens {
						p.Value(tensor, 0, pos, x)
						for i, f := range x {
							if convert(f) != f {
								t.Fatalf("%s, scale %v: %s of token %d, number %d is %v, not exact in %s", name, scale, tensor, pos, i, f, dtype)
							}
						}
					}
				}
			}
		}
	}
}

// TestTablesKeepTheirAccuracyOverLongRows holds the last keys, whose sums are what
// is left of a quarter of a million terms taken away again, against sums of a few terms.
func TestTablesKeepTheirAccuracyOverLongRows(t *testing.T) {
	const tokens, tol = 1 << 18, 1e-13
	p, err := Uniform(Shape{Batch: 1, Tokens: tokens, Heads: 1, KVHeads: 1, HeadDim: 1, DType: "bf16", Mask: one(tokens, true, 0)})
	if err != nil {
		t.Fatal(err)
	}
	near := func(tensor string, pos int, want float64) {
		t.Helper()
		var got [1]float64
		p.Want(tensor, 0, pos, got[:])
		if math.Abs(got[0]-want) > tol*math.Abs(want) {
			t.Errorf("%s of token %d is %.17g, want %.17g", tensor, pos, got[0], want)
		}
	}
	var tail float64
	for j := tokens - 1; j >= tokens-1000; j-- {
		tail += 1 / float64(j+1)
		near("dv", j, tail)
	}
	// The harmonic number: ln n + Euler's constant + 1/2n - 1/12n^2.
	const n = tokens
	near("dv", 0, math.Log(n)+0.57721566490153286061+1/(2.*n)-1/(12.*n*n))
	near("lse", tokens-1, math.Log(n))
	near("out", tokens-1, 31.5/64)

	// A window slides: every sum inside is the same, to the end.
	p, err = Classes(Shape{Batch: 1, Tokens: tokens, Heads: 1, KVHeads: 1, HeadDim: 1, DType: "bf16", Mask: one(tokens, true, 64)})
	if err != nil {
		t.Fatal(err)
	}
	const period = 3 * 5 * 7 * 61
	first, last := 64, 64+(tokens-256)/period*period
	for _, tensor := range outputs {
		var a, b [1]float64
		for i := range 100 {
			p.Want(tensor, 0, first+i, a[:])
			p.Want(tensor, 0, last+i, b[:])
			if math.Abs(a[0]-b[0]) > 1e-14*max(1, math.Abs(a[0])) {
				t.Errorf("%s of token %d is %v, %d tokens later %v", tensor, first+i, a[0], last-first, b[0])
			}
		}
	}
}

// TestF32MeetsTheBounds shows that the closed form with scores can be met: its
// gradients do not vanish with length, and plain f32 arithmetic is well within the
// bounds.
func TestF32MeetsTheBounds(t *testing.T) {
	const tokens = 250
	p, err := Classes(Shape{Batch: 1, Tokens: tokens, Heads: 2, KVHeads: 1, HeadDim: 16, DType: "f32", Mask: one(tokens, true, 0)})
	if err != nil {
		t.Fatal(err)
	}
	got := attention[float32](&p.Shape, p.Value)
	maxLSE := 0.
	for _, tensor := range []string{"lse", "out", "dq", "dk", "dv"} { // lse first: its size is in the bounds
		n, m := measure(p, tensor, got[tensor])
		if tensor == "lse" {
			maxLSE = n.MaxAbs
		}
		if err := m.Check(Bounds("f32", tensor, maxLSE)); err != nil {
			t.Errorf("%s: %v", tensor, err)
		}
		t.Logf("%s: error %.2g, worst row %.2g", tensor, m.Tensor(), m.WorstRow())
		if rms := math.Sqrt(n.Sum2 / n.Rows / 16); tensor != "lse" && rms < 0.02 {
			t.Errorf("%s is %v in the mean: too small to be followed in f32", tensor, rms)
		}
	}
}

func measure[T number](p *Problem, tensor string, got []T) (Norm, *Measure) {
	var n Norm
	want := make([]float64, p.Width(tensor))
	rows := func(each func(at int, want []float64, seesNothing bool)) {
		for b := range p.Batch {
			for pos := range p.Tokens {
				p.Want(tensor, b, pos, want)
				at, d := (b*p.Tokens+pos)*len(want), p.RowLen(tensor)
				for h := 0; h < len(want); h += d {
					each(at+h, want[h:h+d], p.SeesNothing(b, pos))
				}
			}
		}
	}
	rows(func(_ int, want []float64, seesNothing bool) { n.Add(want, seesNothing) })
	m := NewMeasure(n, p.Reference())
	rows(func(at int, want []float64, seesNothing bool) {
		AddRow(m, tensor, got[at:at+len(want)], want, seesNothing)
	})
	return n, m
}

// TestClassesSeeEveryKindOfError makes the mistakes that kernels make.
func TestClassesSeeEveryKindOfError(t *testing.T) {
	const tokens, heads, kvHeads, dim = 90, 4, 2, 6
	shape := Shape{Batch: 2, Tokens: tokens, Heads: heads, KVHeads: kvHeads, HeadDim: dim, DType: "bf16", Mask: segments.Mask{
		Causal: true, Window: 40, Rows: []segments.Row{segments.SingleDocument(tokens), segments.SingleDocument(tokens)},
	}}
	p, err := Classes(shape)
	if err != nil {
		t.Fatal(err)
	}
	mistakes := map[string]func(tensor string, b, pos int, dst []float32){}
	for _, bad := range []string{"q", "k", "v", "dout"} {
		for name, from := range map[string]func(b, pos int) (int, int){
			"the next token": func(b, pos int) (int, int) { return b, (pos + 1) % tokens },
			"64 tokens on":   func(b, pos int) (int, int) { return b, (pos + 64) % tokens },
			"another row":    func(b, pos int) (int, int) { return 1 - b, pos },
		} {
			mistakes[bad+" of "+name] = func(tensor string, b, pos int, dst []float32) {
				if tensor == bad {
					b, pos = from(b, pos)
				}
				p.Value(tensor, b, pos, dst)
			}
		}
		for name, to := range map[string]func(head, d, heads int) int{
			"the next head": func(head, d, heads int) int { return (head+1)%heads*dim + d },
			"the next dim":  func(head, d, _ int) int { return head*dim + (d+1)%dim },
		} {
			mistakes[bad+" of "+name] = func(tensor string, b, pos int, dst []float32) {
				p.Value(tensor, b, pos, dst)
				if tensor == bad {
					right := append([]float32(nil), dst...)
					for i, x := range right {
						dst[to(i/dim, i%dim, len(right)/dim)] = x
					}
				}
			}
		}
	}
	passes := func(s *Shape, value func(string, int, int, []float32)) bool {
		got := attention[float64](s, value)
		for _, tensor := range outputs {
			_, m := measure(p, tensor, got[tensor])
			if m.Check(Bounds("bf16", tensor, 0)) != nil {
				return false
			}
		}
		return true
	}
	if !passes(&p.Shape, p.Value) {
		t.Error("the right answer does not pass")
	}
	for name, value := range mistakes {
		if passes(&p.Shape, value) {
			t.Errorf("%s passes", name)
		}
	}
	for name, change := range map[string]func(*Shape){
		"scale":     func(s *Shape) { s.Scale *= 1.1 },
		"window":    func(s *Shape) { s.Mask.Window++ },
		"no window": func(s *Shape) { s.Mask.Window = 0 },
		"full":      func(s *Shape) { s.Mask.Causal = false },
	} {
		s := p.Shape
		change(&s)
		if passes(&s, p.Value) {
			t.Errorf("%s passes", name)
		}
	}
}

func TestReference(t *testing.T) {
	const tokens = 40
	p, err := Classes(Shape{Batch: 1, Tokens: tokens, Heads: 2, KVHeads: 1, HeadDim: 3, DType: "f32", Mask: one(tokens, true, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var k2, dov2 float64
	k, v, dout := make([]float32, 3), make([]float32, 3), make([]float32, 6)
	for j := range tokens {
		p.Value("k", 0, j, k)
		k2 += dot(k, k)
		p.Value("v", 0, j, v)
		for i := range tokens {
			p.Value("dout", 0, i, dout)
			for h := range 2 {
				dov := dot(dout[3*h:3*h+3], v)
				dov2 += dov * dov
			}
		}
	}
	want := p.Scale * math.Sqrt(k2) * math.Sqrt(dov2/(tokens*tokens*2))
	if got := p.Reference(); math.Abs(got-want) > 1e-12*want {
		t.Errorf("Reference is %v, want %v", got, want)
	}
}

func TestBadShapesAreRefused(t *testing.T) {
	good := Shape{Batch: 1, Tokens: 4, Heads: 4, KVHeads: 2, HeadDim: 8, DType: "f32", Mask: one(4, true, 0)}
	if _, err := Classes(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Shape){
		"batch 0":     func(s *Shape) { s.Batch = 0 },
		"tokens 0":    func(s *Shape) { s.Tokens = 0 },
		"head dim 0":  func(s *Shape) { s.HeadDim = 0 },
		"KV heads":    func(s *Shape) { s.Heads = 5 },
		"0 KV heads":  func(s *Shape) { s.KVHeads = 0 },
		`"f64"`:       func(s *Shape) { s.DType = "f64" },
		"NaN":         func(s *Shape) { s.Scale = math.NaN() },
		"scale 0.1":   func(s *Shape) { s.Scale = 0.1 },
		"2":           func(s *Shape) { s.Batch = 2 },
		"window is -": func(s *Shape) { s.Mask.Window = -1 },
	} {
		s := good
		change(&s)
		if _, err := Classes(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func BenchmarkTables(b *testing.B) {
	for _, tokens := range []int{1 << 20} {
		b.Run(fmt.Sprint(tokens), func(b *testing.B) {
			for b.Loop() {
				p, err := Classes(Shape{Batch: 1, Tokens: tokens, Heads: 1, KVHeads: 1, HeadDim: 64, DType: "bf16", Mask: one(tokens, true, 0)})
				if err != nil {
					b.Fatal(err)
				}
				p.build()
			}
		})
	}
}
