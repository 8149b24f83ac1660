package ring_test

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/ring/devicetest"
	"ringattn/ring/late"
	"ringattn/ring/staged"
	"ringattn/segments"
)

// deviceJobs are small, and have ranks that pass on, that need nothing, and one alone.
func deviceJobs(t *testing.T) map[string]*ring.Job {
	rows := []segments.Row{segments.SingleDocument(24), segments.NewRow(24, slices.Repeat([]int64{1, 1, 2, 0}, 6), nil, nil)}
	return map[string]*ring.Job{
		"one":     mustJob(t, segments.Contiguous(24, 1), segments.Mask{Causal: true, Rows: rows}),
		"zigzag":  mustJob(t, segments.Zigzag(24, 4), segments.Mask{Causal: true, Rows: rows}),
		"full":    mustJob(t, segments.Contiguous(24, 3), segments.Mask{Rows: rows}),
		"nodes":   mustJobOn(t, segments.Zigzag(24, 6), segments.Mask{Causal: true, Rows: rows}, "two-level", ring.NodesOf(6, 3)),
		"direct":  mustSchedule(t, segments.Zigzag(24, 4), segments.Mask{Causal: true, Rows: rows}, "direct"),
		"bf16":    mustSchedule(t, segments.Zigzag(24, 4), segments.Mask{Causal: true, Rows: rows}, "ring", ring.GradientsAs(ring.BF16)),
		"heads":   mustSchedule(t, segments.Zigzag(24, 4), segments.Mask{Causal: true, Rows: rows}, "direct", ring.Ulysses(2, testShape.Heads, testShape.KVHeads)),
		"windows": mustJob(t, segments.Contiguous(24, 5), segments.Mask{Causal: true, Window: 6, Rows: rows}),
	}
}

// Memory that the host cannot touch, copies that are late, messages in pieces, late and
// out of order, and ranks of both kinds of memory give the same bits.
func TestDeviceMemory(t *testing.T) {
	const pieceBytes = 64 // less than a message of two tokens
	deliver := []inproc.Option{
		inproc.Reorder(7), inproc.Delay(func(src, dst, tag int, _ int64) time.Duration {
			return time.Duration(src*7+tag*3+dst) % 4 * time.Millisecond
		}),
	}
	device := func(_ int, end ring.Transport) (ring.Transport, ring.Backend) {
		d := devicetest.New(kernels.Reference(), devicetest.Mapped())
		return staged.New(end, d, pieceBytes), d
	}
	mixed := func(rank int, end ring.Transport) (ring.Transport, ring.Backend) {
		if rank%2 > 0 {
			return device(rank, end)
		}
		return staged.New(end, nil, pieceBytes), kernels.Reference()
	}
	for name, job := range deviceJobs(t) {
		want, errs := runJob(job, time.Minute)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for kind, on := range map[string]func(int, ring.Transport) (ring.Transport, ring.Backend){"device": device, "mixed": mixed} {
			got, errs := runOn(job, on, nil, time.Minute, deliver...)
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s, %s: %v", name, kind, err)
			}
			if !same(want, got) {
				where, d := maxDifference(want, got)
				t.Errorf("%s, %s: results differ by %g at %s", name, kind, d, where)
			}
		}
	}
}

// poison breaks what a kernel is to write as soon as it is enqueued.
type poison struct{ ring.Backend }

func (p poison) Zero(at unsafe.Pointer, bytes int64) error {
	for i := range bytes / 4 {
		*(*float32)(unsafe.Add(at, 4*i)) = float32(math.NaN())
	}
	return p.Backend.Zero(at, bytes)
}

// lateBy is a rank whose kernels are late, with nothing right before they have run.
func lateBy(by time.Duration) func(int, ring.Transport) (ring.Transport, ring.Backend) {
	return func(_ int, end ring.Transport) (ring.Transport, ring.Backend) {
		return end, poison{late.New(kernels.Reference(), by)}
	}
}

// A send waits for the last kernel that writes what it sends: kernels that are 50 ms late
// change no bit, nor do they on a device.
func TestLateKernelsChangeNothing(t *testing.T) {
	const by = 50 * time.Millisecond
	device := func(_ int, end ring.Transport) (ring.Transport, ring.Backend) {
		b := late.New(devicetest.New(kernels.Reference(), devicetest.Mapped()), by)
		return staged.New(end, b.(ring.Device), 64), b
	}
	for name, job := range deviceJobs(t) {
		for kind, on := range map[string]func(int, ring.Transport) (ring.Transport, ring.Backend){"host": lateBy(by), "device": device} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				want, errs := runJob(job, time.Minute)
				got, more := runOn(job, on, nil, time.Minute)
				if err := errors.Join(append(errs, more...)...); err != nil {
					t.Fatal(err)
				}
				if !same(want, got) {
					where, d := maxDifference(want, got)
					t.Errorf("results differ by %g at %s", d, where)
				}
			})
		}
	}
}

// The test above can fail: on each rank there are sends of gradients that without the wait
// before them make the result wrong. (Others come after something else that the rank has
// waited for.)
func TestLateKernelsShowASendTooEarly(t *testing.T) {
	job := deviceJobs(t)["full"]
	want, errs := runJob(job, time.Minute)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for rank := range job.Ranks() {
		steps := job.PlanOf(rank, ring.Backward)
		dropped, shown := 0, 0
		for i := range steps[1:] {
			send := steps[i+1]
			if steps[i].Op != ring.Wait || send.Op != ring.Send || !send.Slot.Grad || steps[i].Slot != send.Slot {
				continue
			}
			dropped++
			plans := map[int][][]ring.Step{rank: {job.PlanOf(rank, ring.Forward), slices.Delete(slices.Clone(steps), i, i+1)}}
			got, errs := runOn(job, lateBy(10*time.Millisecond), plans, time.Minute)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if !same(want, got) {
				shown++
			}
		}
		if shown == 0 {
			t.Errorf("rank %d: of %d waits before sends of gradients none is missed", rank, dropped)
		}
	}
}
