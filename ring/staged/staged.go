// Package staged is a ring.Transport on top of another one, for messages of memory that
// the other does not know: it sends copies in host memory, and copies what it receives.
//
// A message goes in pieces: while one is on its way the next is copied. With device set
// to nil the memory is the host's, and the pieces go as they are. So the ranks of a job
// need not have the same kind of memory; but either all of them cut their messages, each
// with a Transport of this package and the same size of pieces, or none does.
//
// Copies wait for no kernel: what is sent must be complete when Isend is called, and no
// kernel may use what is received before Test has reported it done. ring.Exec sees to
// both, as it does for any Transport.
package staged

import (
	"errors"
	"fmt"
	"math/bits"
	"time"
	"unsafe"

	"ringattn/ring"
)

// PieceBytes is a good size of pieces: long enough that starting a copy and a message
// costs little beside them, short enough that the first copy and the last one, which
// nothing hides, do so as well.
const PieceBytes = 4 << 20

// depth is how many pieces of a message are under way at a time: more than the two that
// copy and wire need, since a piece moves on only when somebody calls Test.
const depth = 4

// Transport carries messages of one device's memory. Alloc and Free are those of the
// transport below: host memory.
type Transport struct {
	ring.Transport
	device     ring.Copier // nil: the memory is the host's
	pieceBytes int64

	messages []*message // by Request - 1
	free     []ring.Request
	active   []*message // not done, in the order in which they were started
	turn     int        // which of active Test drives beside the one that it is asked for
	lanes    []lane     // not in use
	copying  int        // copies under way
	failed   bool

	// Copied is told of each copy that is done, out of the device or into it; nil: nobody is.
	Copied func(out bool, bytes int64, began, ended time.Time)
}

var (
	_ ring.Transport = (*Transport)(nil)
	_ ring.Pauser    = (*Transport)(nil)
	_ ring.Stager    = (*Transport)(nil)
)

// lane is the host memory of a message: room for depth of its pieces, or all of them.
type lane struct {
	host  unsafe.Pointer
	bytes int64
}

// New makes a Transport on top of t that cuts messages into pieces of pieceBytes. The
// device is that of the messages' memory, nil where this is host memory; it must outlive
// the Transport.
func New(t ring.Transport, device ring.Copier, pieceBytes int64) *Transport {
	if pieceBytes < 1 {
		panic(fmt.Sprintf("staged: pieces of %d bytes", pieceBytes))
	}
	return &Transport{Transport: t, device: device, pieceBytes: pieceBytes}
}

// Describe names the transport below, and what this one adds.
func (t *Transport) Describe() string {
	if t.device == nil {
		return t.Transport.Describe()
	}
	return fmt.Sprintf("%s, through host memory in pieces of %d KiB", t.Transport.Describe(), (t.pieceBytes+1023)/1024)
}

// Irecv starts a receive.
func (t *Transport) Irecv(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	return t.start(newMessage(false, p, bytes, peer, tag))
}

// Isend starts a send.
func (t *Transport) Isend(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	return t.start(newMessage(true, p, bytes, peer, tag))
}

func (t *Transport) start(what message) (ring.Request, error) {
	switch {
	case what.peer < 0 || what.peer >= t.Size():
		return 0, t.fail(&what, fmt.Errorf("there are %d ranks", t.Size()))
	case what.tag < 0:
		return 0, t.fail(&what, errors.New("negative tag"))
	case what.bytes < 0:
		return 0, t.fail(&what, errors.New("negative size"))
	case what.p == nil && what.bytes > 0:
		return 0, t.fail(&what, errors.New("no memory"))
	}
	what.count = what.bytes/t.pieceBytes + 1
	var err error
	room := min(what.bytes, depth*t.pieceBytes)
	if !what.send {
		// Whole pieces: Open MPI 4.1 reports a message that is too long, but writes it first.
		room = min(what.count, depth) * t.pieceBytes
	}
	if what.lane, err = t.takeLane(room); err != nil {
		return 0, t.fail(&what, err)
	}
	if len(t.free) == 0 {
		t.messages = append(t.messages, new(message))
		t.free = append(t.free, ring.Request(len(t.messages)))
	}
	r := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	m := t.messages[r-1]
	*m = what
	m.request = r
	t.active = append(t.active, m)
	t.drive(m) // what fails at once is an error of Test
	return r, nil
}

// Test drives r and, in turn, one other message, and reports whether r is done.
func (t *Transport) Test(r ring.Request) (bool, error) {
	if r < 1 || int(r) > len(t.messages) || t.messages[r-1].request != r {
		return false, fmt.Errorf("staged: rank %d: there is no request %d", t.Rank(), r)
	}
	m := t.messages[r-1]
	t.drive(m)
	t.turn = (t.turn + 1) % len(t.active)
	t.drive(t.active[t.turn])
	switch {
	case m.err != nil:
		// Its memory is given up: pieces may be under way.
		t.failed = true
		return false, m.err
	case m.through() < m.count:
		return false, nil
	}
	t.active = remove(t.active, m)
	if m.lane.host != nil {
		t.lanes = append(t.lanes, m.lane)
	}
	m.request = 0
	t.free = append(t.free, r)
	return true, nil
}

// Copying reports whether a copy is under way.
func (t *Transport) Copying() bool { return t.copying > 0 }

// Pause is that of the transport below.
func (t *Transport) Pause(d time.Duration) {
	if p, ok := t.Transport.(ring.Pauser); ok {
		p.Pause(d)
		return
	}
	time.Sleep(d)
}

func (t *Transport) drive(m *message) {
	if m.err != nil {
		return
	}
	if err := t.advance(m); err != nil {
		m.err = t.fail(m, err)
	}
}

// remove keeps the order and allocates nothing.
func remove(list []*message, m *message) []*message {
	kept := list[:0]
	for _, x := range list {
		if x != m {
			kept = append(kept, x)
		}
	}
	list[len(kept)] = nil
	return kept
}

// fail says of which message an error is.
func (t *Transport) fail(m *message, err error) error {
	what := fmt.Sprintf("receive from rank %d, tag %d: wanted", m.peer, m.tag)
	if m.send {
		what = fmt.Sprintf("send to rank %d, tag %d: sent", m.peer, m.tag)
	}
	return fmt.Errorf("staged: rank %d: %s %d bytes, piece %d of %d: %w", t.Rank(), what, m.bytes, m.through()+1, m.count, err)
}

// takeLane gives the smallest free lane that is large enough, or a new one; none where
// none is needed.
func (t *Transport) takeLane(bytes int64) (lane, error) {
	if t.device == nil || bytes == 0 {
		return lane{}, nil
	}
	best := -1
	for i, l := range t.lanes {
		if l.bytes >= bytes && (best < 0 || l.bytes < t.lanes[best].bytes) {
			best = i
		}
	}
	if best >= 0 {
		l := t.lanes[best]
		t.lanes[best] = t.lanes[len(t.lanes)-1]
		t.lanes = t.lanes[:len(t.lanes)-1]
		return l, nil
	}
	bytes = 1 << bits.Len64(uint64(bytes-1)) // so that few sizes serve all
	host, err := t.device.HostAlloc(bytes)
	if err != nil {
		return lane{}, fmt.Errorf("host memory for %d bytes: %w", bytes, err)
	}
	return lane{host, bytes}, nil
}

// Close frees the host memory, once no message is under way. After a failed message,
// or with one under way, it is left alone: it may still be written to.
func (t *Transport) Close() {
	if t.failed || len(t.active) > 0 {
		return
	}
	for _, l := range t.lanes {
		t.device.HostFree(l.host)
	}
	t.lanes = nil
}
