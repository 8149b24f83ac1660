// Package backendtest is the conformance suite of ring.Backend. Every backend runs
// it from its own tests:
//
//	func TestConformance(t *testing.T) {
//		backendtest.Run(t, func(t *testing.T) ring.Backend { return open(t) })
//	}
//
// Expected values come from float64 code of its own (truth.go) and from cases that
// can be checked by hand.
package backendtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ringattn/ring"
)

// Bounds on ||got - want|| / ||want|| over a tensor against float64. Inputs are
// exact in every dtype, so one set serves all where all arithmetic is float32.
const (
	// TolOut bounds out and lse: a sum of a few hundred rounded terms is good to
	// some 1e-6.
	TolOut = 1e-5
	// TolGrad bounds dq, dk, dv: two more products and the cancellation in
	// dout.v - delta.
	TolGrad = 3e-5
	// TolScore is added for each unit of the largest |lse|: a score s is known to
	// 2^-24 |s|, and an error of the exponent is a relative error of exp.
	TolScore = 1.0 / (1 << 22)
	// cancelled is the part of a gradient's size without cancellation that it counts
	// as at least: roundings are then 1e-7 / cancelled.
	cancelled = 0.05
	// TolRoundedOut and TolRoundedGrad are for out and for dq, dk, dv of bf16 tensors
	// where p and ds are rounded to bf16, to some 2^-9 each. lse knows no such rounding.
	TolRoundedOut = 6e-3
	// TolRoundedGrad is the same for gradients.
	TolRoundedGrad = 1e-2
	// TolRoundedHalfOut and TolRoundedHalfGrad are for f16 tensors where p and ds are
	// rounded to f16, to some 2^-12 each.
	TolRoundedHalfOut = 1e-3
	// TolRoundedHalfGrad is the same for gradients.
	TolRoundedHalfGrad = 2e-3
	// RowFactor is how much worse than the tensor's bound a single row may be.
	RowFactor = 4
)

// Run runs the whole suite; open makes a backend, which Run closes.
func Run(t *testing.T, open func(t *testing.T) ring.Backend) {
	with := func(name string, f func(t *testing.T, b ring.Backend)) {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			defer func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}()
			f(t, b)
		})
	}
	with("memory", testMemory)
	with("events", testEvents)
	with("round", testRound)
	with("move", testMove)
	with("shapes", testShapes)
	with("counts", testCounts)
	with("masks", testMasks)
	with("large logits", testLargeLogits)
	with("overflow", testOverflow)
	with("lost keys", testLostKeys)
	with("head groups", testHeadGroups)
	with("f16 exact", testHalfExact)
	with("bf16 sums", testSums)
	with("isolation", testIsolation)
	with("not a number", testNotANumber)
	with("accumulate", testAccumulate)
	with("unseen rows", testUnseenRows)
	with("repeat", testRepeat)
	with("refusals", testRefusals)
}

// RunRounded is Run for a backend that rounds p and ds to bf16 before their products
// where the tensors are bf16, as the instructions that multiply bf16 ask for.
func RunRounded(t *testing.T, open func(t *testing.T) ring.Backend) {
	RunWithin(t, Limits{RoundsBF16: true}, open)
}

// Limits says what a backend does not do.
type Limits struct {
	RoundsBF16 bool // p and ds of bf16 tensors are rounded to bf16
	RoundsF16  bool // those of f16 tensors to f16
	MaxHeadDim int  // a larger head_dim is refused; 0: none is
}

// RunWithin is Run for a backend of limits.
func RunWithin(t *testing.T, l Limits, open func(t *testing.T) ring.Backend) {
	Run(t, func(t *testing.T) ring.Backend { return limited{open(t), l} })
}

type limited struct {
	ring.Backend
	limits Limits
}

func limitsOf(b ring.Backend) Limits {
	if l, ok := b.(limited); ok {
		return l.limits
	}
	return Limits{}
}

// bounds are those of b for out and for dq, dk, dv of a dtype.
func bounds(b ring.Backend, d ring.DType) (out, grad float64) {
	l := limitsOf(b)
	switch {
	case d == ring.BF16 && l.RoundsBF16:
		return TolRoundedOut, TolRoundedGrad
	case d == ring.F16 && l.RoundsF16:
		return TolRoundedHalfOut, TolRoundedHalfGrad
	}
	return TolOut, TolGrad
}

