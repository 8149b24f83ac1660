package inproc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"ringattn/ring"
)

// onEach runs body for every rank and returns the errors by rank.
func onEach(timeout time.Duration, ends []*Endpoint, body func(c ring.Comm) error) []error {
	errs := make([]error, len(ends))
	var all sync.WaitGroup
	for i, e := range ends {
		all.Go(func() { errs[i] = body(ring.Comm{Transport: e, Timeout: timeout}) })
	}
	all.Wait()
	return errs
}

// message starts a send or receive of fresh memory.
func message(c ring.Comm, send bool, bytes int64, peer, tag int) (ring.Transfer, unsafe.Pointer, error) {
	p, err := c.Alloc(bytes)
	if err != nil {
		return ring.Transfer{}, nil, err
	}
	op, start := "receive", c.Irecv
	if send {
		op, start = "send", c.Isend
	}
	r, err := start(p, bytes, peer, tag)
	return ring.Transfer{Request: r, Op: op, Peer: peer, Tag: tag, Bytes: bytes}, p, err
}

// TestSendFirstHangs: a ring in which everybody waits for its send before it
// posts the receive never ends under MPI's rendezvous, nor here, at any size.
func TestSendFirstHangs(t *testing.T) {
	for i, err := range onEach(50*time.Millisecond, New(3), func(c ring.Comm) error {
		send, _, err := message(c, true, 1, (c.Rank()+1)%3, ring.FirstTag)
		if err != nil {
			return err
		}
		return c.WaitAll(context.Background(), []ring.Transfer{send})
	}) {
		var e *ring.TimeoutError
		if !errors.As(err, &e) || !slices.Equal(e.Peers, []int{(i + 1) % 3}) || e.Op != "send" {
			t.Errorf("rank %d: got error %v", i, err)
		}
	}
}

// TestFailedCopy: both ends get the error of a copy, and the message is over.
func TestFailedCopy(t *testing.T) {
	broken := errors.New("the device is gone")
	ends := New(2, Copy(func(_, _ unsafe.Pointer, _ int64) error { return broken }))
	for rank, err := range onEach(time.Second, ends, func(c ring.Comm) error {
		x, _, err := message(c, c.Rank() == 0, 8, 1-c.Rank(), ring.FirstTag)
		if err != nil {
			return err
		}
		return c.WaitAll(context.Background(), []ring.Transfer{x})
	}) {
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "8 bytes from rank 0") {
			t.Errorf("rank %d: got error %v", rank, err)
		}
	}
}

// TestMismatch: both ends are told, with both sizes.
func TestMismatch(t *testing.T) {
	errs := onEach(time.Second, New(2), func(c ring.Comm) error {
		x, _, err := message(c, c.Rank() == 0, 100-int64(c.Rank())*40, 1-c.Rank(), 9)
		if err != nil {
			return err
		}
		return c.WaitAll(context.Background(), []ring.Transfer{x})
	})
	for i, want := range []string{
		"inproc: rank 0: send to rank 1, tag 9: sent 100 bytes, the receiver wanted 60",
		"inproc: rank 1: receive from rank 0, tag 9: got 100 bytes, wanted 60",
	} {
		if errs[i] == nil || !strings.Contains(errs[i].Error(), want) {
			t.Errorf("rank %d: got error %v, want %q", i, errs[i], want)
		}
	}
}

// TestDrop: the loss of one message is seen at both of its ends and nowhere else.
func TestDrop(t *testing.T) {
	lost := func(src, dst, tag int, bytes int64) bool { return src == 1 && tag == ring.FirstTag && bytes == 10 }
	errs := onEach(100*time.Millisecond, New(3, Drop(lost)), func(c ring.Comm) error {
		in, _, err := message(c, false, 10, (c.Rank()+2)%3, ring.FirstTag)
		if err != nil {
			return err
		}
		out, _, err := message(c, true, 10, (c.Rank()+1)%3, ring.FirstTag)
		if err != nil {
			return err
		}
		return c.WaitAll(context.Background(), []ring.Transfer{in, out})
	})
	for i, want := range []struct {
		op    string
		peers []int
	}{{}, {"send", []int{2}}, {"receive", []int{1}}} {
		var e *ring.TimeoutError
		if want.op == "" && errs[i] == nil {
			continue
		}
		if !errors.As(errs[i], &e) || e.Op != want.op || !slices.Equal(e.Peers, want.peers) {
			t.Errorf("rank %d: got error %v, want a timeout of %s with %v", i, errs[i], want.op, want.peers)
		}
	}
}

