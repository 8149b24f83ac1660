package backendtest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"ringattn/ring"
)

// testShapes tries head sizes, in turn with dtypes, head groups and masks.
func testShapes(t *testing.T, b ring.Backend) {
	groups := [][2]int{{1, 1}, {2, 1}, {8, 1}, {6, 2}, {4, 4}}
	for i, dim := range []int{1, 3, 16, 63, 64, 72, 80, 96, 128, 160, 192, 256, 320, 512, 576, 1024} {
		for j := range 3 {
			n := i*3 + j
			c := config{
				seed: uint64(n + 1), dtype: ring.DType(j), heads: groups[n%5][0], kvHeads: groups[n%5][1], dim: dim,
				mask: mask(n) % maskKinds, chunks: 1 + n%3, before: n % 2 * 5, after: n % 3,
			}
			// Few pairs where heads and D are many.
			c.queries = max(20, min(220, 20_000/(c.heads*dim)))
			c.keys = c.queries + 30*(n%4)
			if most := limitsOf(b).MaxHeadDim; most > 0 && dim > most {
				refuses(t, b, newProblem(c))
				continue
			}
			newProblem(c).check(t, b)
		}
	}
}

// refuses demands that a head_dim is refused by name, in either pass.
func refuses(t *testing.T, b ring.Backend, p *problem) {
	t.Helper()
	d := newDevice(t, b)
	defer d.free()
	x := p.upload(d)
	chunk, rows, grad := p.uploadChunk(d, 0)
	for pass, err := range map[string]error{
		"forward":  b.Forward(p.shape, &x, chunk, rows, true),
		"backward": b.Backward(p.shape, &x, chunk, rows, grad, true),
	} {
		if want := fmt.Sprintf("head_dim is %d", p.dim); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %s: error %v, want %q in it", p.config, pass, err, want)
		}
	}
}

// testCounts tries numbers of queries and keys around the sizes of tiles.
func testCounts(t *testing.T, b ring.Backend) {
	counts := []int{0, 1, 63, 64, 65, 127, 200}
	for i, queries := range counts {
		for j, keys := range counts {
			kind := mask(i*len(counts)+j) % maskKinds
			newProblem(config{
				seed: uint64(100 + i*10 + j), heads: 2, kvHeads: 1, dim: 16, queries: queries, keys: keys,
				mask: kind, chunks: 1 + (i+j)%2, before: i % 3,
			}).check(t, b)
		}
	}
	// More keys than a backend may care to take at once.
	newProblem(config{seed: 99, heads: 1, kvHeads: 1, dim: 8, queries: 70, keys: 5000, mask: ragged, chunks: 1}).check(t, b)
	newProblem(config{seed: 98, heads: 70, kvHeads: 70, dim: 8, queries: 5, keys: 9, mask: causal, chunks: 2}).check(t, b)
}

// testMasks tries every kind of interval over several chunks.
func testMasks(t *testing.T, b ring.Backend) {
	for m := range maskKinds {
		for _, chunks := range []int{1, 2, 5} {
			newProblem(config{
				seed: uint64(200 + chunks), heads: 2, kvHeads: 2, dim: 32, queries: 230, keys: 230, mask: m,
				chunks: chunks, before: 3, after: 4,
			}).check(t, b)
		}
	}
}

// testLargeLogits has scores of some +-300, where a float32 knows them to 2e-5.
func testLargeLogits(t *testing.T, b ring.Backend) {
	for _, m := range []mask{full, causal, ragged} {
		for dtype := range ring.DType(3) {
			newProblem(config{
				seed: 300, dtype: dtype, heads: 2, kvHeads: 1, dim: 64, queries: 100, keys: 150, mask: m, chunks: 3,
				amplify: 9,
			}).check(t, b)
		}
	}
}

