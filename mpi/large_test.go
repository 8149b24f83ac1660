//go:build mpi && cgo

package mpi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"ringattn/ring"
)

// F1(a) and the end of F3: messages of 64 MiB from each rank to the next, and one
// of more bytes than an int counts from rank 0 to rank 1.
func TestLargeMessages(t *testing.T) {
	if os.Getenv("RINGATTN_TEST_LARGE") == "" {
		t.Skip("takes 5 GB of memory; RINGATTN_TEST_LARGE=1 runs it, as .ci/run does")
	}
	const aroundTheRing, moreThanAnInt = 64 << 20, 2_147_487_744
	do(func() {
		c := ring.Comm{Transport: communicator, Timeout: time.Minute}
		rank, size := c.Rank(), c.Size()
		err := exchange(c, aroundTheRing, (rank-1+size)%size, (rank+1)%size)
		switch {
		case err != nil || size < 2:
		case rank == 0:
			err = exchange(c, moreThanAnInt, -1, 1)
		case rank == 1:
			err = exchange(c, moreThanAnInt, 0, -1)
		}
		if err = errors.Join(err, c.Barrier(context.Background())); err != nil {
			t.Error(err)
		}
	})
}

// exchange receives from one rank and sends to another (-1: none) so many bytes,
// words that count up from the sender's rank.
func exchange(c ring.Comm, bytes int64, from, to int) error {
	var transfers []ring.Transfer
	var in []uint64
	start := func(op string, post func(unsafe.Pointer, int64, int, int) (ring.Request, error), peer int, fill func([]uint64)) error {
		p, err := c.Alloc(bytes)
		if err != nil {
			return err
		}
		fill(unsafe.Slice((*uint64)(p), bytes/8))
		r, err := post(p, bytes, peer, ring.FirstTag)
		transfers = append(transfers, ring.Transfer{Request: r, Op: op, Peer: peer, Tag: ring.FirstTag, Bytes: bytes})
		return err
	}
	if from >= 0 {
		if err := start("receive", c.Irecv, from, func(w []uint64) { in = w }); err != nil {
			return err
		}
	}
	if to >= 0 {
		if err := start("send", c.Isend, to, func(w []uint64) {
			for i := range w {
				w[i] = uint64(c.Rank() + i)
			}
		}); err != nil {
			return err
		}
	}
	if err := c.WaitAll(context.Background(), transfers); err != nil {
		return err
	}
	for i, w := range in {
		if w != uint64(from+i) {
			return fmt.Errorf("%d bytes from rank %d: word %d is %d", bytes, from, i, w)
		}
	}
	return nil
}
