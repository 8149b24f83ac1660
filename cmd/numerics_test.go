package cmd

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"ringattn/cases"
	"ringattn/half"
	"ringattn/segments"
)

// randomCase has normal values in every tensor.
type randomCase struct{ cases.Shape }

func (r randomCase) Width(tensor string) int { return r.Shape.Width(tensor) }

func (r randomCase) Value(tensor string, b, pos int, dst []float32) {
	g := rand.New(rand.NewPCG(uint64(len(tensor))<<8|uint64(tensor[0]), uint64(b)<<32|uint64(pos)))
	for i := range dst {
		dst[i] = float32(g.NormFloat64())
		if r.DType == "bf16" {
			dst[i] = half.BF16ToF32(half.F32ToBF16(dst[i]))
		}
	}
}

// results runs a case on so many ranks, n times over, and gives every output in
// token order, [B, S, width].
func results(t *testing.T, c randomCase, o *options, ranks, n int) map[string][]float32 {
	t.Helper()
	out := map[string][]float32{}
	for _, tensor := range []string{"out", "lse", "dq", "dk", "dv"} {
		out[tensor] = make([]float32, c.Batch*c.Tokens*c.Width(tensor))
	}
	var lock sync.Mutex
	err := runInProcess(context.Background(), o, io.Discard, ranks, "test", func(ctx context.Context, w *world) error {
		a, err := newAttention(ctx, w, valuedProblem(&c.Shape, c))
		if err != nil {
			return err
		}
		defer a.close()
		for range n {
			if _, err := a.passes(ctx); err != nil {
				return err
			}
		}
		lock.Lock()
		defer lock.Unlock()
		for _, tensor := range a.outputs() {
			memory := a.tensor(tensor).view(tensor)
			width := a.width(tensor)
			a.eachToken(func(at, b, pos int) {
				for i := range width {
					out[tensor][(b*c.Tokens+pos)*width+i] = float32At(memory.token(at), i)
				}
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func causalCase(tokens int, dtype string) randomCase {
	return randomCase{cases.Shape{
		Batch: 1, Tokens: tokens, Heads: 4, KVHeads: 2, HeadDim: 128, DType: dtype,
		Mask: segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(tokens)}},
	}}
}

func testOptions(layout, backend string) *options {
	return &options{layout: layout, schedule: "ring", backend: backend, transport: "auto", threads: 1, logLevel: "error"}
}

// A5(b): the error does not grow with the number of ranks.
func TestErrorDoesNotGrowWithRanks(t *testing.T) {
	const growth = 1.25
	c := causalCase(400, "bf16")
	want := results(t, c, testOptions("contiguous", "ref"), 1, 1)
	failures := func(ranks int) map[string]float64 {
		got := results(t, c, testOptions("zigzag", "cpu"), ranks, 1)
		errs := map[string]float64{}
		for tensor := range want {
			var diff, norm float64
			for i, x := range want[tensor] {
				d := float64(got[tensor][i]) - float64(x)
				diff, norm = diff+d*d, norm+float64(x)*float64(x)
			}
			errs[tensor] = math.Sqrt(diff / norm)
		}
		return errs
	}
	one := failures(1)
	for _, ranks := range []int{2, 4, 8} {
		for tensor, e := range failures(ranks) {
			if e > growth*one[tensor] {
				t.Errorf("%s: error %.2g on %d ranks, %.2g on one", tensor, e, ranks, one[tensor])
			}
		}
	}
}

// G3: the garbage collector, at its busiest, changes no bit.
func TestGarbageCollectionChangesNothing(t *testing.T) {
	c := causalCase(64, "f32")
	want := results(t, c, testOptions("zigzag", "cpu"), 4, 1)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				keep := make([][]byte, 64)
				for i := range keep {
					keep[i] = make([]byte, 1<<20)
				}
				runtime.GC()
				runtime.KeepAlive(keep)
			}
		}
	})
	got := results(t, c, testOptions("zigzag", "cpu"), 4, 50)
	close(stop)
	busy.Wait()
	for tensor := range want {
		for i := range want[tensor] {
			if math.Float32bits(want[tensor][i]) != math.Float32bits(got[tensor][i]) {
				t.Fatalf("%s[%d] is %v, was %v", tensor, i, got[tensor][i], want[tensor][i])
			}
		}
	}
}

