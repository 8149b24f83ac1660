package backendtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"ringattn/ring"
)

// config says what to try.
type config struct {
	seed                uint64
	dtype               ring.DType
	heads, kvHeads, dim int
	queries, keys       int // rows of the call; keys of all chunks together
	before, after       int // tokens of the rank before and after the rows
	mask                mask
	chunks              int
	amplify             float64 // of q and k, 0 for 1
}

// size is the standard deviation of the elements of q and k.
func (c config) size() float64 {
	if c.amplify == 0 {
		return 1
	}
	return c.amplify
}

// problem is one attention: tensors whose values are exact in the dtype, token-major
// as in ring.Tensors, keys of all chunks in one piece.
type problem struct {
	config
	shape     ring.Shape
	tokens    int       // of the rank
	q, dout   []float64 // [tokens, heads, dim]
	k, v      []float64 // [keys, kvHeads, dim]
	intervals []interval
	cuts      []int // chunk i is keys [cuts[i], cuts[i+1])
	rng       *rand.Rand
}

func newProblem(c config) *problem {
	rng := rand.New(rand.NewPCG(c.seed, 7))
	p := &problem{config: c, tokens: c.before + c.queries + c.after, rng: rng}
	p.shape = ring.Shape{
		DType: c.dtype, Heads: c.heads, KVHeads: c.kvHeads, HeadDim: c.dim,
		Scale: float32(1 / math.Sqrt(float64(c.dim))),
	}
	p.q, p.dout = random(rng, c.dtype, p.tokens*c.heads*c.dim, c.size()), random(rng, c.dtype, p.tokens*c.heads*c.dim, 1)
	p.k, p.v = random(rng, c.dtype, c.keys*c.kvHeads*c.dim, c.size()), random(rng, c.dtype, c.keys*c.kvHeads*c.dim, 1)
	p.intervals = c.mask.intervals(rng, c.queries, c.keys)
	p.cuts = []int{0, c.keys}
	for len(p.cuts) <= c.chunks { // chunks may be empty
		p.cuts = append(p.cuts, rng.IntN(c.keys+1))
	}
	slices.Sort(p.cuts)
	return p
}

// random gives n values of standard deviation size that are exact in the dtype.
//
//go:norace
func random(rng *rand.Rand, d ring.DType, n int, size float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = round(size*rng.NormFloat64(), d)
	}
	return x
}

// order is the i-th order of the chunks: as they are, backwards, or shuffled.
func (p *problem) order(i int) []int {
	order := make([]int, p.chunks)
	for j := range order {
		order[j] = j
	}
	switch i {
	case 0:
	case 1:
		slices.Reverse(order)
	default:
		rand.New(rand.NewPCG(uint64(i), 3)).Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
	}
	return order
}

// result is what a backend made of a problem: out and dq [tokens, heads, dim], lse
// [tokens, heads], dk and dv [keys, kvHeads, dim].
type result struct{ out, lse, dq, dk, dv []float32 }

func (r *result) parts() map[string][]float32 {
	return map[string][]float32{"out": r.out, "lse": r.lse, "dq": r.dq, "dk": r.dk, "dv": r.dv}
}

// differs names a part whose bits are not those of o, "" if there is none.
func (r *result) differs(o *result) string {
	others := o.parts()
	for name, x := range r.parts() {
		for i := range x {
			if math.Float32bits(x[i]) != math.Float32bits(others[name][i]) {
				return fmt.Sprintf("%s[%d] (%v, %v)", name, i, x[i], others[name][i])
			}
		}
	}
	return ""
}

// marker fills what no call may write.
const marker = -12345.5

// upload puts the rank's tensors on the device; outputs are filled with marker.
func (p *problem) upload(d *device) ring.Tensors {
	n := p.tokens * p.heads
	return ring.Tensors{
		Tokens: p.tokens,
		Q:      d.write(encode(p.q, p.dtype)), DOut: d.write(encode(p.dout, p.dtype)),
		Out: d.floats(filled(n*p.dim, marker)), LSE: d.floats(filled(n, marker)),
		Delta: d.floats(filled(n, marker)), DQ: d.floats(filled(n*p.dim, marker)),
	}
}

// uploadChunk puts chunk i on the device, with what the rows see of it and zeroed
// gradients.
func (p *problem) uploadChunk(d *device, i int) (ring.Chunk, ring.Rows, unsafe.Pointer) {
	start, n, size := p.cuts[i], p.cuts[i+1]-p.cuts[i], p.kvHeads*p.dim
	var kv []float64
	for j := start; j < start+n; j++ {
		kv = append(append(kv, p.k[j*size:(j+1)*size]...), p.v[j*size:(j+1)*size]...)
	}
	lo, hi := make([]int32, p.queries), make([]int32, p.queries)
	for r, x := range p.intervals {
		lo[r], hi[r] = x.cut(p.rng, start, n)
	}
	chunk := ring.Chunk{Tokens: n, KV: d.write(encode(kv, p.dtype))}
	rows := ring.Rows{Start: p.before, N: p.queries, Lo: d.write(bytesOf(lo)), Hi: d.write(bytesOf(hi))}
	if i%2 == 0 {
		rows.Span, rows.Tiles = ring.SpanOf(lo, hi)
	}
	return chunk, rows, d.floats(make([]float32, 2*n*size))
}

