package ring_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"ringattn/ring"
	"ringattn/segments"
)

// wireError is by how much dk and dv differ from what they should be, in parts of their
// norm.
func wireError(want, got result) float64 {
	var diff, norm float64
	for i, x := range want["dkv"] {
		d := float64(got["dkv"][i]) - float64(x)
		diff, norm = diff+d*d, norm+float64(x)*float64(x)
	}
	if diff == 0 {
		return 0
	}
	return math.Sqrt(diff / norm)
}

// roundings bounds wireError: each rank rounds what it sends to 2^-9 of it, and sums on
// their way may be some times as large as what they come to.
func roundings(job *ring.Job) float64 { return 4 * float64(job.Ranks()) / 512 }

// Gradients that travel in bfloat16 halve their bytes, and change dk and dv by a little
// and nothing else. The errors are those of docs/METRICS.md.
func TestGradientsAsBF16(t *testing.T) {
	const tokens = 96
	shape := ring.Shape{DType: ring.BF16, Heads: 2, KVHeads: 1, HeadDim: 4}
	mask := segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(tokens)}}
	for _, schedule := range ring.Schedules {
		for _, ranks := range []int{2, 4, 8} {
			plain := mustSchedule(t, segments.Zigzag(tokens, ranks), mask, schedule)
			job := mustSchedule(t, segments.Zigzag(tokens, ranks), mask, schedule, ring.GradientsAs(ring.BF16))
			want, errs := runJob(plain, time.Minute)
			got, more := runJob(job, time.Minute)
			if err := errors.Join(append(errs, more...)...); err != nil {
				t.Fatal(err)
			}
			part := wireError(want, got)
			t.Logf("%s, %d ranks: dk and dv are %.1e off", schedule, ranks, part)
			if part > 1.0/256 || part < 1.0/4096 {
				t.Errorf("%s, %d ranks: dk and dv are %.1e off", schedule, ranks, part)
			}
			delete(want, "dkv")
			if !same(want, got) {
				t.Errorf("%s, %d ranks: more than dk and dv differ", schedule, ranks)
			}
			for rank := range ranks {
				keys := sentBytes(plain, rank, ring.Forward, shape)
				grads := sentBytes(plain, rank, ring.Backward, shape) - keys
				if n := sentBytes(job, rank, ring.Backward, shape) - keys; 2*n != grads {
					t.Errorf("%s, rank %d of %d sends %d bytes of gradients, and %d in float32", schedule, rank, ranks, n, grads)
				}
			}
		}
	}
	b, err := segments.NewBatch(segments.Zigzag(tokens, 2), mask)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ring.NewJob(b, "ring", nil, ring.GradientsAs(ring.F16)); err == nil {
		t.Error("gradients may travel as f16")
	}
}

// Smaller stages move as much and take less memory.
func TestStageTokens(t *testing.T) {
	const tokens, ranks, most = 256, 4, 8
	mask := segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(tokens)}}
	usual := mustSchedule(t, segments.Zigzag(tokens, ranks), mask, "direct")
	small := mustSchedule(t, segments.Zigzag(tokens, ranks), mask, "direct", ring.StageTokens(most))
	for rank := range ranks {
		for p := ring.Forward; p <= ring.Backward; p++ {
			if a, b := sentBytes(usual, rank, p, testShape), sentBytes(small, rank, p, testShape); a != b {
				t.Errorf("rank %d, %v: %d bytes are sent in small stages, %d in usual ones", rank, p, b, a)
			}
		}
		for slot, n := range ring.SlotTokens(small.PlanOf(rank, ring.Backward)) {
			if n > most {
				t.Errorf("rank %d: %v holds %d tokens", rank, slot, n)
			}
		}
		if a, b := usual.Memory(rank, testShape, true), small.Memory(rank, testShape, true); b >= a {
			t.Errorf("rank %d takes %d bytes with small stages, %d with usual ones", rank, b, a)
		}
	}
	huge := mustSchedule(t, segments.Zigzag(tokens, ranks), mask, "direct", ring.StageTokens(math.MaxInt))
	if a, b := sentBytes(usual, 0, ring.Forward, testShape), sentBytes(huge, 0, ring.Forward, testShape); a != b {
		t.Errorf("%d bytes are sent in stages of any size, %d in usual ones", b, a)
	}
	want, errs := runJob(usual, time.Minute)
	got, more := runJob(small, time.Minute)
	if err := errors.Join(append(errs, more...)...); err != nil {
		t.Fatal(err)
	}
	if where, d := maxDifference(want, got); d > rounding {
		t.Errorf("stages of %d tokens: results differ by %g at %s", most, d, where)
	}
}
