//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"ringattn/ring"
)

// Benchmarks of the kernels by themselves: causal self attention of one chunk, of f32 and
// of bf16.
//
//	go test ./kernels -run - -bench .
//
// GFLOP/s counts 4 Heads HeadDim pairs forward and 2.5 times that backward, whatever
// is executed; peak is that as a part of what FMAs alone reach on as many threads.
func BenchmarkForward(b *testing.B)  { benchmark(b, 1) }
func BenchmarkBackward(b *testing.B) { benchmark(b, 2.5) }

func benchmark(b *testing.B, factor float64) {
	const tokens, heads = 2048, 4
	threads := runtime.GOMAXPROCS(0)
	for _, isa := range ISAs() {
		for _, dtype := range []ring.DType{ring.F32, ring.BF16} {
			peak := PeakFLOPS(threads, isa, dtype)
			for _, dim := range []int{64, 128, 256, 512} {
				s := ring.Shape{DType: dtype, Heads: heads, KVHeads: heads, HeadDim: dim, Scale: 1 / float32(dim)}
				b.Run(fmt.Sprintf("%s/%v/D=%d", isa, dtype, dim), func(b *testing.B) {
					benchmarkShape(b, isa, s, tokens, factor, peak)
				})
			}
		}
	}
}

func benchmarkShape(b *testing.B, isa string, s ring.Shape, tokens int, factor, peak float64) {
	backend, err := CPU(runtime.GOMAXPROCS(0), isa)
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	j := newBenchJob(b, backend, s, tokens)
	defer j.free()
	pairs := float64(tokens) * float64(tokens+1) / 2
	flops := factor * 4 * float64(s.Heads*s.HeadDim) * pairs
	run := func() {
		if factor == 1 {
			err = backend.Forward(s, &j.t, j.chunk, j.rows, true)
		} else {
			err = backend.Backward(s, &j.t, j.chunk, j.rows, j.dkv, true)
		}
		if err == nil {
			err = backend.Sync()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	run()
	for b.Loop() {
		run()
	}
	rate := flops * float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(rate/1e9, "GFLOP/s")
	b.ReportMetric(100*rate/peak, "%peak")
}

// benchJob is a rank's tensors against one chunk, its own keys, under a causal mask.
type benchJob struct {
	backend ring.Backend
	pieces  []unsafe.Pointer
	t       ring.Tensors
	chunk   ring.Chunk
	rows    ring.Rows
	dkv     unsafe.Pointer
}

func newBenchJob(tb testing.TB, backend ring.Backend, s ring.Shape, tokens int) *benchJob {
	j := &benchJob{backend: backend}
	alloc := func(n int) unsafe.Pointer {
		p, err := backend.Alloc(4 * int64(n))
		if err != nil {
			tb.Fatal(err)
		}
		j.pieces = append(j.pieces, p)
		return p
	}
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) unsafe.Pointer {
		p := alloc(n)
		for i := range n {
			x := float32(rng.NormFloat64())
			if s.DType == ring.F32 {
				*(*float32)(unsafe.Add(p, 4*i)) = x
			} else { // the upper half is a bf16
				*(*uint16)(unsafe.Add(p, 2*i)) = uint16(math.Float32bits(x) >> 16)
			}
		}
		return p
	}
	n := tokens * s.Heads * s.HeadDim
	j.t = ring.Tensors{
		Tokens: tokens, Q: random(n), DOut: random(n), Out: alloc(n), LSE: alloc(tokens * s.Heads),
		Delta: alloc(tokens * s.Heads), DQ: alloc(n),
	}
	j.chunk = ring.Chunk{Tokens: tokens, KV: random(2 * tokens * s.KVHeads * s.HeadDim)}
	j.rows = ring.Rows{N: tokens, Lo: alloc(tokens), Hi: alloc(tokens)}
	for i := range tokens {
		*(*int32)(unsafe.Add(j.rows.Lo, 4*i)) = 0
		*(*int32)(unsafe.Add(j.rows.Hi, 4*i)) = int32(i + 1)
	}
	j.dkv = alloc(2 * tokens * s.KVHeads * s.HeadDim)
	for _, err := range []error{
		backend.Zero(j.dkv, 8*int64(tokens*s.KVHeads*s.HeadDim)),
		backend.Forward(s, &j.t, j.chunk, j.rows, true),
		backend.Delta(s, &j.t),
		backend.Sync(),
	} {
		if err != nil {
			tb.Fatal(err)
		}
	}
	return j
}

func (j *benchJob) free() {
	for _, p := range j.pieces {
		j.backend.Free(p)
	}
}

// The calls of a step allocate nothing.
func TestNoAllocations(t *testing.T) {
	backend, err := CPU(2, "")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	s := ring.Shape{DType: ring.F32, Heads: 2, KVHeads: 1, HeadDim: 16, Scale: 1}
	j := newBenchJob(t, backend, s, 20)
	defer j.free()
	n := testing.AllocsPerRun(100, func() {
		backend.Forward(s, &j.t, j.chunk, j.rows, false)
		backend.Delta(s, &j.t)
		backend.Backward(s, &j.t, j.chunk, j.rows, j.dkv, false)
		backend.Add(j.t.DQ, j.t.Out, 20*2*16)
		backend.Zero(j.t.DQ, 64)
		e, _ := backend.Record()
		backend.Query(e)
		backend.Sync()
	})
	if n != 0 {
		t.Errorf("a step allocates %v times", n)
	}
}

// What is wrong with a call is in the error's text, with the shape.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		threads int
		isa     string
		want    string
	}{
		{0, "", "kernels: open: threads is 0, want at least 1"},
		{1, "sse9", "kernels: open: isa sse9 is unknown, or this CPU lacks it"},
	} {
		if _, err := CPU(c.threads, c.isa); err == nil || err.Error() != c.want {
			t.Errorf("CPU(%d, %q) gives %v, want %s", c.threads, c.isa, err, c.want)
		}
	}
	backend, err := CPU(1, "")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	s := ring.Shape{DType: ring.F32, Heads: 2, KVHeads: 1, HeadDim: 16, Scale: 1}
	j := newBenchJob(t, backend, s, 20)
	bad := s
	bad.KVHeads = 3
	err = backend.Forward(bad, &j.t, j.chunk, j.rows, true)
	if want := "kernels: forward: 2 heads and 3 KV heads: want a multiple of at least 1"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	// An interval past the chunk's end is found when the call runs.
	j.chunk.Tokens = 19
	if err := backend.Forward(s, &j.t, j.chunk, j.rows, true); err != nil {
		t.Fatal(err)
	}
	err = backend.Sync()
	if want := "kernels: sync: row 19 sees keys [0, 20) of a chunk of 19"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	j.free()
}
