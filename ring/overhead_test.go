package ring_test

import (
	"context"
	"fmt"
	"testing"
	"unsafe"

	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/segments"
)

// instant is a backend that computes nothing, and a transport of a rank of a job whose messages
// are there at once: what is left of a run is the executor's own work.
type instant struct {
	ring.Backend
	rank, size int
	event      ring.Event
}

func (x *instant) Alloc(n int64) (unsafe.Pointer, error)  { return x.Backend.Alloc(n) }
func (x *instant) Free(unsafe.Pointer)                    {}
func (x *instant) Write(unsafe.Pointer, []byte) error     { return nil }
func (x *instant) Zero(unsafe.Pointer, int64) error       { return nil }
func (x *instant) Add(_, _ unsafe.Pointer, _ int64) error { return nil }
func (x *instant) Forward(ring.Shape, *ring.Tensors, ring.Chunk, ring.Rows, bool) error {
	return nil
}
func (x *instant) Delta(ring.Shape, *ring.Tensors) error { return nil }
func (x *instant) Backward(ring.Shape, *ring.Tensors, ring.Chunk, ring.Rows, unsafe.Pointer, bool) error {
	return nil
}
func (x *instant) Record() (ring.Event, error)    { x.event++; return x.event, nil }
func (x *instant) Query(ring.Event) (bool, error) { return true, nil }
func (x *instant) Rank() int                      { return x.rank }
func (x *instant) Size() int                      { return x.size }
func (x *instant) Describe() string               { return "instant" }
func (x *instant) Irecv(unsafe.Pointer, int64, int, int) (ring.Request, error) {
	return 1, nil
}

func (x *instant) Isend(unsafe.Pointer, int64, int, int) (ring.Request, error) {
	return 1, nil
}
func (x *instant) Test(ring.Request) (bool, error) { return true, nil }

// instantRun is a rank of a job of 64, bound to instant.
func instantRun(t testing.TB) (run func(), line *ring.Timeline, steps int, trace func(*ring.Timeline)) {
	t.Helper()
	const ranks, rank = 64, 5
	job := mustJob(t, segments.Zigzag(4096, ranks), segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(4096)}})
	x := &instant{Backend: kernels.Reference(), rank: rank, size: ranks}
	tensors := ring.Tensors{Tokens: job.Batch.Order(rank).Tokens}
	for _, p := range []*unsafe.Pointer{&tensors.KV, &tensors.DKV} {
		var err error
		if *p, err = x.Alloc(int64(tensors.Tokens) * testShape.GradTokenBytes()); err != nil {
			t.Fatal(err)
		}
	}
	e, err := ring.Bind(job, ring.Comm{Transport: x}, x, testShape, &tensors, true)
	if err != nil {
		t.Fatal(err)
	}
	run = func() {
		for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
			if _, err := e.Run(context.Background(), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	return run, ring.NewTimeline(), len(job.PlanOf(rank, ring.Forward)) + len(job.PlanOf(rank, ring.Backward)), e.Trace
}

// What a step costs the executor itself, without a trace and with one.
func BenchmarkStep(b *testing.B) {
	run, line, steps, trace := instantRun(b)
	for _, traced := range []bool{false, true} {
		b.Run(fmt.Sprintf("traced=%v", traced), func(b *testing.B) {
			if traced {
				trace(line)
			}
			for b.Loop() {
				line.Spans = line.Spans[:0]
				run()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*steps), "ns/step")
		})
	}
}
