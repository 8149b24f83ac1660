//go:build cgo

package kernels

import (
	"errors"
	"math"
	"testing"
	"unsafe"

	"ringattn/ring"
)

// small is a job that takes no time.
func small(tb testing.TB, backend ring.Backend) *benchJob {
	s := ring.Shape{DType: ring.F32, Heads: 2, KVHeads: 1, HeadDim: 16, Scale: 1}
	return newBenchJob(tb, backend, s, 20, causal)
}

// The calls of a step allocate nothing.
func TestNoAllocations(t *testing.T) {
	backend, err := CPU(2, "")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	j := small(t, backend)
	s := j.shape
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
	j := small(t, backend)
	s := j.shape
	bad := s
	bad.KVHeads = 3
	err = backend.Forward(bad, &j.t, j.chunk, j.rows, true)
	if want := "kernels: forward: 2 heads and 3 KV heads: want a multiple of at least 1"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	bad = s
	bad.Scale = float32(math.NaN())
	err = backend.Forward(bad, &j.t, j.chunk, j.rows, true)
	if want := "kernels: forward: scale is nan"; err == nil || err.Error() != want {
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

// The kernels' exp is within 2 units of the last place of float32. With scores 0 and x, x
// < -17, and values 0 and 1 out is exp x / (1 + exp x), which is exp x to half a unit;
// and this stretch has all of the range that exp x is reduced to.
func TestExponential(t *testing.T) {
	const n = 4096
	s := ring.Shape{DType: ring.F32, Heads: 1, KVHeads: 1, HeadDim: 1, Scale: 1}
	for _, isa := range ISAs() {
		if isa == "portable-bf16" {
			continue // f32 is portable's there
		}
		backend, err := CPU(1, isa)
		if err != nil {
			t.Fatal(err)
		}
		j := newBenchJob(t, backend, s, n, func(int) (lo, hi int) { return 0, 2 })
		q := unsafe.Slice((*float32)(j.t.Q), n)
		copy(unsafe.Slice((*float32)(j.chunk.KV), 4), []float32{0, 0, 1, 1}) // k, v of two tokens
		for i := range q {
			q[i] = float32(-17.5 - 68*float64(i)/n)
		}
		if err := errors.Join(backend.Forward(s, &j.t, j.chunk, j.rows, true), backend.Sync()); err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for i, got := range unsafe.Slice((*float32)(j.t.Out), n) {
			want := math.Exp(float64(q[i]))
			_, exponent := math.Frexp(want)
			worst = max(worst, math.Abs(float64(got)-want)/math.Ldexp(1, exponent-24))
		}
		if !(worst <= 2) {
			t.Errorf("%s: exp is off by %.3g units of the last place", isa, worst)
		}
		t.Logf("%s: %.3g", isa, worst)
		j.free()
		backend.Close()
	}
}
