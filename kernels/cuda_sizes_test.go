//go:build cuda && cgo

package kernels

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"unsafe"

	"ringattn/ring"
)

// onGPU holds the tensors of n tokens, of which queries see what lo and hi say.
type onGPU struct {
	ring.Tensors
	t      *testing.T
	b      ring.Backend
	s      ring.Shape
	rows   ring.Rows
	memory []unsafe.Pointer
}

// newOnGPU allocates them, or skips where the GPU has no room. Results hold NaN.
func newOnGPU(t *testing.T, b ring.Backend, s ring.Shape, n int, interval func(i int) (lo, hi int)) *onGPU {
	t.Helper()
	q, heads, keys := int64(n)*int64(s.Heads*s.HeadDim), int64(n)*int64(s.Heads), int64(n)*s.KVTokenBytes()
	grads := int64(n) * s.GradTokenBytes()
	d, err := SelectCUDA(0)
	check(t, err)
	if want := q*(4+4+2*s.DType.Size()) + 2*heads*4 + keys + grads + 1<<30; d.FreeBytes < want {
		t.Skipf("%d tokens take %d bytes, the GPU has %d left", n, want, d.FreeBytes)
	}
	g := &onGPU{t: t, b: b, s: s}
	g.Tensors = ring.Tensors{
		Tokens: n, Q: g.alloc(q * s.DType.Size()), KV: g.alloc(keys), DOut: g.alloc(q * s.DType.Size()),
		Out: g.marked(q * 4), LSE: g.marked(heads * 4), Delta: g.marked(heads * 4), DQ: g.marked(q * 4), DKV: g.alloc(grads),
	}
	bounds := make([]int32, 2*n)
	for i := range n {
		lo, hi := interval(i)
		bounds[i], bounds[n+i] = int32(lo), int32(hi)
	}
	at := g.alloc(int64(8 * n))
	check(t, b.Write(at, unsafe.Slice((*byte)(unsafe.Pointer(&bounds[0])), 8*n)))
	g.rows = ring.Rows{N: n, Lo: at, Hi: unsafe.Add(at, 4*n)}
	g.rows.Span, g.rows.Tiles = ring.SpanOf(bounds[:n], bounds[n:])
	return g
}

func (g *onGPU) alloc(bytes int64) unsafe.Pointer {
	p, err := g.b.Alloc(bytes)
	check(g.t, err)
	g.memory = append(g.memory, p)
	check(g.t, g.b.Zero(p, bytes))
	return p
}

func (g *onGPU) marked(bytes int64) unsafe.Pointer {
	p := g.alloc(bytes)
	g.fill(p, bytes, []byte{0xff, 0xff, 0xff, 0xff})
	return p
}

// fill writes pattern over and over.
func (g *onGPU) fill(p unsafe.Pointer, bytes int64, pattern []byte) {
	block := make([]byte, 0, 64<<20+len(pattern))
	for len(block) < min(64<<20, int(bytes)) {
		block = append(block, pattern...)
	}
	for at := int64(0); at < bytes; at += int64(len(block)) {
		check(g.t, g.b.Write(unsafe.Add(p, at), block[:min(int64(len(block)), bytes-at)]))
	}
}

// run does both passes over all keys in one chunk.
func (g *onGPU) run() {
	chunk := ring.Chunk{Tokens: g.Tokens, KV: g.KV}
	check(g.t, g.b.Forward(g.s, &g.Tensors, chunk, g.rows, true))
	check(g.t, g.b.Delta(g.s, &g.Tensors))
	check(g.t, g.b.Backward(g.s, &g.Tensors, chunk, g.rows, g.DKV, true))
	check(g.t, g.b.Sync())
}

// floats reads n of them from the i-th on.
func (g *onGPU) floats(p unsafe.Pointer, i, n int64) []float32 {
	x := make([]float32, n)
	check(g.t, g.b.Read(unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*n), unsafe.Add(p, 4*i)))
	return x
}

func (g *onGPU) close() {
	for _, p := range g.memory {
		g.b.Free(p)
	}
	check(g.t, g.b.Close())
}

func bfloat16(x float32) []byte {
	return binary.LittleEndian.AppendUint16(nil, uint16(math.Float32bits(x)>>16))
}

// rounded is x as bfloat16, to nearest, ties to even.
func rounded(x float32) float32 {
	bits := math.Float32bits(x)
	return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
}

func all(x []float32, want func(i int) float32) int {
	for i, y := range x {
		if w := want(i); math.Float32bits(y) != math.Float32bits(w) {
			return i
		}
	}
	return -1
}