// unit is a problem of zeros to be filled in by hand, a chunk a key, full mask.
func unit(dtype ring.DType, heads, kvHeads, queries, keys int) *problem {
	p := newProblem(config{dtype: dtype, heads: heads, kvHeads: kvHeads, dim: 64, queries: queries, keys: keys, chunks: keys})
	clear(p.q)
	clear(p.dout)
	clear(p.k)
	clear(p.v)
	for i := range p.cuts {
		p.cuts[i] = i
	}
	return p
}

func near(t *testing.T, what string, got float32, want, tol float64) {
	t.Helper()
	if !(math.Abs(float64(got)-want) <= tol) {
		t.Errorf("%s is %v, want %v within %v", what, got, want, tol)
	}
}

// roundings is a few ulp of a number around 1.
const roundings = 1e-6

// testOverflow: scores 0 and 100 in two chunks, in both orders and both places; the
// difference of the two lse must never be an exponent (ring-flash-attention #34).
func testOverflow(t *testing.T, b ring.Backend) {
	for i := range 4 {
		large, order := i%2, i/2
		p := unit(ring.F32, 1, 1, 2, 2)
		p.shape.Scale = 0.125
		for r := range 2 {
			p.q[r*64], p.dout[r*64] = 80, 1
		}
		p.k[large*64], p.v[large*64] = 10, 1
		got := p.run(t, b, p.order(order))
		for r := range 2 {
			near(t, "out", got.out[r*64], 1, roundings)
			near(t, "lse", got.lse[r], 100, 0)
		}
		near(t, "dv of the large key", got.dv[large*64], 2, 2*roundings)
		near(t, "dv of the small key", got.dv[(1-large)*64], 0, 1e-30)
	}
}

// testLostKeys: the backward must use the keys of the chunk it is given, not those of
// the first (diffusers #14265).
func testLostKeys(t *testing.T, b ring.Backend) {
	p := unit(ring.F32, 1, 1, 2, 2)
	p.shape.Scale = 1
	for r := range 2 {
		p.q[r*64], p.dout[r*64] = 1, 1
	}
	p.k[64], p.v[64] = float64(float32(math.Log(3))), 1
	for order := range 2 {
		got := p.run(t, b, p.order(order))
		for r := range 2 {
			near(t, "out", got.out[r*64], 0.75, roundings)
			near(t, "lse", got.lse[r], math.Log(4), roundings)
			near(t, "dq", got.dq[r*64], 0.1875*math.Log(3), roundings)
		}
		near(t, "dv0", got.dv[0], 0.5, roundings)
		near(t, "dv1", got.dv[64], 1.5, roundings)
		near(t, "dk0", got.dk[0], -0.375, roundings)
		near(t, "dk1", got.dk[64], 0.375, roundings)
	}
}

// testHeadGroups: query head h reads KV head h / group in the backward too
// (levanter #449). Each token sees itself, so dv is the sum of dout over the group.
func testHeadGroups(t *testing.T, b ring.Backend) {
	for kvHeads, want := range map[int][]float64{2: {6, 15}, 4: {6, 15, 24, 33}} {
		p := unit(ring.F32, 3*kvHeads, kvHeads, 2, 2)
		p.intervals = []interval{{0, 1}, {1, 2}}
		for r := range 2 {
			for h := range p.heads {
				p.dout[(r*p.heads+h)*64] = float64(h + 1)
			}
		}
		got := p.run(t, b, p.order(0))
		for j := range 2 {
			for h := range kvHeads {
				near(t, "dv", got.dv[(j*kvHeads+h)*64], want[h], 0)
			}
		}
		for _, x := range got.dk {
			near(t, "dk", x, 0, 0)
		}
	}
}

// testHalfExact: an f16 must not pass through a bf16 on its way (case D7).
func testHalfExact(t *testing.T, b ring.Backend) {
	p := unit(ring.F16, 1, 1, 4, 4)
	for i := range p.v {
		p.v[i] = 1 + 1.0/1024
	}
	got := p.run(t, b, p.order(0))
	for _, x := range got.out {
		near(t, "out", x, 1.0009765625, 2e-7)
	}
}

