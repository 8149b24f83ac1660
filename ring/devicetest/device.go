// Package devicetest makes a ring.Device of a backend that computes on the host, for
// tests: of memory that has two addresses. At the one that the program is given, the
// device's, the host can neither read nor write, and a touch ends the process, as it
// does on a GPU; the backend computes at the other one.
package devicetest

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"ringattn/ring"
)

// Memory is memory of two addresses.
type Memory interface {
	// Alloc returns a device address, aligned to 64 bytes at least; Free gives the
	// memory back.
	Alloc(bytes int64) (unsafe.Pointer, error)
	Free(p unsafe.Pointer)
	// View is where the host reaches what stands at a device address, which may be
	// inside a piece; nil where it is none of Alloc's.
	View(p unsafe.Pointer) unsafe.Pointer
}

// New makes a Device that computes with b, whose memory is the host's. An address that
// is not the device's is an error of the call, as it is on a GPU.
//
// A copy is made no earlier than when Copied is asked the third time; until then its
// destination holds bytes of 0xff.
func New(b ring.Backend, m Memory) ring.Device {
	return &device{Backend: b, memory: m}
}

type device struct {
	ring.Backend
	memory Memory
	copies []pending // by Copy - 1
	wrong  error     // of an address
}

var garbage = bytes.Repeat([]byte{0xff}, 4096)

// pending is a copy.
type pending struct {
	used     bool
	dst, src []byte
	asked    int
}

func (d *device) Name() string { return "device of " + d.Backend.Name() }

func (d *device) Alloc(bytes int64) (unsafe.Pointer, error) { return d.memory.Alloc(bytes) }

func (d *device) Free(p unsafe.Pointer) {
	_ = d.Sync() // its error comes back from the next call
	d.memory.Free(p)
}

// at is the host's address of a device address.
func (d *device) at(p unsafe.Pointer) unsafe.Pointer {
	if p == nil {
		return nil
	}
	view := d.memory.View(p)
	if view == nil {
		d.wrong = fmt.Errorf("devicetest: %p is no address of the device", p)
	}
	return view
}

// checked makes a call unless one of its addresses is wrong.
func (d *device) checked(call func() error) error {
	if err := d.wrong; err != nil {
		d.wrong = nil
		return err
	}
	return call()
}

func (d *device) Write(dst unsafe.Pointer, src []byte) error {
	at := d.at(dst)
	return d.checked(func() error { return d.Backend.Write(at, src) })
}

func (d *device) Read(dst []byte, src unsafe.Pointer) error {
	at := d.at(src)
	return d.checked(func() error { return d.Backend.Read(dst, at) })
}

func (d *device) Zero(p unsafe.Pointer, bytes int64) error {
	at := d.at(p)
	return d.checked(func() error { return d.Backend.Zero(at, bytes) })
}

func (d *device) Add(dst, src unsafe.Pointer, n int64) error {
	to, from := d.at(dst), d.at(src)
	return d.checked(func() error { return d.Backend.Add(to, from, n) })
}

func (d *device) Round(dst, src unsafe.Pointer, n int64) error {
	to, from := d.at(dst), d.at(src)
	return d.checked(func() error { return d.Backend.Round(to, from, n) })
}

func (d *device) AddRounded(dst, src unsafe.Pointer, n int64) error {
	to, from := d.at(dst), d.at(src)
	return d.checked(func() error { return d.Backend.AddRounded(to, from, n) })
}

func (d *device) Move(m ring.Rearrangement) error {
	m.Dst, m.Src, m.To, m.From = d.at(m.Dst), d.at(m.Src), d.at(m.To), d.at(m.From)
	return d.checked(func() error { return d.Backend.Move(m) })
}

func (d *device) tensors(t *ring.Tensors) *ring.Tensors {
	return &ring.Tensors{
		Tokens: t.Tokens,
		Q:      d.at(t.Q), KV: d.at(t.KV), Out: d.at(t.Out), LSE: d.at(t.LSE),
		DOut: d.at(t.DOut), Delta: d.at(t.Delta), DQ: d.at(t.DQ), DKV: d.at(t.DKV),
	}
}

func (d *device) rows(r ring.Rows) ring.Rows {
	r.Lo, r.Hi = d.at(r.Lo), d.at(r.Hi)
	return r
}

func (d *device) chunk(c ring.Chunk) ring.Chunk {
	c.KV = d.at(c.KV)
	return c
}

func (d *device) Forward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, first bool) error {
	x, kv, r := d.tensors(t), d.chunk(c), d.rows(rows)
	return d.checked(func() error { return d.Backend.Forward(s, x, kv, r, first) })
}

func (d *device) Delta(s ring.Shape, t *ring.Tensors) error {
	x := d.tensors(t)
	return d.checked(func() error { return d.Backend.Delta(s, x) })
}

func (d *device) Backward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, dkv unsafe.Pointer, first bool) error {
	x, kv, r, to := d.tensors(t), d.chunk(c), d.rows(rows), d.at(dkv)
	return d.checked(func() error { return d.Backend.Backward(s, x, kv, r, to, first) })
}

func (d *device) HostAlloc(bytes int64) (unsafe.Pointer, error) { return d.Backend.Alloc(bytes) }

func (d *device) HostFree(p unsafe.Pointer) { d.Backend.Free(p) }

func (d *device) CopyOut(host, src unsafe.Pointer, bytes int64) (ring.Copy, error) {
	return d.copy(host, d.at(src), bytes)
}

func (d *device) CopyIn(dst, host unsafe.Pointer, bytes int64) (ring.Copy, error) {
	return d.copy(d.at(dst), host, bytes)
}

func (d *device) copy(dst, src unsafe.Pointer, n int64) (c ring.Copy, err error) {
	err = d.checked(func() error {
		i := slices.IndexFunc(d.copies, func(p pending) bool { return !p.used })
		if i < 0 {
			i = len(d.copies)
			d.copies = append(d.copies, pending{})
		}
		p := &d.copies[i]
		*p = pending{used: true, dst: unsafe.Slice((*byte)(dst), n), src: unsafe.Slice((*byte)(src), n)}
		for rest := p.dst; len(rest) > 0; rest = rest[copy(rest, garbage):] {
		}
		c = ring.Copy(i + 1)
		return nil
	})
	return c, err
}

func (d *device) Copied(c ring.Copy) (bool, error) {
	if c < 1 || int(c) > len(d.copies) || !d.copies[c-1].used {
		return false, fmt.Errorf("devicetest: there is no copy %d", c)
	}
	p := &d.copies[c-1]
	if p.asked++; p.asked < 3 {
		return false, nil
	}
	copy(p.dst, p.src)
	p.used = false
	return true, nil
}