// Tensors of 2^31 elements and more: with q of zeros each query's out is the mean of the
// values of its window, and each key's dv the sum of its weights, as dout is all ones.
func TestCUDALongTensors(t *testing.T) {
	needGPU(t)
	const heads, dim, window = 16, 64, 512
	s := ring.Shape{DType: ring.BF16, Heads: heads, KVHeads: heads, HeadDim: dim, Scale: 0.125}
	var token []byte // 64 of them: keys of zeros, values of (token mod 64) / 64
	for i := range 64 {
		token = append(token, make([]byte, heads*dim*2)...)
		for range heads * dim {
			token = append(token, bfloat16(float32(i)/64)...)
		}
	}
	for _, n := range []int64{1 << 21, 1<<21 + 1} {
		g := newOnGPU(t, openCUDA(t), s, int(n), func(i int) (int, int) { return max(0, i-window+1), i + 1 })
		g.fill(g.KV, n*s.KVTokenBytes(), token)
		g.fill(g.DOut, n*heads*dim*2, bfloat16(1))
		g.run()
		for _, first := range []int64{window - 1, n / 2, n - 1000} {
			count := min(1000, n-first)
			out, lse := g.floats(g.Out, first*heads*dim, count*heads*dim), g.floats(g.LSE, first*heads, count*heads)
			for i, x := range out {
				if math.Abs(float64(x)-0.4921875) > 1e-5 {
					t.Fatalf("%d tokens: out of token %d is %v, want 0.4921875", n, first+int64(i)/heads/dim, x)
				}
			}
			for i, x := range lse {
				if math.Abs(float64(x)-math.Log(window)) > 1e-5 {
					t.Fatalf("%d tokens: lse of token %d is %v, want %v", n, first+int64(i)/heads, x, math.Log(window))
				}
			}
		}
		const wide = 2 * heads * dim // of dkv
		for _, first := range []int64{window - 1, n / 2, n - window - 999} {
			dkv := g.floats(g.DKV, first*wide, 1000*wide)
			for i, x := range dkv {
				if want := float64(i / (heads * dim) % 2); math.Abs(float64(x)-want) > 1e-5 {
					t.Fatalf("%d tokens: dk, dv of token %d have %v, want %v", n, first+int64(i/wide), x, want)
				}
			}
		}
		last := g.floats(g.DKV, n*wide-heads*dim, heads*dim)
		if i := all(last, func(int) float32 { return 1. / window }); i >= 0 {
			t.Errorf("%d tokens: dv of the last key has %v, want 1/%d", n, last[i], window)
		}
		g.close()
	}
}

// More documents, or more heads, than a launch has blocks in its second dimension: each
// query sees one key, so out, in the dtype, is its value and dv its dout, bit by bit.
func TestCUDAManyDocumentsAndHeads(t *testing.T) {
	needGPU(t)
	for _, c := range []struct{ n, heads, dim int }{{65_537, 1, 64}, {65_537, 1, 512}, {2, 65_536, 64}} {
		s := ring.Shape{DType: ring.BF16, Heads: c.heads, KVHeads: c.heads, HeadDim: c.dim, Scale: 0.125}
		g := newOnGPU(t, openCUDA(t), s, c.n, func(i int) (int, int) { return i, i + 1 })
		var pattern []byte // of a length that no row has
		value := func(i int) float32 { return float32(i%251+1) / 256 }
		for i := range 251 {
			pattern = append(pattern, bfloat16(value(i))...)
		}
		q := int64(c.n) * int64(c.heads*c.dim)
		g.fill(g.Q, 2*q, pattern)
		g.fill(g.KV, int64(c.n)*s.KVTokenBytes(), pattern)
		g.fill(g.DOut, 2*q, pattern)
		g.run()
		wide := c.heads * c.dim
		out := g.floats(g.Out, 0, q)
		for i, x := range out {
			out[i] = rounded(x)
		}
		if i := all(out, func(i int) float32 { return value(i/wide*2*wide + wide + i%wide) }); i >= 0 {
			t.Errorf("%+v: out has %v at %d", c, out[i], i)
		}
		dkv := g.floats(g.DKV, 0, 2*q)
		for i, x := range dkv {
			if i/wide%2 == 1 && x != value(i/wide/2*wide+i%wide) {
				t.Errorf("%+v: dv has %v at %d", c, x, i)
				break
			}
		}
		g.close()
	}
}

// A span, or a number of tiles, that is too small is an error of the queue, and nothing is
// written past what it gave room for. Kernels that have no use for it do not look at it.
func TestCUDAWrongSpan(t *testing.T) {
	needGPU(t)
	if d, err := SelectCUDA(0); err != nil || d.Capability != "sm_90" {
		t.Skipf("only kernels for sm_90 use spans, this GPU is %s (%v)", d.Capability, err)
	}
	for _, c := range []struct {
		dim, span int
		tiles     int64
		text      string
	}{
		{512, 64, 6, "keys [0, 256) from row 128 on, span is 64"},
		{128, 256, 5, "more tiles of keys than the 5 of it, from row 128 on"},
	} {
		s := ring.Shape{DType: ring.BF16, Heads: 1, KVHeads: 1, HeadDim: c.dim, Scale: 0.04}
		g := newOnGPU(t, openCUDA(t), s, 256, func(i int) (int, int) { return 0, i + 1 })
		g.run() // the right numbers are no error
		if g.rows.Tiles != 6 {
			t.Errorf("256 causal rows touch %d tiles, want 2 + 4", g.rows.Tiles)
		}
		g.rows.Span, g.rows.Tiles = c.span, c.tiles
		check(t, g.b.Backward(s, &g.Tensors, ring.Chunk{Tokens: g.Tokens, KV: g.KV}, g.rows, g.DKV, true))
		if err := g.b.Sync(); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("the error is %v", err)
		}
		g.close()
	}
}
