package ring_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/segments"
)

// How much of the exchange hides behind kernels: on links that take a given part
// of the kernel time, the time that ranks wait with nothing to compute, as a part
// of the kernel time. %exposed-all is what waiting for every message would cost.
func BenchmarkOverlap(b *testing.B) {
	const ranks, tokens = 4, 4 * 1024
	shape := ring.Shape{DType: ring.F32, Heads: 2, KVHeads: 2, HeadDim: 64, Scale: 0.125}
	batch, err := segments.NewBatch(segments.Contiguous(tokens, ranks), segments.Mask{Rows: []segments.Row{segments.SingleDocument(tokens)}})
	if err != nil {
		b.Fatal(err)
	}
	job, err := ring.NewJob(batch, "ring")
	if err != nil {
		b.Fatal(err)
	}
	alone := overlapRun(b, job, shape, 3)
	for _, pass := range []ring.Pass{ring.Forward, ring.Backward} {
		var sent int64
		for s := range job.Plan(0, pass) {
			if s.Op == ring.Send {
				sent += s.Bytes(shape)
			}
		}
		for _, part := range []float64{0.4, 0.8, 1.2} {
			b.Run(fmt.Sprintf("%v/link=%.0f%%", pass, 100*part), func(b *testing.B) {
				speed := float64(sent) / (part * alone[pass].Kernel.Seconds())
				var exposed, kernel time.Duration
				for b.Loop() {
					s := overlapRun(b, job, shape, 1, inproc.Link(speed))
					exposed, kernel = exposed+s[pass].Exposed, kernel+s[pass].Kernel
				}
				b.ReportMetric(100*exposed.Seconds()/kernel.Seconds(), "%exposed")
				b.ReportMetric(100*part, "%exposed-all")
			})
		}
	}
}

// overlapRun gives the means over the ranks of both passes, the last of n times.
func overlapRun(b *testing.B, job *ring.Job, shape ring.Shape, n int, options ...inproc.Option) [2]ring.Stats {
	var mean [2]ring.Stats
	var lock sync.Mutex
	var all sync.WaitGroup
	for rank, end := range inproc.New(job.Ranks(), options...) {
		all.Go(func() {
			cpu, err := kernels.CPU(1, "")
			if err != nil {
				b.Error(err)
				return
			}
			defer cpu.Close()
			x := ring.Tensors{Tokens: job.Batch.Order(rank).Tokens}
			q, kv := shape.Heads*shape.HeadDim, shape.KVHeads*shape.HeadDim
			for _, t := range []struct {
				into *unsafe.Pointer
				n    int
			}{{&x.Q, q}, {&x.KV, 2 * kv}, {&x.Out, q}, {&x.LSE, shape.Heads}, {&x.DOut, q}, {&x.Delta, shape.Heads}, {&x.DQ, q}, {&x.DKV, 2 * kv}} {
				p, err := cpu.Alloc(int64(4 * t.n * x.Tokens))
				if err != nil {
					b.Error(err)
					return
				}
				defer cpu.Free(p)
				*t.into = p
				for i := range floats(p, t.n*x.Tokens) {
					floats(p, t.n*x.Tokens)[i] = float32(i%17) / 17
				}
			}
			comm := ring.Comm{Transport: end, Timeout: time.Minute}
			e, err := ring.Bind(job, comm, cpu, shape, &x, true)
			if err != nil {
				b.Error(err)
				return
			}
			defer e.Close()
			for i := range n {
				for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
					if err := comm.Barrier(context.Background()); err != nil {
						b.Error(err)
						return
					}
					s, err := e.Run(context.Background(), p)
					if err != nil {
						b.Error(err)
						return
					}
					if i == n-1 {
						lock.Lock()
						mean[p].Kernel += s.Kernel / time.Duration(job.Ranks())
						mean[p].Exposed += s.Exposed / time.Duration(job.Ranks())
						lock.Unlock()
					}
				}
			}
		})
	}
	all.Wait()
	return mean
}
