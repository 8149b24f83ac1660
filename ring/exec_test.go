package ring_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/segments"
)

var testShape = ring.Shape{DType: ring.F32, Heads: 2, KVHeads: 1, HeadDim: 3, Scale: 0.7}

// result holds the outputs of a job, by tensor, in token order.
type result map[string][]float32

// values are the inputs of one token, the same for any layout.
func values(row, pos, n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, uint64(row)<<32|uint64(pos)))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}

// rig is one rank with random tensors, bound to a plan.
type rig struct {
	exec    *ring.Exec
	backend ring.Backend
	x       ring.Tensors
}

func floats(p unsafe.Pointer, n int) []float32 { return unsafe.Slice((*float32)(p), n) }

func floatBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// newRig binds the job's own plans, or those that are given.
func newRig(job *ring.Job, c ring.Comm, plans ...[]ring.Step) (*rig, error) {
	return newRigOn(job, c, kernels.Reference(), plans...)
}

func newRigOn(job *ring.Job, c ring.Comm, b ring.Backend, plans ...[]ring.Step) (*rig, error) {
	s, order := testShape, job.Batch.Order(c.Rank())
	g := &rig{backend: b}
	g.x.Tokens = order.Tokens
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	for _, t := range []struct {
		into *unsafe.Pointer
		n    int
		seed uint64 // of an input
	}{
		{&g.x.Q, q, 1},
		{&g.x.KV, 2 * kv, 2},
		{&g.x.Out, q, 0},
		{&g.x.LSE, s.Heads, 0},
		{&g.x.DOut, q, 3},
		{&g.x.Delta, s.Heads, 0},
		{&g.x.DQ, q, 0},
		{&g.x.DKV, 2 * kv, 0},
	} {
		// Whatever is not written shows.
		all := slices.Repeat([]float32{float32(math.NaN())}, t.n*order.Tokens)
		for _, p := range order.Pieces {
			for i := range p.Pos.Len() {
				if t.seed > 0 {
					copy(all[(p.At+i)*t.n:], values(p.Row, p.Pos.Start+i, t.n, t.seed))
				}
			}
		}
		p, err := g.backend.Alloc(int64(4 * len(all)))
		if err == nil {
			err = g.backend.Write(p, floatBytes(all))
		}
		if err != nil {
			return nil, err
		}
		*t.into = p
	}
	if plans == nil {
		plans = [][]ring.Step{job.PlanOf(c.Rank(), ring.Forward), job.PlanOf(c.Rank(), ring.Backward)}
	}
	var err error
	g.exec, err = ring.BindPlans(job, c, g.backend, s, &g.x, plans)
	return g, err
}

// put copies the rank's outputs into token order.
func (g *rig) put(job *ring.Job, rank int, out result) error {
	order, tokens := job.Batch.Order(rank), job.Batch.Layout.Tokens
	for name, t := range map[string]struct {
		p unsafe.Pointer
		n int
	}{"out": {g.x.Out, 6}, "lse": {g.x.LSE, 2}, "dq": {g.x.DQ, 6}, "dkv": {g.x.DKV, 6}} {
		all := make([]float32, t.n*order.Tokens)
		if err := g.backend.Read(floatBytes(all), t.p); err != nil {
			return err
		}
		for _, p := range order.Pieces {
			for i := range p.Pos.Len() {
				copy(out[name][(p.Row*tokens+p.Pos.Start+i)*t.n:], all[(p.At+i)*t.n:(p.At+i+1)*t.n])
			}
		}
	}
	return nil
}

// runJob runs both passes on all ranks and gives the results and each rank's
// error.
func runJob(job *ring.Job, timeout time.Duration, options ...inproc.Option) (result, []error) {
	return runPlans(job, nil, timeout, options...)
}

// runPlans is runJob with plans by rank and pass in place of the job's own.
func runPlans(job *ring.Job, plans map[int][][]ring.Step, timeout time.Duration, options ...inproc.Option) (result, []error) {
	plain := func(_ int, end ring.Transport) (ring.Transport, ring.Backend) { return end, kernels.Reference() }
	return runOn(job, plain, plans, timeout, options...)
}

