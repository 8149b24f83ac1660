package ring

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"
)

// ClockPings is how many round trips an estimate of Clocks takes of each rank.
const ClockPings = 32

// ClockOffset is how far a rank's clock is ahead of rank 0's, at a time of rank 0's clock,
// and by how much that may be wrong.
type ClockOffset struct {
	At, Offset, Bound time.Duration
}

// Clocks estimates on rank 0 how far every rank's clock is ahead of its own, one rank after
// another; other ranks get nil. now reads the rank's clock.
//
// Rank 0 sends at t1 and has the answer at t3; the other rank answers with its time t2. The
// answer was read at some time between t1 and t3, so that t2 - (t1+t3)/2 is wrong by no more
// than (t3-t1)/2, however uneven the two ways. Of ClockPings round trips the shortest counts.
func (c Comm) Clocks(ctx context.Context, now func() time.Duration) ([]ClockOffset, error) {
	rank, size := c.Rank(), c.Size()
	memory, err := c.Alloc(16)
	if err != nil {
		return nil, fmt.Errorf("ring: rank %d: clocks: %w", rank, err)
	}
	ping := func(peer int, receive, send bool) error {
		var transfers []Transfer
		if receive {
			r, err := c.Irecv(memory, 8, peer, tagClock)
			if err != nil {
				return err
			}
			transfers = append(transfers, Transfer{r, "clocks: receive", peer, tagClock, 8})
		}
		if send {
			r, err := c.Isend(unsafe.Add(memory, 8), 8, peer, tagClock)
			if err != nil {
				return err
			}
			transfers = append(transfers, Transfer{r, "clocks: send", peer, tagClock, 8})
		}
		return c.WaitAll(ctx, transfers)
	}
	received := unsafe.Slice((*byte)(memory), 8)
	sent := unsafe.Slice((*byte)(unsafe.Add(memory, 8)), 8)
	if rank > 0 {
		for range ClockPings {
			if err := ping(0, true, false); err != nil {
				return nil, err // the memory is left alone: a transfer may still write to it
			}
			binary.LittleEndian.PutUint64(sent, uint64(now()))
			if err := ping(0, false, true); err != nil {
				return nil, err
			}
		}
		c.Free(memory)
		return nil, nil
	}
	offsets := make([]ClockOffset, size)
	offsets[0].At = now()
	for peer := 1; peer < size; peer++ {
		for i := range ClockPings {
			t1 := now()
			if err := ping(peer, true, true); err != nil {
				return nil, err
			}
			t3 := now()
			t2 := time.Duration(binary.LittleEndian.Uint64(received))
			// Half a round trip, rounded up, holds the rounding of the middle too.
			if bound := (t3 - t1 + 1) / 2; i == 0 || bound < offsets[peer].Bound {
				middle := t1 + (t3-t1)/2
				offsets[peer] = ClockOffset{At: middle, Offset: t2 - middle, Bound: bound}
			}
		}
	}
	c.Free(memory)
	return offsets, nil
}