// The passes may be repeated with nothing left over from before, on
// layouts that leave ranks without tokens.
func TestRanksWithoutTokens(t *testing.T) {
	c := causalCase(3, "f32")
	want := results(t, c, testOptions("contiguous", "cpu"), 1, 1)
	got := results(t, c, testOptions("contiguous", "cpu"), 8, 3)
	for tensor := range want {
		for i := range want[tensor] {
			if d := math.Abs(float64(want[tensor][i] - got[tensor][i])); !(d < 1e-5) {
				t.Fatalf("%s[%d] is %v, want %v", tensor, i, got[tensor][i], want[tensor][i])
			}
		}
	}
}

// steep has finite inputs whose scores overflow to -Inf for the first tokens.
type steep struct{ cases.Shape }

func (s steep) Width(tensor string) int { return s.Shape.Width(tensor) }

func (s steep) Value(tensor string, _, pos int, dst []float32) {
	for i := range dst {
		switch {
		case tensor == "q":
			dst[i] = 100
		case tensor == "k" && pos < 128:
			dst[i] = -3e38
		case tensor == "k":
			dst[i] = 0.5
		case tensor == "v":
			dst[i] = float32(pos)
		default:
			dst[i] = 1
		}
	}
}

// Scores of -Inf weigh nothing, also where a whole chunk has no others: however
// the keys are cut, out is the mean of the rest.
func TestScoresThatOverflow(t *testing.T) {
	const tokens, from = 200, 128
	shape := cases.Shape{
		Batch: 1, Tokens: tokens, Heads: 1, KVHeads: 1, HeadDim: 1, DType: "f32",
		Mask: segments.Mask{Rows: []segments.Row{segments.SingleDocument(tokens)}},
	}
	for _, backend := range []string{"cpu", "ref"} {
		for _, ranks := range []int{1, 2, 3, 8} {
			var lock sync.Mutex
			err := runInProcess(context.Background(), testOptions("contiguous", backend), io.Discard, ranks, "test", func(ctx context.Context, w *world) error {
				a, err := newAttention(ctx, w, valuedProblem(&shape, steep{shape}))
				if err != nil {
					return err
				}
				defer a.close()
				if _, err := a.passes(ctx); err != nil {
					return err
				}
				lock.Lock()
				defer lock.Unlock()
				for _, tensor := range a.outputs() {
					memory := a.tensor(tensor).view(tensor)
					a.eachToken(func(at, _, pos int) {
						got := float64(float32At(memory.token(at), 0))
						want := map[string]float64{
							"out": (from + tokens - 1) / 2.0, "lse": 50 + math.Log(tokens-from), "dq": 0, "dk": got, "dv": 0,
						}[tensor]
						if tensor == "dv" && pos >= from {
							want = float64(tokens) / (tokens - from)
						}
						if !(math.Abs(got-want) <= 1e-4*max(1, math.Abs(want))) {
							t.Errorf("%s, %d ranks: %s of token %d is %v, want %v", backend, ranks, tensor, pos, got, want)
						}
					})
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Kernels that round p and ds to bf16 keep every row of the gradients in bounds where few
// keys have most of the weight, over one chunk and over several.
func TestRoundedRows(t *testing.T) {
	t.Setenv("RINGATTN_TEST_ISA", "portable-bf16")
	for _, ranks := range []string{"1", "2"} {
		out, code, err := execute("check", "--ranks", ranks, "--threads", "1", "--seq", "400", "--heads", "4/2", "--head-dim", "80",
			"--dtype", "bf16", "--mask", "causal", "--mask", "window:9", "--mask", "window:40", "--log-level", "error")
		if code != exitOK {
			t.Errorf("%s ranks: exit %d: %v\n%s", ranks, code, err, out)
		}
	}
}
