package staged_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/ring/devicetest"
	"ringattn/ring/staged"
	"ringattn/ring/transporttest"
)

// same is device memory that the host reaches at the same address: the suite fills
// messages itself.
type same struct{ ring.Backend }

func (same) View(p unsafe.Pointer) unsafe.Pointer { return p }

// lateCopies copies late, and breaks what it has not copied yet.
func lateCopies() ring.Device {
	b := kernels.Reference()
	return devicetest.New(b, same{b})
}

func TestTransport(t *testing.T) {
	late := inproc.Delay(func(src, dst, tag int, bytes int64) time.Duration {
		return time.Duration((src*31+dst*17+tag*7+int(bytes))%5) * 200 * time.Microsecond
	})
	const small = 1 << 14 // some messages of the suite are a multiple of it, most are not
	copied := func(int) ring.Copier { return lateCopies() }
	for _, variant := range []struct {
		name       string
		copier     func(rank int) ring.Copier
		pieceBytes int64
		opts       []inproc.Option
	}{
		{"device memory", copied, staged.PieceBytes, nil},
		{"device memory in small pieces, late and out of order", copied, small, []inproc.Option{late, inproc.Reorder(1)}},
		{"host memory in small pieces", func(int) ring.Copier { return nil }, small, []inproc.Option{inproc.PieceBytes(300)}},
		{"every other rank has device memory", func(rank int) ring.Copier {
			if rank%2 == 0 {
				return nil
			}
			return lateCopies()
		}, small, []inproc.Option{inproc.Reorder(2)}},
	} {
		for _, n := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s/%d ranks", variant.name, n), func(t *testing.T) {
				transporttest.Run(t, func(*testing.T) transporttest.World {
					var w transporttest.World
					for rank, end := range inproc.New(n, variant.opts...) {
						w.Endpoints = append(w.Endpoints, staged.New(end, variant.copier(rank), variant.pieceBytes))
					}
					return w
				})
			})
		}
	}
}

// counted counts what its Copier does.
type counted struct {
	ring.Copier
	memory         map[unsafe.Pointer]int64
	allocs, copies int
	underway, most int
}

func (c *counted) HostAlloc(bytes int64) (unsafe.Pointer, error) {
	p, err := c.Copier.HostAlloc(bytes)
	c.memory[p] = bytes
	c.allocs++
	return p, err
}

func (c *counted) HostFree(p unsafe.Pointer) {
	delete(c.memory, p)
	c.Copier.HostFree(p)
}

func (c *counted) CopyOut(host, src unsafe.Pointer, bytes int64) (ring.Copy, error) {
	c.copies++
	c.underway++
	c.most = max(c.most, c.underway)
	return c.Copier.CopyOut(host, src, bytes)
}

func (c *counted) Copied(x ring.Copy) (bool, error) {
	done, err := c.Copier.Copied(x)
	if done {
		c.underway--
	}
	return done, err
}

// A long message is copied piece by piece, several at a time, through host memory of a
// few pieces, which the next message uses again and Close gives back.
func TestPiecesShareHostMemory(t *testing.T) {
	const pieceBytes, pieces = 1 << 10, 50
	ends := inproc.New(2)
	c := &counted{Copier: lateCopies(), memory: map[unsafe.Pointer]int64{}}
	sender := staged.New(ends[0], c, pieceBytes)
	receiver := staged.New(ends[1], nil, pieceBytes)
	for round := range 3 {
		var all sync.WaitGroup
		for i, end := range []*staged.Transport{sender, receiver} {
			all.Go(func() {
				if err := message(ring.Comm{Transport: end, Timeout: time.Minute}, i == 0, pieces*pieceBytes, byte(round)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	var bytes int64
	for _, n := range c.memory {
		bytes += n
	}
	switch {
	case c.copies != 3*pieces:
		t.Errorf("%d copies of 3 messages of %d pieces", c.copies, pieces)
	case c.most < 2:
		t.Error("pieces are copied one at a time")
	case c.allocs != 1 || bytes > 4*pieceBytes:
		t.Errorf("%d pieces of host memory were allocated, %d bytes stayed; want 1 of %d at most", c.allocs, bytes, 4*pieceBytes)
	}
	sender.Close()
	if len(c.memory) > 0 {
		t.Error("Close leaves host memory behind")
	}
}

// message sends or receives one message of known content.
func message(c ring.Comm, send bool, bytes int, seed byte) error {
	want := make([]byte, bytes)
	for i := range want {
		want[i] = byte(i>>8) ^ byte(i) + seed
	}
	p, err := c.Alloc(int64(bytes))
	if err != nil {
		return err
	}
	defer c.Free(p)
	got := unsafe.Slice((*byte)(p), bytes)
	start := c.Irecv
	if send {
		copy(got, want)
		start = c.Isend
	}
	r, err := start(p, int64(bytes), 1-c.Rank(), ring.FirstTag)
	if err == nil {
		err = c.WaitAll(context.Background(), []ring.Transfer{{Request: r, Peer: 1 - c.Rank(), Tag: ring.FirstTag}})
	}
	if err == nil && !slices.Equal(got, want) {
		err = errors.New("wrong content")
	}
	return err
}

// failing fails to copy after a while.
type failing struct {
	ring.Copier
	left int
}

var errCopy = errors.New("the copy engine is on fire")

func (f *failing) CopyOut(host, src unsafe.Pointer, bytes int64) (ring.Copy, error) {
	if f.left--; f.left < 0 {
		return 0, errCopy
	}
	return f.Copier.CopyOut(host, src, bytes)
}

// A copy that fails is an error of the message, which names it.
func TestFailedCopy(t *testing.T) {
	ends := inproc.New(2)
	sender := staged.New(ends[0], &failing{lateCopies(), 2}, 100)
	err := message(ring.Comm{Transport: sender, Timeout: time.Minute}, true, 1000, 0)
	if !errors.Is(err, errCopy) || !strings.Contains(err.Error(), "send to rank 1, tag 8: sent 1000 bytes") {
		t.Errorf("the error is %v", err)
	}
	sender.Close() // does not free what pieces may still be sent from
}
