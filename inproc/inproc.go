// Package inproc is a ring.Transport for N ranks inside one process, each used
// from a goroutine of its own.
//
// Every message is a rendezvous: a send is done only when a receive has matched
// it and the receiver, inside one of its calls of Test, has copied it. So a plan
// that hangs under MPI once messages outgrow the eager limit hangs here at any
// size, and nothing moves while the receiver is not in a call. Options make the
// transport late, unordered or lossy, for tests.
package inproc

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"ringattn/ring"
)

// An Option changes how the messages of a world travel.
type Option func(*world)

// Delay holds every message back for the time that delay returns, counted from
// Isend. It is called from the goroutine of the sender.
func Delay(delay func(src, dst, tag int, bytes int64) time.Duration) Option {
	return func(w *world) { w.delay = delay }
}

// Link models a network: each rank sends over a link of its own that carries so
// many bytes a second, one message after another, each from when its receive is
// there as well.
func Link(bytesPerSecond float64) Option {
	return func(w *world) {
		w.link = &link{bytesPerSecond: bytesPerSecond, free: make([]time.Time, len(w.ends))}
	}
}

type link struct {
	bytesPerSecond float64
	mu             sync.Mutex
	free           []time.Time // by sender: when the messages so far are through
}

// carry is when a message that is ready now will be through.
func (l *link) carry(h *half) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	free := &l.free[h.src]
	if now := time.Now(); free.Before(now) {
		*free = now
	}
	*free = free.Add(time.Duration(float64(h.bytes) / l.bytesPerSecond * float64(time.Second)))
	return *free
}

// Reorder shuffles the order in which messages complete, but never that of two
// messages of one pair of ranks and one tag.
func Reorder(seed uint64) Option {
	return func(w *world) { w.reorder, w.seed = true, seed }
}

// Drop loses the messages for which drop returns true: neither the receive nor
// the send is ever done. It is called from the goroutine of the sender.
func Drop(drop func(src, dst, tag int, bytes int64) bool) Option {
	return func(w *world) { w.drop = drop }
}

// PieceBytes copies messages in pieces of at most n bytes and only a few of them
// in one call of Test, so that large messages arrive bit by bit.
func PieceBytes(n int64) Option {
	return func(w *world) { w.pieceBytes = max(n, 1) }
}

// Copy has messages copied by a function of the caller's, for memory that this process
// cannot read and write by itself: a device's. It is called from the goroutine of the
// receiver, for each piece of a message, and returns when the copy is complete.
func Copy(copy func(dst, src unsafe.Pointer, bytes int64) error) Option {
	return func(w *world) { w.copy = copy }
}

type world struct {
	ends       []*Endpoint
	copy       func(dst, src unsafe.Pointer, bytes int64) error
	delay      func(src, dst, tag int, bytes int64) time.Duration
	link       *link
	drop       func(src, dst, tag int, bytes int64) bool
	reorder    bool
	seed       uint64
	pieceBytes int64 // 0: whole messages
}

// New makes a world of n ranks and returns their ends, by rank. It panics if n
// is not positive.
func New(n int, opts ...Option) []*Endpoint {
	if n < 1 {
		panic(fmt.Sprintf("inproc: a world of %d ranks", n))
	}
	w := &world{ends: make([]*Endpoint, n), copy: copyHost}
	for _, o := range opts {
		o(w)
	}
	for rank := range w.ends {
		w.ends[rank] = &Endpoint{
			world: w, rank: rank,
			random: rand.New(rand.NewPCG(w.seed, uint64(rank))),
			memory: map[unsafe.Pointer][]byte{},
			wake:   make(chan struct{}, 1),
		}
	}
	return w.ends
}

// Endpoint is one rank's end of a world. All its methods are called from one
// goroutine.
type Endpoint struct {
	world *world
	rank  int

	requests []*half // by Request - 1
	free     []ring.Request
	arriving []match // matched receives of this rank, in the order of matching
	random   *rand.Rand
	memory   map[unsafe.Pointer][]byte
	timer    *time.Timer
	wake     chan struct{}

	mu      sync.Mutex // guards what peers touch:
	sent    []*half    // sends to this rank that no receive has met, in order
	posted  []*half    // receives of this rank that no send has met, in order
	matched []match    // on their way to arriving
}

var (
	_ ring.Transport = (*Endpoint)(nil)
	_ ring.Pauser    = (*Endpoint)(nil)
)

// half is one side of a message: a send or a receive.
type half struct {
	inUse     bool
	src, dst  int
	tag       int
	p         unsafe.Pointer
	bytes     int64
	notBefore time.Time // of a send
	err       error     // valid once done is set
	done      atomic.Bool
}

// match is a send and a receive that belong together.
type match struct {
	send, recv *half
	copied     int64
	failure    error // of a copy
	hold       int   // calls of Test to let pass, under Reorder
}

// Rank is this end's number.
func (e *Endpoint) Rank() int { return e.rank }

// Size is the number of ranks of the world.
func (e *Endpoint) Size() int { return len(e.world.ends) }