// runOn is runPlans with what on makes of the end of each rank.
func runOn(job *ring.Job, on func(rank int, end ring.Transport) (ring.Transport, ring.Backend),
	plans map[int][][]ring.Step, timeout time.Duration, options ...inproc.Option,
) (result, []error) {
	n := job.Batch.Layout.Tokens * len(job.Batch.Mask.Rows)
	out := result{"out": make([]float32, 6*n), "lse": make([]float32, 2*n), "dq": make([]float32, 6*n), "dkv": make([]float32, 6*n)}
	errs := make([]error, job.Ranks())
	var all sync.WaitGroup
	var lock sync.Mutex
	for rank, end := range inproc.New(job.Ranks(), options...) {
		all.Go(func() {
			t, b := on(rank, end)
			g, err := newRigOn(job, ring.Comm{Transport: t, Timeout: timeout}, b, plans[rank]...)
			for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
				if err == nil {
					_, err = g.exec.Run(context.Background(), p)
				}
			}
			if err == nil {
				lock.Lock()
				err = g.put(job, rank, out)
				lock.Unlock()
				g.exec.Close()
			}
			errs[rank] = err
		})
	}
	all.Wait()
	return out, errs
}

// maxDifference is the largest difference of two results over the norm of
// their rows' typical entry.
func maxDifference(a, b result) (string, float64) {
	worst, where := 0.0, ""
	for name := range a {
		for i := range a[name] {
			d := math.Abs(float64(a[name][i]) - float64(b[name][i]))
			if !(d <= worst) {
				worst, where = d, fmt.Sprintf("%s[%d]: %v and %v", name, i, a[name][i], b[name][i])
			}
		}
	}
	return where, worst
}

// rounding bounds the difference between two orders of float32 sums of a few
// dozen terms of size one.
const rounding = 2e-5

// Any number of ranks, however the tokens are cut, gives the result of one.
func TestRanksGiveTheResultOfOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := drawJob(t, 30, 6)
		b := job.Batch
		one := mustJob(t, segments.Contiguous(b.Layout.Tokens, 1), b.Mask)
		want, errs := runJob(one, time.Minute)
		got, more := runJob(job, time.Minute)
		if err := errors.Join(append(errs, more...)...); err != nil {
			t.Fatal(err)
		}
		if job.Wire == ring.BF16 {
			if part := wireError(want, got); part > roundings(job) {
				t.Fatalf("gradients of %d ranks that travel in bf16 are %g off", job.Ranks(), part)
			}
			delete(want, "dkv")
		}
		if where, d := maxDifference(want, got); d > rounding || math.IsNaN(d) {
			t.Fatalf("one rank and %d ranks differ by %g at %s", job.Ranks(), d, where)
		}
	})
}

// Late and unordered messages change no bit.
func TestDelaysChangeNothing(t *testing.T) {
	mask := segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(40), segments.NewRow(40, slices.Repeat([]int64{1, 2, 2, 0, 3}, 8), nil, nil)}}
	for _, schedule := range ring.Schedules {
		job := mustSchedule(t, segments.Zigzag(40, 5), mask, schedule)
		want, errs := runJob(job, time.Minute)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(5) {
			delay := inproc.Delay(func(src, dst, tag int, _ int64) time.Duration {
				return time.Duration(rand.New(rand.NewPCG(seed, uint64(src<<20|dst<<10|tag))).IntN(3000)) * time.Microsecond
			})
			got, errs := runJob(job, time.Minute, delay, inproc.Reorder(seed), inproc.PieceBytes(40))
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if !same(want, got) {
				where, d := maxDifference(want, got)
				t.Fatalf("%s, seed %d: results differ by %g at %s", schedule, seed, d, where)
			}
		}
	}
}

// A lost message is an error that names the rank, the step and the peer.
func TestLostMessagesEndInTime(t *testing.T) {
	for i := range 2 * len(ring.Schedules) {
		lost := ring.FirstTag + 3*(i%2) // keys of rank 0, gradients of rank 1
		job := mustSchedule(t, segments.Contiguous(12, 3), segments.Mask{Rows: []segments.Row{segments.SingleDocument(12)}}, ring.Schedules[i/2])
		start := time.Now()
		_, errs := runJob(job, 200*time.Millisecond, inproc.Drop(func(_, _, tag int, _ int64) bool { return tag == lost }))
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("it took %v", d)
		}
		err := errors.Join(errs...)
		if !errors.Is(err, ring.ErrTimeout) {
			t.Fatalf("the error is %v", err)
		}
		for _, word := range []string{"rank", "step", "no answer from rank", fmt.Sprintf("tag %d", lost)} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q is not in: %v", word, err)
			}
		}
	}
}

