package ring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrTimeout is what a TimeoutError is, for errors.Is.
var ErrTimeout = errors.New("peer did not answer in time")

// TimeoutError says that one wait passed its deadline and who was missing.
type TimeoutError struct {
	Rank   int    // the rank that waited
	Op     string // what it was doing
	Peers  []int  // whose messages are missing, ascending
	Tag    int    // of the first transfer that is not done
	Bytes  int64  // of the first transfer that is not done
	Waited time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("ring: rank %d: %s: no answer from %s in %v (tag %d, %d bytes)",
		e.Rank, e.Op, rankList(e.Peers), e.Waited.Round(time.Millisecond), e.Tag, e.Bytes)
}

// Unwrap makes every TimeoutError an ErrTimeout.
func (e *TimeoutError) Unwrap() error { return ErrTimeout }

// Transfer is a started request together with what an error says about it.
type Transfer struct {
	Request Request // 0: done, or none
	Op      string  // for instance "send", "broadcast: receive"
	Peer    int
	Tag     int
	Bytes   int64
}

// WaitAll polls until all transfers are done, and sets the Request of each that
// is to 0. It allocates nothing unless it fails. It fails with the transport's
// error; with a TimeoutError when Timeout or a deadline of ctx passes; with the
// cause of ctx when that is cancelled. Memory of transfers that are not done
// must not be freed or reused after that.
func (c Comm) WaitAll(ctx context.Context, transfers []Transfer) error {
	pause := Backoff{Pace: c.Pace}
	start := time.Now()
	for {
		left, progress := 0, false
		for i := range transfers {
			x := &transfers[i]
			if x.Request == 0 {
				continue
			}
			done, err := c.Test(x.Request)
			switch {
			case err != nil:
				return fmt.Errorf("ring: rank %d: %s: %w", c.Rank(), x.Op, err)
			case done:
				x.Request, progress = 0, true
			default:
				left++
			}
		}
		if left == 0 {
			return nil
		}
		waited, err := time.Since(start), ctx.Err()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("ring: rank %d: %w, while waiting for %s",
				c.Rank(), context.Cause(ctx), rankList(missing(transfers)))
		}
		if err != nil || c.Timeout > 0 && waited >= c.Timeout {
			return c.timeout(transfers, waited)
		}
		if progress {
			pause.Restart()
		}
		pause.Pause(c.Transport, false, true)
	}
}

func (c Comm) timeout(transfers []Transfer, waited time.Duration) error {
	e := &TimeoutError{Rank: c.Rank(), Peers: missing(transfers), Waited: waited}
	for _, x := range transfers {
		if x.Request != 0 {
			e.Op, e.Tag, e.Bytes = x.Op, x.Tag, x.Bytes
			break
		}
	}
	return e
}

// missing lists the peers of the transfers that are not done.
func missing(transfers []Transfer) []int {
	var peers []int
	for _, x := range transfers {
		if x.Request != 0 {
			peers = append(peers, x.Peer)
		}
	}
	slices.Sort(peers)
	return slices.Compact(peers)
}

func rankList(peers []int) string {
	const shown = 8
	if len(peers) == 1 {
		return fmt.Sprintf("rank %d", peers[0])
	}
	text := "ranks " + strings.Trim(fmt.Sprint(peers[:min(len(peers), shown)]), "[]")
	if len(peers) > shown {
		text += fmt.Sprintf(" and %d more", len(peers)-shown)
	}
	return text
}