// Describe says what carries the messages.
func (e *Endpoint) Describe() string {
	return fmt.Sprintf("memory copies between %d ranks of one process", e.Size())
}

const alignment = 64

// Alloc returns zeroed Go memory that is kept alive until Free.
func (e *Endpoint) Alloc(bytes int64) (unsafe.Pointer, error) {
	if bytes < 0 || bytes > 1<<46 {
		return nil, fmt.Errorf("inproc: rank %d: cannot allocate %d bytes", e.rank, bytes)
	}
	memory := make([]byte, bytes+alignment)
	start := unsafe.Pointer(unsafe.SliceData(memory))
	p := unsafe.Add(start, -uintptr(start)%alignment)
	e.memory[p] = memory
	return p, nil
}

// Free gives memory of Alloc back; nil is allowed.
func (e *Endpoint) Free(p unsafe.Pointer) { delete(e.memory, p) }

// Irecv starts a receive.
func (e *Endpoint) Irecv(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	r, h, err := e.start("receive from", p, bytes, peer, tag)
	if err != nil {
		return 0, err
	}
	h.src, h.dst = peer, e.rank
	e.mu.Lock()
	defer e.mu.Unlock()
	if send := take(&e.sent, h); send != nil {
		e.matched = append(e.matched, e.world.match(send, h))
	} else {
		e.posted = append(e.posted, h)
	}
	return r, nil
}

// Isend starts a send.
func (e *Endpoint) Isend(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	r, h, err := e.start("send to", p, bytes, peer, tag)
	if err != nil {
		return 0, err
	}
	h.src, h.dst = e.rank, peer
	w := e.world
	if w.drop != nil && w.drop(e.rank, peer, tag, bytes) {
		return r, nil
	}
	if w.delay != nil {
		h.notBefore = time.Now().Add(w.delay(e.rank, peer, tag, bytes))
	}
	to := w.ends[peer]
	to.mu.Lock()
	defer to.mu.Unlock()
	if recv := take(&to.posted, h); recv != nil {
		to.matched = append(to.matched, w.match(h, recv))
		to.signal()
	} else {
		to.sent = append(to.sent, h)
	}
	return r, nil
}

// match puts a send and its receive on their way.
func (w *world) match(send, recv *half) match {
	if w.link != nil {
		if through := w.link.carry(send); through.After(send.notBefore) {
			send.notBefore = through
		}
	}
	return match{send: send, recv: recv}
}

// late reports whether messages take time.
func (w *world) late() bool { return w.delay != nil || w.link != nil }

// start checks the arguments and finds a request for them.
func (e *Endpoint) start(op string, p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, *half, error) {
	fail := func(why string) error {
		return fmt.Errorf("inproc: rank %d: %s rank %d, tag %d, %d bytes: %s", e.rank, op, peer, tag, bytes, why)
	}
	switch {
	case peer < 0 || peer >= e.Size():
		return 0, nil, fail(fmt.Sprintf("there are %d ranks", e.Size()))
	case tag < 0:
		return 0, nil, fail("negative tag")
	case bytes < 0:
		return 0, nil, fail("negative size")
	case p == nil && bytes > 0:
		return 0, nil, fail("no memory")
	}
	if len(e.free) == 0 {
		e.requests = append(e.requests, new(half))
		e.free = append(e.free, ring.Request(len(e.requests)))
	}
	r := e.free[len(e.free)-1]
	e.free = e.free[:len(e.free)-1]
	h := e.requests[r-1]
	h.inUse, h.p, h.bytes, h.tag = true, p, bytes, tag
	h.notBefore, h.err = time.Time{}, nil
	h.done.Store(false)
	return r, h, nil
}

// take removes and returns the first of the list that h matches, or nil.
func take(list *[]*half, h *half) *half {
	for i, o := range *list {
		if o.src == h.src && o.tag == h.tag {
			last := len(*list) - 1
			copy((*list)[i:], (*list)[i+1:])
			(*list)[last] = nil
			*list = (*list)[:last]
			return o
		}
	}
	return nil
}

// Test copies what has arrived for this rank and reports whether r is done.
func (e *Endpoint) Test(r ring.Request) (bool, error) {
	if r < 1 || int(r) > len(e.requests) || !e.requests[r-1].inUse {
		return false, fmt.Errorf("inproc: rank %d: there is no request %d", e.rank, r)
	}
	e.progress()
	h := e.requests[r-1]
	if !h.done.Load() {
		return false, nil
	}
	h.inUse, h.p = false, nil
	e.free = append(e.free, r)
	return h.err == nil, h.err
}

func (e *Endpoint) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Pause sleeps for d, less if a message of this rank is matched or done, and not
// at all while a message is half copied or held back for a number of calls. For 0 it
// yields to other ranks.
func (e *Endpoint) Pause(d time.Duration) {
	if d == 0 || len(e.arriving) > 0 && !e.world.late() {
		runtime.Gosched()
		return
	}
	if e.timer == nil {
		e.timer = time.NewTimer(d)
	} else {
		e.timer.Reset(d)
	}
	select {
	case <-e.wake:
		e.timer.Stop()
	case <-e.timer.C:
	}
}
