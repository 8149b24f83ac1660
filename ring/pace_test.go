package ring_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/ring/devicetest"
	"ringattn/ring/late"
	"ringattn/segments"
)

// paced notes how a rank pauses. A poll takes 1 us, and to yield takes longer by slice.
// With the clock of synctest, which only sleeps move, nothing else takes any time.
type paced struct {
	ring.Transport
	slice time.Duration

	yields int
	sleeps []time.Duration
}

func (p *paced) Pause(d time.Duration) {
	if d == 0 {
		p.yields++
		time.Sleep(p.slice)
		return
	}
	p.sleeps = append(p.sleeps, d)
	time.Sleep(d)
}

func (p *paced) Test(r ring.Request) (bool, error) {
	time.Sleep(time.Microsecond)
	return p.Transport.Test(r)
}

// asked is a Backend whose Query takes 1 us, askedDevice a Device of one.
type asked struct{ ring.Backend }

func (a asked) Query(e ring.Event) (bool, error) {
	time.Sleep(time.Microsecond)
	return a.Backend.Query(e)
}

type askedDevice struct {
	asked
	ring.Copier
}

// pacedRun runs a forward pass of ranks that compute on a device, or on the CPU, with
// messages and kernels that are late.
func pacedRun(t *testing.T, ranks int, device bool, message, kernel, slice time.Duration) []*paced {
	job := mustJob(t, segments.Contiguous(24, ranks), segments.Mask{Rows: []segments.Row{segments.SingleDocument(24)}})
	ends := make([]*paced, ranks)
	errs := make([]error, ranks)
	synctest.Test(t, func(*testing.T) {
		var all sync.WaitGroup
		for rank, end := range inproc.New(ranks, inproc.Delay(func(int, int, int, int64) time.Duration { return message })) {
			ends[rank] = &paced{Transport: end, slice: slice}
			all.Go(func() {
				b := late.New(kernels.Reference(), kernel)
				var asks ring.Backend = asked{b}
				if device {
					asks = askedDevice{asked{b}, devicetest.New(kernels.Reference(), devicetest.Mapped())}
				}
				g, err := newRigOn(job, ring.Comm{Transport: ends[rank], Timeout: time.Minute}, asks)
				if err == nil {
					_, err = g.exec.Run(context.Background(), ring.Forward)
				}
				errs[rank] = err
			})
		}
		all.Wait()
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ends
}

// A rank of a device does not sleep while a message is under way, one of the CPU does.
func TestPaceOfMessages(t *testing.T) {
	const message, kernel = 50 * time.Millisecond, time.Millisecond
	for rank, p := range pacedRun(t, 3, true, message, kernel, 0) {
		if len(p.sleeps) > 0 || p.yields < 1000 {
			t.Errorf("rank %d of a device: %d polls, %d sleeps %v", rank, p.yields, len(p.sleeps), p.sleeps[:min(4, len(p.sleeps))])
		}
	}
	for rank, p := range pacedRun(t, 3, false, message, kernel, 0) {
		if p.yields > 0 || len(p.sleeps) < 100 || slices.Max(p.sleeps) != 400*time.Microsecond {
			t.Errorf("rank %d of a CPU: %d yields, %d sleeps", rank, p.yields, len(p.sleeps))
		}
	}
}

// Without a message it polls for 10 ms of a kernel, and sleeps shortly beyond.
func TestPaceOfKernels(t *testing.T) {
	p := pacedRun(t, 1, true, 0, 9*time.Millisecond, 0)[0]
	if len(p.sleeps) > 0 || p.yields < 1000 {
		t.Errorf("a kernel of 9 ms: %d yields, %d sleeps", p.yields, len(p.sleeps))
	}
	p = pacedRun(t, 1, true, 0, 50*time.Millisecond, 0)[0]
	if len(p.sleeps) < 100 || slices.Max(p.sleeps) > 50*time.Microsecond || p.yields < 1000 {
		t.Errorf("a kernel of 50 ms: %d yields, %d sleeps", p.yields, len(p.sleeps))
	}
}

// Where somebody computes on its CPU it sleeps as well, and tries again after 100 ms.
func TestPaceOfSharedCPU(t *testing.T) {
	for rank, p := range pacedRun(t, 2, true, 350*time.Millisecond, 0, 2*time.Millisecond) {
		if p.yields < 2 || p.yields > 10 || len(p.sleeps) < 1000 {
			t.Errorf("rank %d: %d yields, %d sleeps", rank, p.yields, len(p.sleeps))
		}
	}
}

// Collectives go by the Pace of the Comm.
func TestPaceOfCollectives(t *testing.T) {
	for _, pace := range []ring.Pace{ring.Sleeping, ring.Polling} {
		synctest.Test(t, func(t *testing.T) {
			var all sync.WaitGroup
			for rank, end := range inproc.New(2) {
				all.Go(func() {
					p := &paced{Transport: end}
					time.Sleep(time.Duration(rank) * 50 * time.Millisecond)
					if err := (ring.Comm{Transport: p, Timeout: time.Minute, Pace: pace}).Barrier(context.Background()); err != nil {
						t.Error(err)
					}
					if rank == 0 && (pace == ring.Polling) != (len(p.sleeps) == 0) {
						t.Errorf("pace %d: %d yields, %d sleeps", pace, p.yields, len(p.sleeps))
					}
				})
			}
			all.Wait()
		})
	}
}