// run does forward, delta and backward over the chunks in order.
func (p *problem) run(t *testing.T, b ring.Backend, order []int) *result {
	t.Helper()
	d := newDevice(t, b)
	defer d.free()
	x := p.upload(d)
	chunks, rows, grads := make([]ring.Chunk, p.chunks), make([]ring.Rows, p.chunks), make([]unsafe.Pointer, p.chunks)
	for i := range p.chunks {
		chunks[i], rows[i], grads[i] = p.uploadChunk(d, i)
	}
	for n, i := range order {
		must(t, b.Forward(p.shape, &x, chunks[i], rows[i], n == 0))
	}
	// Delta is of all tokens: those outside the rows have marker for out.
	must(t, b.Delta(p.shape, &x))
	for n, i := range order {
		must(t, b.Backward(p.shape, &x, chunks[i], rows[i], grads[i], n == 0))
	}
	must(t, b.Sync())
	r := &result{
		out: make([]float32, len(p.q)), lse: make([]float32, p.tokens*p.heads), dq: make([]float32, len(p.q)),
		dk: make([]float32, len(p.k)), dv: make([]float32, len(p.k)),
	}
	d.read(r.out, x.Out)
	d.read(r.lse, x.LSE)
	d.read(r.dq, x.DQ)
	size := p.kvHeads * p.dim
	for i := range p.chunks {
		start, n := p.cuts[i], p.cuts[i+1]-p.cuts[i]
		g := make([]float32, 2*n*size)
		d.read(g, grads[i])
		for j := range n {
			copy(r.dk[(start+j)*size:], g[2*j*size:(2*j+1)*size])
			copy(r.dv[(start+j)*size:], g[(2*j+1)*size:(2*j+2)*size])
		}
	}
	return r
}

// device remembers what was allocated.
type device struct {
	t      *testing.T
	b      ring.Backend
	pieces []unsafe.Pointer
}

func newDevice(t *testing.T, b ring.Backend) *device { return &device{t: t, b: b} }

func (d *device) write(x []byte) unsafe.Pointer {
	d.t.Helper()
	p, err := d.b.Alloc(int64(len(x)))
	must(d.t, err)
	d.pieces = append(d.pieces, p)
	must(d.t, d.b.Write(p, x))
	return p
}

func (d *device) floats(x []float32) unsafe.Pointer { return d.write(bytesOf(x)) }

func (d *device) read(dst []float32, p unsafe.Pointer) {
	d.t.Helper()
	must(d.t, d.b.Read(bytesOf(dst), p))
}

func (d *device) free() {
	for _, p := range d.pieces {
		d.b.Free(p)
	}
}

func bytesOf[T float32 | int32 | uint16](x []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(one)))
}

func filled(n int, x float32) []float32 { return slices.Repeat([]float32{x}, n) }

// round gives the value nearest to x in the dtype, which is then exact in all that
// follows. x is finite and not near the dtype's ends.
//
//go:norace
func round(x float64, d ring.DType) float64 {
	if d == ring.F32 {
		return float64(float32(x))
	}
	digits := 8
	_, e := math.Frexp(x)
	if d == ring.F16 {
		digits = 11
		e = max(e, -13) // subnormals
	}
	unit := math.Ldexp(1, e-digits)
	return math.RoundToEven(x/unit) * unit
}

// encode gives the bytes of values that are exact in the dtype.
//
//go:norace
func encode(x []float64, d ring.DType) []byte {
	if d == ring.F32 {
		y := make([]float32, len(x))
		for i := range x {
			y[i] = float32(x[i])
		}
		return bytesOf(y)
	}
	y := make([]uint16, len(x))
	for i := range x {
		bits := math.Float32bits(float32(x[i]))
		y[i] = uint16(bits >> 16)
		if d == ring.F16 {
			sign := uint16(bits >> 16 & 0x8000)
			abs := math.Abs(x[i])
			switch _, e := math.Frexp(abs); {
			case abs != abs:
				y[i] = sign | 0x7e00
			case math.IsInf(abs, 0):
				y[i] = sign | 0x7c00
			case abs == 0:
				y[i] = sign
			default: // abs is n units, 1024 <= n < 2048 unless subnormal
				e = max(e, -13)
				y[i] = sign | uint16((e+13)<<10+int(math.Ldexp(abs, 11-e)))
			}
		}
	}
	return bytesOf(y)
}
