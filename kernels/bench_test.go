//go:build cgo

package kernels

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"ringattn/half"
	"ringattn/ring"
)

// Benchmarks of the kernels by themselves: self attention of one chunk of 8192 tokens.
//
//	go test ./kernels -run - -bench . -cpu 1 -count 5 | tee new.txt; benchstat old.txt new.txt
//
// -cpu gives the threads. GFLOP/s counts 4 Heads HeadDim pairs forward and 2.5 times
// that backward, whatever is executed. What a figure is held against (%peak, the rate
// of multiply-adds and nothing else; %dense, %f32, %fma) is measured beside it, in turn,
// and both are medians.
const benchTokens = 8192

// BenchmarkDense is a causal mask, each instruction set and dtype.
func BenchmarkDense(b *testing.B) {
	threads := runtime.GOMAXPROCS(0)
	for _, isa := range ISAs() {
		for _, dtype := range []ring.DType{ring.F32, ring.BF16} {
			for _, dim := range []int{64, 128, 256, 512} {
				shape := ring.Shape{DType: dtype, Heads: 1, KVHeads: 1, HeadDim: dim, Scale: 1 / float32(dim)}
				passes(b, fmt.Sprintf("isa=%s/dtype=%v/D=%d", isa, dtype, dim), func(b *testing.B, pass ring.Pass) {
					j := openBenchJob(b, threads, isa, shape, causal)
					defer j.close()
					j.compare(b, pass, yardstick{"%peak", func() float64 { return PeakFLOPS(threads, isa, dtype) }})
				})
			}
		}
	}
}

// BenchmarkMasks is work by visible pairs: %dense is the rate per visible pair as a
// part of that of the causal mask.
func BenchmarkMasks(b *testing.B) {
	masks := []struct {
		name string
		mask benchMask
	}{{"window:128", window(128)}, {"window:512", window(512)}, {"window:2048", window(2048)}, {"docs:500", documents(500)}, {"docs:2000", documents(2000)}}
	for _, dtype := range []ring.DType{ring.F32, ring.BF16} {
		for _, dim := range []int{64, 128, 256} {
			for _, m := range masks {
				shape := ring.Shape{DType: dtype, Heads: 1, KVHeads: 1, HeadDim: dim, Scale: 1 / float32(dim)}
				passes(b, fmt.Sprintf("mask=%s/dtype=%v/D=%d", m.name, dtype, dim), func(b *testing.B, pass ring.Pass) {
					j := openBenchJob(b, runtime.GOMAXPROCS(0), "", shape, m.mask)
					defer j.close()
					dense := openBenchJob(b, runtime.GOMAXPROCS(0), "", shape, causal)
					defer dense.close()
					j.compare(b, pass, yardstick{"%dense", func() float64 { return dense.rate(pass) }})
				})
			}
		}
	}
}

// BenchmarkBF16 holds bf16 against f32.
func BenchmarkBF16(b *testing.B) {
	for _, isa := range ISAs() {
		for _, dim := range []int{64, 128, 256, 512} {
			shape := ring.Shape{DType: ring.BF16, Heads: 1, KVHeads: 1, HeadDim: dim, Scale: 1 / float32(dim)}
			passes(b, fmt.Sprintf("isa=%s/D=%d", isa, dim), func(b *testing.B, pass ring.Pass) {
				j := openBenchJob(b, runtime.GOMAXPROCS(0), isa, shape, causal)
				defer j.close()
				shape.DType = ring.F32
				f32 := openBenchJob(b, runtime.GOMAXPROCS(0), isa, shape, causal)
				defer f32.close()
				j.compare(b, pass, yardstick{"%f32", func() float64 { return f32.rate(pass) }})
			})
		}
	}
}

// BenchmarkThreads holds the speed-up over one thread against that of a loop of
// multiply-adds on as many threads, %fma, and the rate against that of as many jobs of
// one thread and one head side by side, %apart: what is lost to the CPUs' shared caches,
// memory and clocks is lost there too.
func BenchmarkThreads(b *testing.B) {
	threads := runtime.GOMAXPROCS(0)
	for _, heads := range []int{8, 2} {
		shape := ring.Shape{DType: ring.F32, Heads: heads, KVHeads: heads, HeadDim: 128, Scale: 1. / 128}
		passes(b, fmt.Sprintf("H=%d", heads), func(b *testing.B, pass ring.Pass) {
			j := openBenchJob(b, threads, "", shape, causal)
			defer j.close()
			one := shape
			one.Heads, one.KVHeads = 1, 1
			apart := make([]*benchJob, threads)
			for i := range apart {
				apart[i] = openBenchJob(b, 1, "", one, causal)
				defer apart[i].close()
			}
			fma := func(threads int) float64 { return sum(rates(threads, "", ring.F32, 100*time.Millisecond)) }
			j.compare(b, pass,
				yardstick{"%fma", func() float64 { return apart[0].rate(pass) * fma(threads) / fma(1) }},
				yardstick{"%apart", func() float64 { return together(apart, pass) }})
		})
	}
}

// together runs jobs side by side and gives the sum of their rates.
func together(jobs []*benchJob, pass ring.Pass) float64 {
	rates := make([]float64, len(jobs))
	var wg sync.WaitGroup
	for i, j := range jobs {
		wg.Go(func() { rates[i] = j.rate(pass) })
	}
	wg.Wait()
	return sum(rates)
}

