package transporttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
	"unsafe"

	"ringattn/ring"
)

func identity(_ World, c ring.Comm) error {
	if c.Rank() < 0 || c.Rank() >= c.Size() {
		return fmt.Errorf("rank %d of %d", c.Rank(), c.Size())
	}
	if c.Describe() == "" {
		return errors.New("Describe says nothing")
	}
	all, err := c.AllGather(context.Background(), fmt.Appendf(nil, "%d of %d", c.Rank(), c.Size()))
	if err != nil {
		return err
	}
	for peer, said := range all {
		if want := fmt.Sprintf("%d of %d", peer, c.Size()); string(said) != want {
			return fmt.Errorf("rank %d calls itself %q, want %q", peer, said, want)
		}
	}
	return nil
}

func memory(_ World, c ring.Comm) error {
	seen := map[unsafe.Pointer]bool{}
	for _, length := range []int64{0, 1, 63, 64, 65, 1 << 20} {
		p, err := c.Alloc(length)
		if err != nil {
			return err
		}
		if p == nil || uintptr(p)%64 != 0 || seen[p] {
			return fmt.Errorf("memory of %d bytes at %v: nil, unaligned or given out twice", length, p)
		}
		seen[p] = true
		for i, b := range unsafe.Slice((*byte)(p), length) {
			if b != 0 {
				return fmt.Errorf("memory of %d bytes: byte %d is %d", length, i, b)
			}
		}
		if length > 0 {
			*(*byte)(unsafe.Add(p, length-1)) = 1
		}
	}
	for p := range seen {
		c.Free(p)
	}
	c.Free(nil)
	if _, err := c.Alloc(-1); err == nil {
		return errors.New("memory of -1 bytes is no error")
	}
	return nil
}

func arguments(_ World, c ring.Comm) error {
	p, err := c.Alloc(64)
	if err != nil {
		return err
	}
	defer c.Free(p)
	for _, a := range []struct {
		p         unsafe.Pointer
		bytes     int64
		peer, tag int
	}{
		{p, 64, -1, ring.FirstTag},
		{p, 64, c.Size(), ring.FirstTag},
		{p, 64, right(c), -1},
		{p, -1, right(c), ring.FirstTag},
		{nil, 64, right(c), ring.FirstTag},
	} {
		if _, err := c.Irecv(a.p, a.bytes, a.peer, a.tag); err == nil {
			return fmt.Errorf("Irecv of %d bytes, peer %d, tag %d is no error", a.bytes, a.peer, a.tag)
		}
		if _, err := c.Isend(a.p, a.bytes, a.peer, a.tag); err == nil {
			return fmt.Errorf("Isend of %d bytes, peer %d, tag %d is no error", a.bytes, a.peer, a.tag)
		}
	}
	for _, r := range []ring.Request{-1, 0, 1 << 30} {
		if _, err := c.Test(r); err == nil {
			return fmt.Errorf("Test of request %d is no error", r)
		}
	}
	return nil
}

// neighbours passes messages of many sizes once round the ring. A rank that
// sent first and received later would hang here.
func neighbours(_ World, c ring.Comm) error {
	sizes := []int{0, 1, 999, 1000, 1001, 2000, 1 << 20}
	for s := 256; s <= 16<<20; s *= 4 {
		sizes = append(sizes, s)
	}
	p := party{c: c}
	for i, length := range sizes {
		tag := ring.FirstTag + i
		if err := steps(
			func() error { return p.receive(left(c), tag, length, left(c)+i) },
			func() error { return p.send(right(c), tag, length, c.Rank()+i) },
			p.finish,
		); err != nil {
			return fmt.Errorf("%d bytes: %w", length, err)
		}
	}
	return nil
}

// bothSides sends to both neighbours at once. With two ranks they are the same
// rank and with one rank it is this one: the tags keep the messages apart.
func bothSides(_ World, c ring.Comm) error {
	const rightward, leftward = ring.FirstTag, ring.FirstTag + 1
	p := party{c: c}
	for _, length := range []int{100, 256 << 10} {
		if err := steps(
			func() error { return p.receive(left(c), rightward, length, 10*left(c)) },
			func() error { return p.receive(right(c), leftward, length, 10*right(c)+1) },
			func() error { return p.send(left(c), leftward, length, 10*c.Rank()+1) },
			func() error { return p.send(right(c), rightward, length, 10*c.Rank()) },
			p.finish,
		); err != nil {
			return err
		}
	}
	return nil
}

