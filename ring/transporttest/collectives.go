package transporttest

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"time"

	"ringattn/ring"
)

// part is what rank contributes: its length differs by rank, and may be 0.
func part(rank, round int) []byte {
	return bytes.Repeat([]byte{byte(rank + 1), byte(round)}, rank*(round+1)*37)
}

func broadcast(_ World, c ring.Comm) error {
	for root := range c.Size() {
		for _, length := range []int{0, 1, 1000, 100_000} {
			want := make([]byte, length)
			content(root+length, length, func(at int, p []byte) { copy(want[at:], p) })
			var data []byte
			if c.Rank() == root {
				data = want
			}
			got, err := c.Bcast(context.Background(), root, data)
			if err != nil {
				return fmt.Errorf("root %d, %d bytes: %w", root, length, err)
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("root %d, %d bytes: wrong content of %d bytes", root, length, len(got))
			}
		}
	}
	return nil
}

func gather(_ World, c ring.Comm) error {
	check := func(all [][]byte, round int) error {
		if len(all) != c.Size() {
			return fmt.Errorf("round %d: %d parts", round, len(all))
		}
		for peer := range all {
			if !bytes.Equal(all[peer], part(peer, round)) {
				return fmt.Errorf("round %d: wrong part of rank %d, %d bytes", round, peer, len(all[peer]))
			}
		}
		return nil
	}
	for root := range c.Size() {
		all, err := c.Gather(context.Background(), root, part(c.Rank(), root))
		switch {
		case err != nil:
			return fmt.Errorf("root %d: %w", root, err)
		case c.Rank() != root && all != nil:
			return fmt.Errorf("root %d: another rank got the parts", root)
		case c.Rank() == root:
			if err := check(all, root); err != nil {
				return err
			}
		}
		all, err = c.AllGather(context.Background(), part(c.Rank(), root+1))
		if err != nil {
			return err
		}
		if err := check(all, root+1); err != nil {
			return fmt.Errorf("to all: %w", err)
		}
	}
	return nil
}

// barrier holds each rank back in turn: by the clock of the host that all ranks
// of a test share, nobody may leave before the last has come.
func barrier(_ World, c ring.Comm) error {
	ctx := context.Background()
	for slow := range c.Size() {
		if c.Rank() == slow {
			time.Sleep(20 * time.Millisecond)
		}
		came := time.Now().UnixMicro()
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		left := time.Now().UnixMicro()
		last, err := c.AllReduceMax(ctx, []float64{float64(came)})
		if err != nil {
			return err
		}
		if float64(left) < last[0] {
			return fmt.Errorf("left the barrier %v us before the last rank came", last[0]-float64(left))
		}
	}
	return nil
}

// subset has the first ranks work together while the others rest. What they do before and
// after is the world's.
func subset(_ World, c ring.Comm) error {
	ctx := context.Background()
	for n := 1; n <= c.Size(); n++ {
		began := time.Now().UnixMicro()
		if c.Rank() < n {
			s, err := c.Subset(n)
			if err != nil {
				return err
			}
			sum, err := s.AllReduceSum(ctx, []float64{1, float64(s.Rank())})
			if err != nil {
				return fmt.Errorf("%d of %d: %w", n, c.Size(), err)
			}
			if s.Size() != n || s.Rank() != c.Rank() || sum[0] != float64(n) || sum[1] != float64(n*(n-1)/2) {
				return fmt.Errorf("%d of %d: rank %d of %d has the sums %v", n, c.Size(), s.Rank(), s.Size(), sum)
			}
			if c.Rank() == 0 {
				time.Sleep(5 * time.Millisecond)
			}
		}
		worked := time.Now().UnixMicro()
		if err := c.Rest(ctx, n); err != nil {
			return err
		}
		rested := time.Now().UnixMicro()
		times, err := c.AllGather(ctx, fmt.Appendf(nil, "%d %d %d", began, worked, rested))
		if err != nil {
			return err
		}
		var first [3]int64 // of rank 0
		if _, err := fmt.Sscan(string(times[0]), &first[0], &first[1], &first[2]); err != nil {
			return err
		}
		if c.Rank() >= n && rested < first[1] {
			return fmt.Errorf("%d of %d: rank %d went on %d us before rank 0 was done", n, c.Size(), c.Rank(), first[1]-rested)
		}
	}
	for _, n := range []int{0, c.Size() + 1, c.Rank()} {
		if _, err := c.Subset(n); err == nil {
			return fmt.Errorf("rank %d in a subset of %d of %d is no error", c.Rank(), n, c.Size())
		}
	}
	return nil
}

func reduce(_ World, c ring.Comm) error {
	n, ctx := float64(c.Size()), context.Background()
	r := float64(c.Rank())
	got, err := c.AllReduceSum(ctx, []float64{1, r, 0.1})
	if err != nil {
		return err
	}
	tenths := 0.0
	for range c.Size() {
		tenths += 0.1
	}
	if got[0] != n || got[1] != n*(n-1)/2 || got[2] != tenths {
		return fmt.Errorf("sums %v, want [%v %v %v]", got, n, n*(n-1)/2, tenths)
	}
	nan := 0.0
	if c.Rank() == c.Size()-1 {
		nan = math.NaN()
	}
	got, err = c.AllReduceMax(ctx, []float64{r, -r, math.Inf(-1), nan})
	if err != nil {
		return err
	}
	if got[0] != n-1 || got[1] != 0 || !math.IsInf(got[2], -1) || !math.IsNaN(got[3]) {
		return fmt.Errorf("maxima %v, want [%v 0 -Inf NaN]", got, n-1)
	}
	if c.Size() > 1 {
		if _, err := c.AllReduceSum(ctx, make([]float64, 1+c.Rank()%2)); err == nil {
			return fmt.Errorf("vectors of different lengths were added")
		}
	}
	return nil
}

func wrongRoot(_ World, c ring.Comm) error {
	for _, root := range []int{-1, c.Size()} {
		if _, err := c.Bcast(context.Background(), root, nil); err == nil {
			return fmt.Errorf("broadcast from root %d is no error", root)
		}
		if _, err := c.Gather(context.Background(), root, nil); err == nil {
			return fmt.Errorf("gather to root %d is no error", root)
		}
	}
	return nil
}
