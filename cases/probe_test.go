package cases

import (
	"math"
	"strings"
	"testing"

	"ringattn/segments"
)

// checkAll holds whole results against a probe.
func checkAll(t *testing.T, p *Probe, dtype string, got map[string][]float64) {
	t.Helper()
	for _, tensor := range outputs {
		heads, d := p.TensorHeads(tensor), p.RowLen(tensor)
		row := make([]float32, d)
		for pos := range p.Tokens {
			for h := range heads {
				for i := range row {
					row[i] = float32(round(dtype, got[tensor][(pos*heads+h)*d+i]))
				}
				if err := p.Check(tensor, dtype, 0, h, pos, row); err != nil {
					t.Errorf("%s result: %v", dtype, err)
				}
			}
		}
	}
}

// TestNumbersOfTheReports holds every number of the reports against the
// definition, in the tensors' dtype and in f32.
func TestNumbersOfTheReports(t *testing.T) {
	for _, p := range Probes() {
		if p.Tokens > 100 || p.Heads > 100 {
			continue // by hand, below
		}
		t.Run(p.Name, func(t *testing.T) {
			got := attention[float64](&p.Shape, p.Value)
			checkAll(t, &p, p.DType, got)
			checkAll(t, &p, "f32", got)
		})
	}
}

func TestProbesAreWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Probes() {
		if seen[p.Name] {
			t.Errorf("two probes are called %s", p.Name)
		}
		seen[p.Name] = true
		if err := p.validate(); err != nil {
			t.Error(err)
		}
		if len(p.Layouts) == 0 || len(p.Wants) == 0 {
			t.Errorf("%s has %d layouts and %d wants", p.Name, len(p.Layouts), len(p.Wants))
		}
		for _, l := range p.Layouts {
			if _, err := segments.NewBatch(l, p.Mask); err != nil || l.Tokens != p.Tokens {
				t.Errorf("%s: layout %s of %d tokens: %v", p.Name, l.Name, l.Tokens, err)
			}
		}
		for _, w := range p.Wants {
			heads, tokens := segments.Span{End: p.TensorHeads(w.Tensor)}, segments.Span{End: p.Tokens}
			if w.Heads.Len() < 1 || w.Tokens.Len() < 1 || !heads.Contains(w.Heads) || !tokens.Contains(w.Tokens) || w.Dim < AllDims || w.Dim >= p.RowLen(w.Tensor) {
				t.Errorf("%s: %+v lies outside the tensor", p.Name, w)
			}
		}
	}
	for _, name := range []string{
		"A1", "A1 swapped", "A3", "A5(a)", "B1", "B3 causal", "B3 full", "B5", "B8 4,3,3", "B8 3,3,4", "C1 29 contiguous", "C1 29 zigzag",
		"C1 31 zigzag", "C3", "C5", "C6 W=1", "C6 W=16", "D1", "D3 6/2", "D3 12/4", "D5 256", "D5 128", "D7 f16", "D7 f32", "D7 bf16",
		"E1 2097152", "E1 2097153", "E3 65537 docs", "E3 65536 heads",
	} {
		if !seen[name] {
			t.Errorf("there is no probe %s", name)
		}
	}
}

func probe(t *testing.T, name string) *Probe {
	t.Helper()
	for _, p := range Probes() {
		if p.Name == name {
			return &p
		}
	}
	t.Fatalf("there is no probe %s", name)
	return nil
}

// TestE1 sums the few terms of the rows that E1 names.
func TestE1(t *testing.T) {
	for _, name := range []string{"E1 2097152", "E1 2097153"} {
		p := probe(t, name)
		s, w := p.Tokens, p.Mask.Window
		full := func(x float64) []float32 {
			row := make([]float32, p.HeadDim)
			for i := range row {
				row[i] = float32(round("bf16", x))
			}
			return row
		}
		var mean float64
		v := make([]float32, p.Width("v"))
		for j := s - w; j < s; j++ {
			p.Value("v", 0, j, v)
			mean += float64(v[0]) / float64(w)
		}
		check := func(tensor string, pos int, row []float32, ok bool) {
			t.Helper()
			if err := p.Check(tensor, "bf16", 0, 15, pos, row); (err == nil) != ok {
				t.Errorf("%s: %v", name, err)
			}
		}
		check("out", s-1, full(mean), true)
		check("lse", s-1, []float32{float32(math.Log(float64(w)))}, true)
		for j, seen := range map[int]int{w - 1: w, s - w: w, s - w + 1: w - 1, s - 1: 1} {
			// Queries j .. min(j+W-1, S-1) see j, each w keys.
			check("dv", j, full(float64(seen)/float64(w)), true)
		}
		check("dv", s-w, full(float64(w-2)/float64(w)), false)
		check("dv", s-1, full(2/float64(w)), false)
	}
}

