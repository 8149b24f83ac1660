package ring_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/segments"
)

// How much of the exchange hides behind kernels, on links that take a given part of
// the kernel time: the busiest rank's bytes, in or out, of the busiest rank's kernels
// without a link, which are measured anew before each run. Medians of
//
//   - %exposed: the time that ranks wait with nothing to compute, as a part of that of
//     their kernels, means over the ranks. The causal mask over contiguous shards gives
//     them work from 1 to 2 ranks - 1: most wait for the last one, on any link;
//   - %slower: how much longer the slowest rank takes than without a link.
//
// Ranks that share cores wait less, and compute longer, than those that do not.
func BenchmarkOverlap(b *testing.B) {
	const tokens = 4 * 1024
	doc := []segments.Row{segments.SingleDocument(tokens)}
	for _, ranks := range []int{2, 4} {
		for _, c := range []struct {
			name string
			job  *ring.Job
		}{
			{"full", mustJob(b, segments.Contiguous(tokens, ranks), segments.Mask{Rows: doc})},
			{"zigzag", mustJob(b, segments.Zigzag(tokens, ranks), segments.Mask{Causal: true, Rows: doc})},
			{"contiguous", mustJob(b, segments.Contiguous(tokens, ranks), segments.Mask{Causal: true, Rows: doc})},
		} {
			for _, pass := range []ring.Pass{ring.Forward, ring.Backward} {
				for _, part := range []float64{0.4, 0.8} {
					b.Run(fmt.Sprintf("ranks=%d/%s/%v/link=%.0f%%", ranks, c.name, pass, 100*part), func(b *testing.B) {
						overlap(b, c.job, pass, part)
					})
				}
			}
		}
	}
}

func overlap(b *testing.B, job *ring.Job, pass ring.Pass, part float64) {
	shape := ring.Shape{DType: ring.F32, Heads: 2, KVHeads: 2, HeadDim: 64, Scale: 0.125}
	bytes := busiest(job.Plans(pass), shape)
	var exposed, slower []float64
	for b.Loop() {
		alone, free := overlapRun(b, job, shape, pass)
		var kernel time.Duration
		for _, s := range alone {
			kernel = max(kernel, s.Kernel)
		}
		stats, wall := overlapRun(b, job, shape, pass, inproc.Link(bytes/(part*kernel.Seconds())))
		var waited, computed time.Duration
		for _, s := range stats {
			waited, computed = waited+s.Exposed, computed+s.Kernel
		}
		exposed = append(exposed, 100*waited.Seconds()/computed.Seconds())
		slower = append(slower, 100*(wall.Seconds()/free.Seconds()-1))
	}
	for unit, values := range map[string][]float64{"%exposed": exposed, "%slower": slower} {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], unit)
	}
}

// busiest is the bytes of the rank that sends, or receives, most.
func busiest(plans [][]ring.Step, shape ring.Shape) float64 {
	var most int64
	for _, steps := range plans {
		var in, out int64
		for _, s := range steps {
			switch s.Op {
			case ring.Recv:
				in += s.Bytes(shape)
			case ring.Send:
				out += s.Bytes(shape)
			}
		}
		most = max(most, in, out)
	}
	return float64(most)
}

// overlapRun runs a pass of the job, a backward one after its forward, and gives the
// figures of the ranks and the time of the slowest.
func overlapRun(b *testing.B, job *ring.Job, shape ring.Shape, pass ring.Pass, options ...inproc.Option) ([]ring.Stats, time.Duration) {
	stats := make([]ring.Stats, job.Ranks())
	var all sync.WaitGroup
	for rank, end := range inproc.New(job.Ranks(), options...) {
		all.Go(func() {
			cpu, err := kernels.CPU(1, "")
			if err != nil {
				b.Error(err)
				return
			}
			defer cpu.Close()
			comm := ring.Comm{Transport: end, Timeout: time.Minute}
			if stats[rank], err = overlapRank(job, comm, comm, cpu, shape, pass); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	var wall time.Duration
	for _, s := range stats {
		wall = max(wall, s.Wall)
	}
	return stats, wall
}

// overlapRank is one rank's part of a run; the ranks meet before each pass.
func overlapRank(job *ring.Job, comm, meet ring.Comm, cpu ring.Backend, shape ring.Shape, pass ring.Pass) (s ring.Stats, err error) {
	x := ring.Tensors{Tokens: job.Batch.Order(comm.Rank()).Tokens}
	q, kv := shape.Heads*shape.HeadDim, shape.KVHeads*shape.HeadDim
	for _, t := range []struct {
		into *unsafe.Pointer
		n    int
	}{{&x.Q, q}, {&x.KV, 2 * kv}, {&x.Out, q}, {&x.LSE, shape.Heads}, {&x.DOut, q}, {&x.Delta, shape.Heads}, {&x.DQ, q}, {&x.DKV, 2 * kv}} {
		p, err := cpu.Alloc(int64(4 * t.n * x.Tokens))
		if err != nil {
			return s, err
		}
		defer cpu.Free(p)
		*t.into = p
		for i := range floats(p, t.n*x.Tokens) {
			floats(p, t.n*x.Tokens)[i] = float32(i%17) / 17
		}
	}
	e, err := ring.Bind(job, comm, cpu, shape, &x, true)
	if err != nil {
		return s, err
	}
	defer e.Close()
	for p := ring.Forward; p <= pass; p++ {
		if err := meet.Barrier(context.Background()); err != nil {
			return s, err
		}
		if s, err = e.Run(context.Background(), p); err != nil {
			return s, err
		}
	}
	return s, nil
}