// testSums: sums over rows and keys are float32 for bf16 tensors too (case A5): dv of a
// key is 8 2048/64 + 56 6/64, which takes 11 bits, and 6/64 is lost beside 256 in bf16.
func testSums(t *testing.T, b ring.Backend) {
	p := newProblem(config{dtype: ring.BF16, heads: 1, kvHeads: 1, dim: 64, queries: 64, keys: 64, chunks: 1})
	clear(p.q)
	clear(p.dout)
	for i := range p.v {
		p.v[i] = float64(1 + i/64%2*255) // 1 and 256 in turn
	}
	for r := range 64 {
		p.dout[r*64] = 6
		if r < 8 {
			p.dout[r*64] = 2048
		}
	}
	got := p.run(t, b, p.order(0))
	for i := range got.out {
		near(t, "out", got.out[i], 128.5, 128.5*roundings)
	}
	for j := range 64 {
		near(t, "dv", got.dv[j*64], 261.25, 261.25*roundings)
	}
}

// testAccumulate: a second backward adds as much again to dkv and, unless it is the
// first, to dq.
func testAccumulate(t *testing.T, b ring.Backend) {
	p := newProblem(config{seed: 400, heads: 4, kvHeads: 2, dim: 40, queries: 90, keys: 110, mask: causal, chunks: 1})
	d := newDevice(t, b)
	defer d.free()
	x := p.upload(d)
	chunk, rows, grad := p.uploadChunk(d, 0)
	n := len(p.k) * 2
	dkv, dq := [3][]float32{}, [3][]float32{}
	must(t, b.Forward(p.shape, &x, chunk, rows, true))
	must(t, b.Delta(p.shape, &x))
	for i := range 3 {
		must(t, b.Backward(p.shape, &x, chunk, rows, grad, i != 1))
		dkv[i], dq[i] = make([]float32, n), make([]float32, len(p.q))
		d.read(dkv[i], grad)
		d.read(dq[i], x.DQ)
	}
	for i := range n {
		if dkv[1][i] != 2*dkv[0][i] {
			t.Fatalf("dkv[%d] is %v and then %v, want twice as much", i, dkv[0][i], dkv[1][i])
		}
	}
	for i := range dq[0] {
		if dq[1][i] != 2*dq[0][i] || dq[2][i] != dq[0][i] {
			t.Fatalf("dq[%d] is %v written, %v added, %v written again", i, dq[0][i], dq[1][i], dq[2][i])
		}
	}
}

// testUnseenRows: a row that sees nothing of a later chunk keeps its bits.
func testUnseenRows(t *testing.T, b ring.Backend) {
	p := newProblem(config{seed: 500, heads: 2, kvHeads: 1, dim: 24, queries: 100, keys: 200, mask: full, chunks: 2})
	p.cuts[1] = 100
	for i := range p.intervals {
		if i%7 != 3 {
			p.intervals[i] = interval{0, 100}
		}
	}
	d := newDevice(t, b)
	defer d.free()
	x := p.upload(d)
	var before, after [3][]float32
	for i := range 2 {
		chunk, rows, grad := p.uploadChunk(d, i)
		must(t, b.Forward(p.shape, &x, chunk, rows, i == 0))
		if i == 0 {
			must(t, b.Delta(p.shape, &x))
		}
		must(t, b.Backward(p.shape, &x, chunk, rows, grad, i == 0))
		before = after
		after = [3][]float32{make([]float32, len(p.q)), make([]float32, p.tokens*p.heads), make([]float32, len(p.q))}
		d.read(after[0], x.Out)
		d.read(after[1], x.LSE)
		d.read(after[2], x.DQ)
	}
	for part := range after {
		size := len(after[part]) / p.tokens
		for i := range after[part] {
			same := math.Float32bits(before[part][i]) == math.Float32bits(after[part][i])
			if sees := i/size%7 == 3; !sees && !same {
				t.Fatalf("row %d saw nothing and went from %v to %v", i/size, before[part][i], after[part][i])
			}
		}
	}
}

