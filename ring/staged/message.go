package staged

import (
	"time"
	"unsafe"

	"ringattn/ring"
)

// message is a send or a receive: pieces of pieceBytes and a last one that is shorter,
// maybe empty. So the last says that it is the last, and a receive of another size meets
// a piece of another size, whatever the two sizes are.
type message struct {
	request   ring.Request // 0: not in use
	send      bool
	p         unsafe.Pointer
	bytes     int64
	peer, tag int

	count    int64  // of pieces
	acts     [2]act // of each piece, one after the other
	lane     lane   // where pieces stand in host memory, piece i at place i % depth
	copies   [depth]ring.Copy
	requests [depth]ring.Request
	began    [depth]begun // the copies, where they are told of
	err      error
}

// act is one of the two things that are done with each piece: it is copied and sent, or
// received and copied. Pieces begin an act in order and end it in order.
type act struct {
	wire        bool // else it is the copy
	begun, done int64
}

// begun is a copy that is under way.
type begun struct {
	at    time.Time
	bytes int64
}

// newMessage has no piece under way yet.
func newMessage(send bool, p unsafe.Pointer, bytes int64, peer, tag int) message {
	return message{send: send, p: p, bytes: bytes, peer: peer, tag: tag, acts: [2]act{{wire: !send}, {wire: send}}}
}

func (m *message) wire() *act {
	if m.send {
		return &m.acts[1]
	}
	return &m.acts[0]
}

// through is how many pieces have both acts behind them.
func (m *message) through() int64 { return m.acts[1].done }

// advance ends and begins whatever it can.
func (t *Transport) advance(m *message) error {
	for moved := true; moved; {
		moved = false
		for i := 1; i >= 0; i-- { // an end of the second act makes room for a beginning of the first
			a := &m.acts[i]
			for a.done < a.begun {
				ended, err := t.end(m, a.wire, int(a.done%depth))
				if err != nil {
					return err
				}
				if !ended {
					break
				}
				a.done++
				moved = true
			}
			room := min(m.count, m.through()+depth)
			if i == 1 {
				room = m.acts[0].done
			}
			for a.begun < room && (!a.wire || !t.behind(m)) {
				if err := t.begin(m, a.wire, a.begun); err != nil {
					return err
				}
				a.begun++
				moved = true
			}
		}
	}
	return nil
}

// behind reports whether an earlier message of the same way, peer and tag has pieces
// that were not given to the transport below: these go first.
func (t *Transport) behind(m *message) bool {
	for _, o := range t.active {
		if o == m {
			return false
		}
		if o.send == m.send && o.peer == m.peer && o.tag == m.tag && o.wire().begun < o.count {
			return true
		}
	}
	return false
}

// begin starts an act of piece i.
func (t *Transport) begin(m *message, wire bool, i int64) (err error) {
	at := i * t.pieceBytes
	n := min(t.pieceBytes, m.bytes-at)
	p := unsafe.Add(m.p, at)
	host := p
	if t.device != nil {
		host = unsafe.Add(m.lane.host, i%depth*t.pieceBytes)
	}
	switch r, c := &m.requests[i%depth], &m.copies[i%depth]; {
	case wire && m.send:
		*r, err = t.Transport.Isend(host, n, m.peer, m.tag)
	case wire:
		*r, err = t.Transport.Irecv(host, n, m.peer, m.tag)
	case t.device == nil || n == 0:
	case m.send:
		*c, err = t.device.CopyOut(host, p, n)
	default:
		*c, err = t.device.CopyIn(p, host, n)
	}
	if !wire && m.copies[i%depth] != 0 {
		t.copying++
		if t.Copied != nil {
			m.began[i%depth] = begun{time.Now(), n}
		}
	}
	return err
}

// end reports whether the act is done that was begun at a place of the lane.
func (t *Transport) end(m *message, wire bool, place int) (done bool, err error) {
	r, c := &m.requests[place], &m.copies[place]
	switch {
	case wire:
		done, err = t.Transport.Test(*r)
	case *c == 0:
		return true, nil
	default:
		if done, err = t.device.Copied(*c); done {
			*c = 0
			t.copying--
			if t.Copied != nil {
				t.Copied(m.send, m.began[place].bytes, m.began[place].at, time.Now())
			}
		}
	}
	return done, err
}