// sendsFirst posts the receive after the send; both are non-blocking, so it is
// allowed.
func sendsFirst(_ World, c ring.Comm) error {
	p := party{c: c}
	for _, length := range []int{100, 1 << 20} {
		if err := steps(
			func() error { return p.send(right(c), ring.FirstTag, length, c.Rank()) },
			func() error { return p.receive(left(c), ring.FirstTag, length, left(c)) },
			p.finish,
		); err != nil {
			return err
		}
	}
	return nil
}

func tagsOutOfOrder(_ World, c ring.Comm) error {
	const n = 40
	length := func(i int) int { return i * i * 97 }
	p := party{c: c}
	for i := range n {
		if err := p.send(right(c), ring.FirstTag+i, length(i), 100*c.Rank()+i); err != nil {
			return err
		}
	}
	for i := n - 1; i >= 0; i-- {
		if err := p.receive(left(c), ring.FirstTag+i, length(i), 100*left(c)+i); err != nil {
			return err
		}
	}
	return p.finish()
}

// oneTagInOrder has many messages of one pair and tag under way; a message must
// not overtake another.
func oneTagInOrder(_ World, c ring.Comm) error {
	const n = 30
	p := party{c: c}
	for round, length := range []int{1, 1500, 70_000} {
		for i := range n {
			if err := p.receive(left(c), ring.FirstTag, length, 1000*round+i+left(c)); err != nil {
				return err
			}
		}
		for i := range n {
			if err := p.send(right(c), ring.FirstTag, length, 1000*round+i+c.Rank()); err != nil {
				return err
			}
		}
		if err := p.finish(); err != nil {
			return err
		}
	}
	return nil
}

// lateRanks stays away from the transport for a while, a rank longer than the
// one before it; nothing need move meanwhile, and all is well afterwards.
func lateRanks(_ World, c ring.Comm) error {
	p := party{c: c}
	return steps(
		func() error { return p.receive(left(c), ring.FirstTag, 1<<20, left(c)) },
		func() error { return p.send(right(c), ring.FirstTag, 1<<20, c.Rank()) },
		func() error { time.Sleep(time.Duration(c.Rank()) * 10 * time.Millisecond); return nil },
		p.finish,
	)
}

// garbage runs the collector hard between post and wait: message memory must
// neither move nor go away (case G3).
func garbage(w World, c ring.Comm) error {
	rounds := w.Garbage
	if rounds == 0 {
		rounds = 2
	}
	p := party{c: c}
	for i := range rounds {
		if err := steps(
			func() error { return p.receive(left(c), ring.FirstTag, 300_000, left(c)+i) },
			func() error { return p.send(right(c), ring.FirstTag, 300_000, c.Rank()+i) },
		); err != nil {
			return err
		}
		if c.Rank() == w.Endpoints[0].Rank() { // the collector is the whole process's
			litter()
		}
		if err := p.finish(); err != nil {
			return err
		}
	}
	return nil
}

// litter makes 64 MB of garbage with GOGC=1 and collects it.
func litter() {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	var kept [][]byte
	for range 64 {
		kept = append(kept[max(0, len(kept)-3):], make([]byte, 1_000_000))
	}
	runtime.KeepAlive(kept)
	runtime.GC()
}

// noAllocation counts the allocations of the whole process during many
// exchanges; the lists of the runtime and the transport may still grow, but a call must
// not allocate each time.
func noAllocation(t *testing.T, w World) {
	const n, length = 200, 3000
	exchange := func(rounds int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w.each(t, func(c ring.Comm) error {
			var buf [2]unsafe.Pointer
			for i := range buf {
				p, err := c.Alloc(length)
				if err != nil {
					return err
				}
				defer c.Free(p)
				buf[i] = p
			}
			x := make([]ring.Transfer, 2)
			for range rounds {
				in, err := c.Irecv(buf[0], length, left(c), ring.FirstTag)
				if err != nil {
					return err
				}
				out, err := c.Isend(buf[1], length, right(c), ring.FirstTag)
				if err != nil {
					return err
				}
				x[0].Request, x[1].Request = in, out
				if err := c.WaitAll(context.Background(), x); err != nil {
					return err
				}
			}
			return nil
		})
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	exchange(n) // fills the free lists
	few, many := exchange(1), exchange(n)
	if perExchange := float64(many) / float64(n*len(w.Endpoints)); many > few && perExchange > 0.5 {
		t.Errorf("%d allocations in %d exchanges, %.1f each", many, n, perExchange)
	}
}
