package inproc

import (
	"fmt"
	"time"
	"unsafe"
)

const (
	maxHold     = 8 // calls of Test for which Reorder holds a message back, exclusive
	pollsAtMost = 8 // calls of Test over which PieceBytes spreads a message
)

// progress copies every matched message whose time has come.
func (e *Endpoint) progress() {
	e.mu.Lock()
	for i, m := range e.matched {
		if e.world.reorder {
			m.hold = e.random.IntN(maxHold)
		}
		e.arriving = append(e.arriving, m)
		e.matched[i] = match{}
	}
	e.matched = e.matched[:0]
	e.mu.Unlock()

	for i := range e.arriving {
		if m := &e.arriving[i]; !e.behind(i) && e.ripe(m) && e.advance(m) {
			e.finish(m)
		}
	}
	kept := e.arriving[:0]
	for _, m := range e.arriving {
		if m.send != nil {
			kept = append(kept, m)
		}
	}
	clear(e.arriving[len(kept):])
	e.arriving = kept
}

// behind reports whether an earlier message of the same pair and tag is not
// done yet.
func (e *Endpoint) behind(i int) bool {
	if !e.world.reorder && !e.world.late() && e.world.pieceBytes == 0 {
		return false
	}
	recv := e.arriving[i].recv
	for _, m := range e.arriving[:i] {
		if m.send != nil && m.recv.src == recv.src && m.recv.tag == recv.tag {
			return true
		}
	}
	return false
}

func (e *Endpoint) ripe(m *match) bool {
	if m.hold > 0 {
		m.hold--
		return false
	}
	return !e.world.late() || !time.Now().Before(m.send.notBefore)
}

// advance copies a part of a message, or all of it, and reports whether the
// message is through.
func (e *Endpoint) advance(m *match) bool {
	bytes := m.recv.bytes
	if m.send.bytes != bytes {
		return true
	}
	end := bytes
	if piece := e.world.pieceBytes; piece > 0 {
		pieces := (bytes + piece - 1) / piece
		end = min(bytes, m.copied+piece*max(1, pieces/pollsAtMost))
	}
	if n := end - m.copied; n > 0 {
		err := e.world.copy(unsafe.Add(m.recv.p, m.copied), unsafe.Add(m.send.p, m.copied), n)
		if err != nil {
			m.failure = fmt.Errorf("inproc: rank %d: message of %d bytes from rank %d, tag %d: %w", e.rank, bytes, m.send.src, m.send.tag, err)
			return true
		}
	}
	m.copied = end
	return end == bytes
}

func copyHost(dst, src unsafe.Pointer, n int64) error {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
	return nil
}

// finish tells both ends; the peer may reuse its half at once.
func (e *Endpoint) finish(m *match) {
	send, recv := m.send, m.recv
	send.err, recv.err = m.failure, m.failure
	if send.bytes != recv.bytes {
		send.err = fmt.Errorf("inproc: rank %d: send to rank %d, tag %d: sent %d bytes, the receiver wanted %d",
			send.src, send.dst, send.tag, send.bytes, recv.bytes)
		recv.err = fmt.Errorf("inproc: rank %d: receive from rank %d, tag %d: got %d bytes, wanted %d",
			recv.dst, recv.src, recv.tag, send.bytes, recv.bytes)
	}
	sender := e.world.ends[send.src]
	m.send, m.recv = nil, nil
	send.done.Store(true)
	recv.done.Store(true)
	sender.signal()
}
