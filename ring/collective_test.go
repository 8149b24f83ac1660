package ring_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ringattn/inproc"
	"ringattn/ring"
)

// onEach runs body for every rank of a world and returns the errors by rank.
func onEach(timeout time.Duration, world []*inproc.Endpoint, body func(c ring.Comm) error) []error {
	errs := make([]error, len(world))
	var all sync.WaitGroup
	for i, e := range world {
		all.Go(func() { errs[i] = body(ring.Comm{Transport: e, Timeout: timeout}) })
	}
	all.Wait()
	return errs
}

// TestSilentRank has one rank that never takes part: those who need its messages
// name it, and nobody hangs.
func TestSilentRank(t *testing.T) {
	const silent, timeout = 2, 100 * time.Millisecond
	ctx := context.Background()
	for _, c := range []struct {
		name string
		op   func(c ring.Comm) error
		// who waits for the silent rank itself, and what it was doing
		waiter int
		what   string
	}{
		{"gather", func(c ring.Comm) error { _, err := c.Gather(ctx, 0, []byte("x")); return err }, 0, "gather: receive"},
		{"gather to all", func(c ring.Comm) error { _, err := c.AllGather(ctx, []byte("x")); return err }, 0, "gather: receive"},
		{"broadcast", func(c ring.Comm) error { _, err := c.Bcast(ctx, silent, nil); return err }, 3, "broadcast: receive"},
		{"barrier", func(c ring.Comm) error { return c.Barrier(ctx) }, 3, "barrier: receive"},
		{"sum", func(c ring.Comm) error { _, err := c.AllReduceSum(ctx, []float64{1}); return err }, 0, "gather: receive"},
	} {
		start := time.Now()
		errs := onEach(timeout, inproc.New(5), func(comm ring.Comm) error {
			if comm.Rank() == silent {
				return nil
			}
			return c.op(comm)
		})
		if took := time.Since(start); took > 10*timeout {
			t.Errorf("%s: took %v with a timeout of %v", c.name, took, timeout)
		}
		var e *ring.TimeoutError
		if !errors.As(errs[c.waiter], &e) || !errors.Is(e, ring.ErrTimeout) {
			t.Errorf("%s: rank %d: got error %v, want a TimeoutError", c.name, c.waiter, errs[c.waiter])
			continue
		}
		if e.Rank != c.waiter || !slices.Contains(e.Peers, silent) || e.Op != c.what || e.Waited < timeout {
			t.Errorf("%s: wrong details: %+v", c.name, *e)
		}
	}
}

func TestTimeoutErrorText(t *testing.T) {
	e := ring.TimeoutError{Rank: 3, Op: "receive", Peers: []int{2}, Tag: 9, Bytes: 4096, Waited: 10 * time.Second}
	if got, want := e.Error(), "ring: rank 3: receive: no answer from rank 2 in 10s (tag 9, 4096 bytes)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	e.Peers = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	if got, want := e.Error(), "ranks 1 2 3 4 5 6 7 8 and 2 more"; !strings.Contains(got, want) {
		t.Errorf("%q is not in %s", want, got)
	}
}

// TestFailedTransfer: the error of the transport comes back with rank and op.
func TestFailedTransfer(t *testing.T) {
	c := ring.Comm{Transport: inproc.New(1)[0]}
	err := c.WaitAll(context.Background(), []ring.Transfer{{Request: 77, Op: "hop 3: receive"}})
	if err == nil || !strings.Contains(err.Error(), "ring: rank 0: hop 3: receive: ") {
		t.Errorf("got error %v", err)
	}
	if err := c.WaitAll(context.Background(), nil); err != nil {
		t.Errorf("no transfers: %v", err)
	}
}

// TestBackoff: the first polls are quick, later ones sleep.
func TestBackoff(t *testing.T) {
	var b ring.Backoff
	c := ring.Comm{Transport: inproc.New(1)[0]}
	start, polls := time.Now(), 0
	for time.Since(start) < 50*time.Millisecond {
		b.Pause(c, false, true)
		polls++
	}
	if polls > 5000 {
		t.Errorf("%d polls in 50 ms", polls)
	}
}