// testIsolation: a NaN or Inf of a token reaches who sees it and nobody else.
func testIsolation(t *testing.T, b ring.Backend) {
	for _, m := range []mask{causal, documents, window, ragged} {
		for i, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for tensor := range 4 {
				p := newProblem(config{
					seed: 600, dtype: ring.DType((i + tensor + int(m)) % 3), heads: 2, kvHeads: 1, dim: 9, queries: 210, keys: 210,
					mask: m, chunks: 1 + i,
				})
				x := [][]float64{p.q, p.dout, p.k, p.v}[tensor]
				for _, token := range []int{100, 173} {
					size := len(x) / 210
					x[token*size+tensor] = bad
				}
				want := p.solveOnce([3]any{p.config, tensor, i})
				finite := 0
				for _, y := range want.out {
					if !math.IsNaN(y) && !math.IsInf(y, 0) {
						finite++
					}
				}
				if finite == 0 {
					t.Fatalf("%v: nothing is left to check", p.config)
				}
				p.compare(t, b, p.run(t, b, p.order(0)), want)
			}
		}
	}
}

// testNotANumber: a query or a key that is NaN, whatever its bits, gives NaN to who sees
// it, wherever its keys are in a tile of others; a query whose scores are all -Inf sees
// nothing and has no gradient, whatever its values.
func testNotANumber(t *testing.T, b ring.Backend) {
	// In float32 7fc00000, 7fc00001 and ffffffff.
	nans := []float64{math.NaN(), math.Float64frombits(0x7ff8000020000000), math.Float64frombits(0xffffffffe0000000)}
	for dtype := range ring.DType(3) {
		config := config{dtype: dtype, heads: 1, kvHeads: 1, dim: 8, queries: 2, keys: 250, chunks: 1}
		for _, nan := range nans {
			for _, part := range []string{"query", "key"} {
				p := newProblem(config)
				p.intervals = []interval{{0, 250}, {200, 250}}
				bad, good := 1, 0 // rows
				x := p.q[8:]
				if part == "key" {
					bad, good = 0, 1
					x = p.k[199*8:]
				}
				for d := range 8 {
					x[d] = nan
				}
				got := p.run(t, b, p.order(0))
				for d := range 8 {
					if x, y := float64(got.out[good*8+d]), float64(got.out[bad*8+d]); math.IsNaN(x) || !math.IsNaN(y) {
						t.Errorf("%v: out is %v, and %v with a %s of %x", dtype, x, y, part, math.Float64bits(nan))
					}
				}
				if x, y := float64(got.lse[good]), float64(got.lse[bad]); math.IsNaN(x) || !math.IsNaN(y) {
					t.Errorf("%v: lse is %v, and %v with a %s of %x", dtype, x, y, part, math.Float64bits(nan))
				}
				// dq of the row that sees the NaN, dk of the key that is one.
				if x, y := float64(got.dq[bad*8]), float64(got.dk[199*8]); !math.IsNaN(x) || part == "key" && !math.IsNaN(y) {
					t.Errorf("%v: dq is %v and dk %v with a %s of %x", dtype, x, y, part, math.Float64bits(nan))
				}
			}
		}

		for _, config.dim = range []int{8, 96, 512} {
			p := newProblem(config)
			for i := range p.q {
				p.q[i], p.dout[i] = math.Inf(1), math.Inf(1)
			}
			for i := range p.k {
				p.k[i] = -1
			}
			got := p.run(t, b, p.order(0))
			for _, x := range slices.Concat(got.out, got.dq, got.dk, got.dv) {
				if x != 0 {
					t.Errorf("%v, head_dim %d: scores of -Inf alone give %v, want 0", dtype, config.dim, x)
					break
				}
			}
			if x := float64(got.lse[0]); !math.IsInf(x, -1) {
				t.Errorf("%v, head_dim %d: scores of -Inf alone give lse %v", dtype, config.dim, x)
			}
		}
	}
}