// Same demands that the backends give the same bits: for instance one backend with
// different numbers of threads.
func Same(t *testing.T, open ...func(t *testing.T) ring.Backend) {
	var first []*result
	var name string
	for i, f := range open {
		b := f(t)
		var all []*result
		for _, c := range sameCases() {
			p := newProblem(c)
			all = append(all, p.run(t, b, p.order(0)))
		}
		if i == 0 {
			first, name = all, b.Name()
		}
		for j := range all {
			if part := first[j].differs(all[j]); part != "" {
				t.Errorf("%v: %s of %q and of %q differ in bits", sameCases()[j], part, name, b.Name())
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func sameCases() []config {
	return []config{
		{seed: 1, dtype: ring.F32, heads: 4, kvHeads: 2, dim: 64, queries: 300, keys: 300, mask: causal, chunks: 2},
		{seed: 2, dtype: ring.BF16, heads: 8, kvHeads: 1, dim: 80, queries: 130, keys: 200, mask: ragged, chunks: 3},
		{seed: 3, dtype: ring.F16, heads: 2, kvHeads: 2, dim: 256, queries: 150, keys: 250, mask: documents, chunks: 1},
	}
}

func testRepeat(t *testing.T, b ring.Backend) {
	for _, c := range sameCases() {
		p := newProblem(c)
		one, two := p.run(t, b, p.order(0)), p.run(t, b, p.order(0))
		if part := one.differs(two); part != "" {
			t.Errorf("%v: %s of two runs differ in bits", c, part)
		}
	}
}

func testMemory(t *testing.T, b ring.Backend) {
	if b.Name() == "" {
		t.Error("no name")
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int64{0, 1, 63, 4096, 1 << 20, 1<<20 + 5} {
		p, err := b.Alloc(n)
		if err != nil {
			t.Fatalf("alloc of %d bytes: %v", n, err)
		}
		if uintptr(p)%64 != 0 {
			t.Errorf("alloc of %d bytes is at %p, not a multiple of 64", n, p)
		}
		src, dst := make([]byte, n), make([]byte, n)
		for i := range src {
			src[i] = byte(rng.Uint32())
		}
		must(t, b.Write(p, src))
		must(t, b.Read(dst, p))
		if !bytes.Equal(src, dst) {
			t.Errorf("%d bytes written do not read back", n)
		}
		if n > 1 {
			must(t, b.Zero(p, n-1))
			must(t, b.Read(dst, p))
			if !bytes.Equal(dst[:n-1], make([]byte, n-1)) || dst[n-1] != src[n-1] {
				t.Errorf("zero of %d bytes cleared others, or not these", n-1)
			}
		}
		b.Free(p)
	}
	d := newDevice(t, b)
	defer d.free()
	for _, n := range []int{0, 1, 17, 200_001} {
		x, y := make([]float32, n), make([]float32, n)
		for i := range x {
			x[i], y[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64())
		}
		px, py := d.floats(x), d.floats(y)
		must(t, b.Add(px, py, int64(n)))
		got := make([]float32, n)
		d.read(got, px)
		for i := range got {
			if got[i] != x[i]+y[i] {
				t.Fatalf("add of %d elements: element %d is %v, want %v", n, i, got[i], x[i]+y[i])
			}
		}
	}
}

// testEvents checks that marks are passed in order and that results are there when
// a mark has been passed.
func testEvents(t *testing.T, b ring.Backend) {
	d := newDevice(t, b)
	defer d.free()
	const n, rounds = 100_000, 50
	one := make([]float32, n)
	for i := range one {
		one[i] = 1
	}
	x, y := d.floats(make([]float32, n)), d.floats(one)
	var events []ring.Event
	for range rounds {
		must(t, b.Add(x, y, n))
		e, err := b.Record()
		must(t, err)
		events = append(events, e)
	}
	passed := 0
	for passed < rounds {
		done, err := b.Query(events[passed])
		must(t, err)
		if !done {
			time.Sleep(20 * time.Microsecond) // the workers may need this CPU
			continue
		}
		passed++
		for _, e := range events[:passed] {
			if done, err := b.Query(e); err != nil || !done {
				t.Fatalf("event %d of %d is done but an earlier one is not (%v)", passed, rounds, err)
			}
		}
	}
	got := make([]float32, n)
	d.read(got, x)
	for i := range got {
		if got[i] != rounds {
			t.Fatalf("element %d is %v after %d additions of 1", i, got[i], rounds)
		}
	}
	must(t, b.Sync())
	e, err := b.Record()
	must(t, err)
	if done, err := b.Query(e); err != nil || !done {
		t.Errorf("a mark in an empty queue is not passed (%v)", err)
	}
}

// testRefusals checks that a wrong call is an error that names the call, at once or
// from Sync.
func testRefusals(t *testing.T, b ring.Backend) {
	p := newProblem(config{seed: 1, heads: 2, kvHeads: 2, dim: 8, queries: 4, keys: 4, mask: full, chunks: 1})
	d := newDevice(t, b)
	defer d.free()
	x := p.upload(d)
	chunk, rows, _ := p.uploadChunk(d, 0)
	s := p.shape
	s.Heads, s.KVHeads = 3, 2
	if err := b.Forward(s, &x, chunk, rows, true); err == nil {
		t.Error("3 heads over 2 KV heads are accepted")
	}
	s = p.shape
	s.HeadDim = 0
	if err := b.Forward(s, &x, chunk, rows, true); err == nil {
		t.Error("head_dim 0 is accepted")
	}
	long := chunk
	long.Tokens = ring.MaxChunkTokens + 1
	if err := b.Forward(p.shape, &x, long, rows, true); err == nil {
		t.Errorf("%d keys are accepted", long.Tokens)
	}
	rows.N = 5
	if err := b.Forward(p.shape, &x, chunk, rows, true); err == nil {
		t.Error("5 rows of 4 tokens are accepted")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c config) String() string {
	return fmt.Sprintf("%v %d/%d heads D=%d, %d queries, %d keys, %v, %d chunks, seed %d", c.dtype, c.heads, c.kvHeads,
		c.dim, c.queries, c.keys, c.mask, c.chunks, c.seed)
}