func passes(b *testing.B, name string, f func(b *testing.B, pass ring.Pass)) {
	for _, pass := range []ring.Pass{ring.Forward, ring.Backward} {
		b.Run(fmt.Sprintf("%s/pass=%v", name, pass), func(b *testing.B) { f(b, pass) })
	}
}

// yardstick is a rate in FLOP/s that another is a part of.
type yardstick struct {
	unit string
	rate func() float64
}

// compare reports the job's rate, and what part it is of others.
func (j *benchJob) compare(b *testing.B, pass ring.Pass, others ...yardstick) {
	j.rate(pass) // the first run touches memory
	var mine []float64
	theirs := make([][]float64, len(others))
	for b.Loop() {
		mine = append(mine, j.rate(pass))
		b.StopTimer()
		for i, o := range others {
			theirs[i] = append(theirs[i], o.rate())
		}
		b.StartTimer()
	}
	b.ReportMetric(median(mine)/1e9, "GFLOP/s")
	for i, o := range others {
		b.ReportMetric(100*median(mine)/median(theirs[i]), o.unit)
	}
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// benchMask gives the keys that query i sees.
type benchMask func(i int) (lo, hi int)

func causal(i int) (lo, hi int) { return 0, i + 1 }

func window(w int) benchMask { return func(i int) (lo, hi int) { return max(0, i+1-w), i + 1 } }

// documents is a causal mask of documents of lognormal lengths around length, sigma 1.
func documents(length int) benchMask {
	rng := rand.New(rand.NewPCG(3, 4))
	var starts []int
	for at := 0; at < benchTokens; {
		starts = append(starts, at)
		at += max(1, int(float64(length)*math.Exp(rng.NormFloat64())))
	}
	return func(i int) (lo, hi int) {
		k, found := slices.BinarySearch(starts, i)
		if !found {
			k--
		}
		return starts[k], i + 1
	}
}

// benchJob is a rank's tensors against one chunk, its own keys.
type benchJob struct {
	tb      testing.TB
	backend ring.Backend
	shape   ring.Shape
	pairs   int
	pieces  []unsafe.Pointer
	t       ring.Tensors
	chunk   ring.Chunk
	rows    ring.Rows
	dkv     unsafe.Pointer
}

func openBenchJob(tb testing.TB, threads int, isa string, s ring.Shape, mask benchMask) *benchJob {
	backend, err := CPU(threads, isa)
	if err != nil {
		tb.Fatal(err)
	}
	return newBenchJob(tb, backend, s, benchTokens, mask)
}

func newBenchJob(tb testing.TB, backend ring.Backend, s ring.Shape, tokens int, mask benchMask) *benchJob {
	j := &benchJob{tb: tb, backend: backend, shape: s}
	alloc := func(n int, size int64) unsafe.Pointer {
		p, err := backend.Alloc(size * int64(n))
		if err != nil {
			tb.Fatal(err)
		}
		j.pieces = append(j.pieces, p)
		return p
	}
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) unsafe.Pointer {
		p := alloc(n, s.DType.Size())
		for i := range n {
			x := float32(rng.NormFloat64())
			switch s.DType {
			case ring.F32:
				*(*float32)(unsafe.Add(p, 4*i)) = x
			case ring.BF16:
				*(*uint16)(unsafe.Add(p, 2*i)) = half.F32ToBF16(x)
			case ring.F16:
				*(*uint16)(unsafe.Add(p, 2*i)) = half.F32ToF16(x)
			}
		}
		return p
	}
	n := tokens * s.Heads * s.HeadDim
	j.t = ring.Tensors{
		Tokens: tokens, Q: random(n), DOut: random(n), Out: alloc(n, 4), LSE: alloc(tokens*s.Heads, 4),
		Delta: alloc(tokens*s.Heads, 4), DQ: alloc(n, 4),
	}
	j.chunk = ring.Chunk{Tokens: tokens, KV: random(2 * tokens * s.KVHeads * s.HeadDim)}
	j.rows = ring.Rows{N: tokens, Lo: alloc(tokens, 4), Hi: alloc(tokens, 4)}
	for i := range tokens {
		lo, hi := mask(i)
		*(*int32)(unsafe.Add(j.rows.Lo, 4*i)) = int32(lo)
		*(*int32)(unsafe.Add(j.rows.Hi, 4*i)) = int32(hi)
		j.pairs += hi - lo
	}
	j.dkv = alloc(2*tokens*s.KVHeads*s.HeadDim, 4)
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

// rate runs a pass and gives its FLOP/s; a pass with few pairs as often as it takes
// for the work of a causal mask, since a CPU that was idle takes its time to speed up.
func (j *benchJob) rate(pass ring.Pass) float64 {
	repeats := max(1, j.t.Tokens*(j.t.Tokens+1)/2/j.pairs)
	flops := 4 * float64(j.shape.Heads*j.shape.HeadDim) * float64(j.pairs*repeats)
	begin := time.Now()
	var err error
	for range repeats {
		if pass == ring.Forward {
			err = errors.Join(err, j.backend.Forward(j.shape, &j.t, j.chunk, j.rows, true))
		} else {
			err = errors.Join(err, j.backend.Backward(j.shape, &j.t, j.chunk, j.rows, j.dkv, true))
		}
	}
	if err = errors.Join(err, j.backend.Sync()); err != nil {
		j.tb.Error(err)
	}
	if pass == ring.Backward {
		flops *= 2.5
	}
	return flops / time.Since(begin).Seconds()
}

func (j *benchJob) free() {
	for _, p := range j.pieces {
		j.backend.Free(p)
	}
}

func (j *benchJob) close() {
	j.free()
	j.backend.Close()
}
