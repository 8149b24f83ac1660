package ring

import (
	"context"
	"fmt"
	"time"
)

// Subset is the communicator of the first n ranks of a world. Their numbers stay as they
// are, and all messages go from rank to rank, so that it is a view of the same transport:
// making it takes no message, and the other ranks take no part in what is done with it.
func (c Comm) Subset(n int) (Comm, error) {
	switch {
	case n < 1 || n > c.Size() || c.Rank() >= n:
		return c, fmt.Errorf("ring: rank %d: a subset of %d of %d ranks", c.Rank(), n, c.Size())
	case n < c.Size():
		c.Transport = subset{c.Transport, n}
	}
	return c, nil
}

type subset struct {
	Transport
	ranks int
}

var _ Pauser = subset{}

// Size is that of the subset.
func (s subset) Size() int { return s.ranks }

// Pause is that of the whole world's transport.
func (s subset) Pause(d time.Duration) { pauseOf(s.Transport, d) }

// restPause is how long a rank that rests sleeps between two looks for the message that
// ends it: so seldom that the ranks that share its CPU do not notice.
const restPause = 50 * time.Millisecond

// Rest lets the ranks from n on sleep until rank 0 has called it. Ranks 1 to n-1 return
// at once. There is no deadline: those that work have their own, and the end of one of
// them ends the job.
func (c Comm) Rest(ctx context.Context, n int) error {
	b := c.batch("rest")
	defer b.free()
	switch {
	case c.Rank() == 0:
		for peer := n; peer < c.Size(); peer++ {
			b.send(nil, peer, tagRest)
		}
		return b.wait(ctx)
	case c.Rank() < n:
		return nil
	}
	b.receive(0, 0, tagRest)
	for b.err == nil {
		done, err := c.Test(b.transfers[0].Request)
		switch {
		case err != nil:
			b.fail(err)
		case done:
			return nil
		case ctx.Err() != nil:
			b.fail(context.Cause(ctx))
		default:
			pauseOf(c.Transport, restPause)
		}
	}
	return b.err
}
