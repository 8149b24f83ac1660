package cmd

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"ringattn/cases"
)

// doubling is what --ranks-sweep without a value stands for.
const doubling = "doubling"

// rankCounts are the numbers of ranks that are measured, of a world of so many.
func (b *benchOptions) rankCounts(world int) ([]int, error) {
	var counts []int
	switch b.ranksSweep {
	case "":
		return []int{world}, nil
	case doubling:
		for n := 1; n < world; n *= 2 {
			counts = append(counts, n)
		}
		return append(counts, world), nil
	}
	for part := range strings.SplitSeq(b.ranksSweep, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		switch {
		case err != nil || n < 1:
			return nil, usageError("--ranks-sweep is %q, want numbers of ranks like 1,2,4", b.ranksSweep)
		case slices.Contains(counts, n):
			return nil, usageError("--ranks-sweep is %q: %d is there twice", b.ranksSweep, n)
		case world > 0 && n > world:
			return nil, usageError("--ranks-sweep is %q, and there are %s", b.ranksSweep, plural(world, "rank"))
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// place is a shape of a sweep, or a size of messages, on the first so many ranks.
type place struct {
	ranks int
	shape *cases.Shape // nil: messages of so many bytes
	bytes int64
}

// places lists this process's shard of the sweep, in order.
func (b *benchOptions) places(counts []int, shapes []cases.Shape) (list []place) {
	i := 0
	add := func(p place) {
		if i%b.shardN == b.shardI {
			list = append(list, p)
		}
		i++
	}
	for _, n := range counts {
		for _, bytes := range b.links {
			if n > 1 {
				add(place{ranks: n, bytes: bytes})
			}
		}
		for s := range shapes {
			add(place{ranks: n, shape: &shapes[s]})
		}
	}
	return list
}

// subset is the world of the first n ranks, of which this is one. Threads and GPUs stay
// as they are: whatever is measured on few ranks has the same of each.
func (w *world) subset(n int) (*world, error) {
	if n == w.Size() {
		return w, nil
	}
	c, err := w.Subset(n)
	if err != nil {
		return nil, err
	}
	s := *w
	s.Comm, s.hosts, s.divided = c, w.hosts[:n], false
	s.crowded = s.crowding()
	return &s, nil
}

// measure does one place; ranks beyond those that it needs rest until it is done.
func (r *benchReport) measure(ctx context.Context, p place) error {
	if r.whole.Rank() < p.ranks {
		if r.world == nil || r.world.Size() != p.ranks {
			w, err := r.whole.subset(p.ranks)
			if err != nil {
				return err
			}
			r.world, r.begun, r.peak = w, false, 0
			if r.threads, err = shareAll(ctx, w, w.threads); err != nil {
				return err
			}
		}
		var err error
		if p.shape != nil {
			err = r.shape(ctx, p.shape)
		} else {
			err = r.link(ctx, p.bytes)
		}
		if err != nil && p.ranks < r.whole.Size() {
			return withCode(exitCode(err), errors.New(err.Error())) // no knownError: those that rest do not know it
		}
		if err != nil {
			return err
		}
	}
	if p.ranks == r.whole.Size() {
		return nil
	}
	return r.whole.Rest(ctx, p.ranks)
}