// TestOrder: whatever is late or shuffled, messages of one pair and tag complete
// in the order in which they were sent, and those of different tags need not.
func TestOrder(t *testing.T) {
	const n = 50
	var shuffled int
	opts := []Option{Reorder(3), Delay(func(_, _, tag int, _ int64) time.Duration { return time.Duration(tag%3) * time.Millisecond })}
	errs := onEach(10*time.Second, New(2, opts...), func(c ring.Comm) error {
		var xs []ring.Transfer
		for i := range n {
			x, _, err := message(c, c.Rank() == 0, 1, 1-c.Rank(), ring.FirstTag+i%5)
			if err != nil {
				return err
			}
			xs = append(xs, x)
		}
		if c.Rank() == 0 {
			return c.WaitAll(context.Background(), xs)
		}
		last := -1
		for left := n; left > 0; {
			for i := range xs {
				if xs[i].Request == 0 {
					continue
				}
				done, err := c.Test(xs[i].Request)
				if err != nil {
					return err
				}
				if !done {
					continue
				}
				if i >= 5 && xs[i-5].Request != 0 { // it may have become done since it was looked at
					if done, err := c.Test(xs[i-5].Request); err != nil || !done {
						return errors.New("a message overtook another of its pair and tag")
					}
					xs[i-5].Request = 0
					left--
				}
				if i < last {
					shuffled++
				}
				xs[i].Request, last = 0, i
				left--
			}
			time.Sleep(50 * time.Microsecond)
		}
		return nil
	})
	for i, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
	if shuffled == 0 {
		t.Error("all messages came in the order in which they were sent")
	}
}

func TestDelay(t *testing.T) {
	const late = 30 * time.Millisecond
	hold := func(src, _, _ int, _ int64) time.Duration {
		if src == 0 {
			return late
		}
		return 0
	}
	start := time.Now()
	took := make([]time.Duration, 2)
	for i, err := range onEach(10*time.Second, New(2, Delay(hold)), func(c ring.Comm) error {
		x, _, err := message(c, c.Rank() == 0, 1000, 1-c.Rank(), ring.FirstTag)
		if err != nil {
			return err
		}
		err = c.WaitAll(context.Background(), []ring.Transfer{x})
		took[c.Rank()] = time.Since(start)
		return err
	}) {
		if err != nil || took[i] < late {
			t.Errorf("rank %d: %v after %v, want %v at least", i, err, took[i], late)
		}
	}
}

// TestLink: a rank's messages go one after another, each from when its receive is
// there as well.
func TestLink(t *testing.T) {
	const bytes, speed = 1000, 1e5 // 10 ms a message
	start := time.Now()
	took := make([]time.Duration, 2)
	for i, err := range onEach(10*time.Second, New(2, Link(speed)), func(c ring.Comm) error {
		if c.Rank() == 1 {
			time.Sleep(10 * time.Millisecond)
		}
		var xs []ring.Transfer
		for range 2 {
			x, _, err := message(c, c.Rank() == 0, bytes, 1-c.Rank(), ring.FirstTag)
			if err != nil {
				return err
			}
			xs = append(xs, x)
		}
		err := c.WaitAll(context.Background(), xs)
		took[c.Rank()] = time.Since(start)
		return err
	}) {
		if least := 30 * time.Millisecond; err != nil || took[i] < least {
			t.Errorf("rank %d: %v after %v, want %v at least", i, err, took[i], least)
		}
	}
}

func TestNewPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a world of 0 ranks is no panic")
		}
	}()
	New(0)
}