// A rank that never starts is named by those that wait for it.
func TestAStoppedRankIsNamed(t *testing.T) {
	job := mustJob(t, segments.Contiguous(9, 3), segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(9)}})
	ends := inproc.New(3)
	g, err := newRig(job, ring.Comm{Transport: ends[1], Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.exec.Run(context.Background(), ring.Forward)
	var timeout *ring.TimeoutError
	if !errors.As(err, &timeout) || timeout.Rank != 1 || !slices.Equal(timeout.Peers, []int{0}) {
		t.Fatalf("the error is %v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("stop it"))
	g, err = newRig(job, ring.Comm{Transport: ends[2]})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = g.exec.Run(ctx, ring.Forward); err == nil || !strings.Contains(err.Error(), "stop it") {
		t.Fatalf("the error of a cancelled run is %v", err)
	}
}

// A plan with two neighbouring steps exchanged either fails Check or gives the
// same bits, however late messages are; but the same to rounding where both add to the
// same sums.
func TestExchangedStepsFailOrChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := drawJob(t, 20, 5)
		pass := rapid.SampledFrom([]ring.Pass{ring.Forward, ring.Backward}).Draw(t, "pass")
		plans := job.Plans(pass)
		rank := rapid.IntRange(0, job.Ranks()-1).Draw(t, "rank")
		steps := slices.Clone(plans[rank])
		if len(steps) < 2 {
			return
		}
		i := rapid.IntRange(0, len(steps)-2).Draw(t, "step")
		steps[i], steps[i+1] = steps[i+1], steps[i]
		plans[rank] = steps
		if job.Check(pass, plans) != nil {
			return
		}
		want, errs := runJob(job, time.Minute)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		mine := [][]ring.Step{job.PlanOf(rank, ring.Forward), job.PlanOf(rank, ring.Backward)}
		mine[pass] = steps
		delay := inproc.Delay(func(src, dst, tag int, _ int64) time.Duration {
			return time.Duration(src*7+tag*3+dst) % 5 * time.Millisecond
		})
		got, errs := runPlans(job, map[int][][]ring.Step{rank: mine}, 5*time.Second, delay)
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%v and %v exchanged: %v", steps[i+1], steps[i], err)
		}
		alike := same
		if steps[i].Op == ring.Attend && steps[i+1].Op == ring.Attend || steps[i].Acc.Grad && steps[i].Acc == steps[i+1].Acc {
			alike = near
		}
		if !alike(want, got) {
			t.Fatalf("%v and %v exchanged: Check passes, and the result differs", steps[i+1], steps[i])
		}
	})
}

func TestRunAllocatesNothing(t *testing.T) {
	job := mustJob(t, segments.Contiguous(16, 1), segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(16)}})
	cpu, err := kernels.CPU(1, "")
	if err != nil {
		t.Skipf("only the CPU kernels allocate nothing: %v", err) // a build without cgo
	}
	defer cpu.Close()
	g, err := newRig(job, ring.Comm{Transport: inproc.New(1)[0], Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	g.exec, err = ring.Bind(job, ring.Comm{Transport: inproc.New(1)[0], Timeout: time.Minute}, cpu, testShape, &g.x, true)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() {
		for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
			if _, err := g.exec.Run(context.Background(), p); err != nil {
				t.Fatal(err)
			}
		}
	}); n > 0 {
		t.Errorf("Run allocates %v times", n)
	}
}

func TestBindRefusesWhatDoesNotFit(t *testing.T) {
	job := mustJob(t, segments.Contiguous(4, 2), segments.Mask{Rows: []segments.Row{segments.SingleDocument(4)}})
	c := ring.Comm{Transport: inproc.New(2)[0]}
	for name, f := range map[string]func() error{
		"world": func() error {
			_, err := ring.Bind(job, ring.Comm{Transport: inproc.New(3)[0]}, nil, testShape, &ring.Tensors{Tokens: 2}, false)
			return err
		},
		"heads": func() error {
			_, err := ring.Bind(job, c, nil, ring.Shape{Heads: 3, KVHeads: 2, HeadDim: 1}, &ring.Tensors{Tokens: 2}, false)
			return err
		},
		"tokens": func() error { _, err := ring.Bind(job, c, nil, testShape, &ring.Tensors{Tokens: 3}, false); return err },
	} {
		if f() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