func TestE3(t *testing.T) {
	for _, name := range []string{"E3 65537 docs", "E3 65536 heads"} {
		p := probe(t, name)
		for _, pos := range []int{0, 1, p.Tokens - 1} {
			for _, h := range []int{0, p.Heads / 2, p.Heads - 1} {
				out, dv := make([]float32, p.HeadDim), make([]float32, p.HeadDim)
				for d := range p.HeadDim {
					out[d], dv[d] = p.at("v", h, pos, d), p.at("dout", h, pos, d)
				}
				for _, c := range []struct {
					tensor string
					got    []float32
					ok     bool
				}{{"out", out, true}, {"dv", dv, true}, {"out", make([]float32, p.HeadDim), false}, {"dq", dv, false}} {
					if err := p.Check(c.tensor, "bf16", 0, h, pos, c.got); (err == nil) != c.ok {
						t.Errorf("%s: %s: %v", name, c.tensor, err)
					}
				}
			}
			if !p.Mask.Rows[0].Docs[pos].Contains(segments.Span{Start: pos, End: pos + 1}) {
				t.Errorf("%s: token %d is not document %d", name, pos, pos)
			}
		}
	}
}

func TestCheckSeesWrongNumbers(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	row := func(first, rest float32) []float32 {
		out := make([]float32, 64)
		for i := range out {
			out[i] = rest
		}
		out[0] = first
		return out
	}
	for _, c := range []struct {
		probe, tensor, dtype string
		pos                  int
		got                  []float32
		want                 string // of the error
	}{
		{"A5(a)", "dv", "f32", 7, row(261.25, 0), ""},
		{"A5(a)", "dv", "bf16", 7, row(262, 0), ""},
		{"A5(a)", "dv", "f32", 7, row(262, 0), "is 262, want 261.25"},
		{"A5(a)", "dv", "bf16", 7, row(260, 0), "is 260"},
		{"A5(a)", "out", "f32", 7, row(31.5, nan), "dim 1] is NaN, want a finite"},
		{"D7 f16", "out", "f16", 0, row(1+0x1p-10, 1+0x1p-10), ""},
		{"D7 f16", "out", "f16", 0, row(1, 1+0x1p-10), "is 1,"},
		{"D7 bf16", "out", "bf16", 0, row(1, 1), ""},
		{"A3", "out", "f32", 6, row(0, 0), ""},
		{"A3", "out", "f32", 6, row(0, 1e-30), "dim 1]"},
		{"A3", "out", "f32", 6, row(0, inf), "finite"},
		{"A3", "out", "f32", 6, row(-inf, 0), "finite"},
		{"A3", "lse", "f32", 6, []float32{-inf}, ""},
		{"A3", "lse", "f32", 6, []float32{-1e30}, "want -Inf"},
		{"A3", "lse", "f32", 5, []float32{-inf}, "want 1.79"},
		{"A3", "dk", "f32", 3, row(0, 1e-9), "dk[b=0, head 0, token 3, dim 1]"},
	} {
		err := probe(t, c.probe).Check(c.tensor, c.dtype, 0, 0, c.pos, c.got)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got error %v", c, err)
		}
	}
}

// C6 follows from the mask.
func TestWindowHops(t *testing.T) {
	for _, c := range WindowHops {
		b, err := segments.NewBatch(segments.Contiguous(16, 4), one(16, true, c.Window))
		if err != nil {
			t.Fatal(err)
		}
		hops := 0
		for kv := range 3 {
			if b.Need(3, kv).Pairs > 0 {
				hops++
			}
		}
		if hops != c.Hops {
			t.Errorf("window %d needs %d shards before rank 3, want %d", c.Window, hops, c.Hops)
		}
	}
}
