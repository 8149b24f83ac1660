// Package late wraps a ring.Backend so that every kernel runs late: some time after the
// one before it is done. Nothing that a program computes may change by it, only when: a
// message that is sent before its last writer has run, or memory that is used again
// before its last reader has, shows as a wrong result. For tests.
package late

import (
	"time"
	"unsafe"

	"ringattn/ring"
)

var _ ring.Device = device{}

// New makes a Backend that gives a kernel to b only when a time has gone by since the
// kernel before it was done, and since it was enqueued. Calls of Query and Sync give
// them on, in order. It is a ring.Device where b is one.
func New(b ring.Backend, by time.Duration) ring.Backend {
	l := &backend{Backend: b, by: by}
	if d, ok := b.(ring.Device); ok {
		return device{l, d}
	}
	return l
}

type backend struct {
	ring.Backend
	by      time.Duration
	waiting []func() error // kernels, oldest first
	due     time.Time      // when the oldest may go on
	running ring.Event     // of the kernel that b has, 0: none
	passed  ring.Event     // kernels that are done
	failure error
}

// device is a backend of device memory; its copies are not late.
type device struct {
	*backend
	ring.Copier
}

func (l *backend) enqueue(kernel func() error) error {
	if len(l.waiting) == 0 && l.running == 0 {
		l.due = time.Now().Add(l.by)
	}
	l.waiting = append(l.waiting, kernel)
	return l.failure
}

// advance gives on what is due.
func (l *backend) advance() error {
	if l.failure != nil {
		return l.failure
	}
	if l.running != 0 {
		done, err := l.Backend.Query(l.running)
		if err != nil || !done {
			l.failure = err
			return err
		}
		l.running = 0
		l.passed++
		l.due = time.Now().Add(l.by)
	}
	if len(l.waiting) == 0 || time.Now().Before(l.due) {
		return nil
	}
	kernel := l.waiting[0]
	l.waiting = l.waiting[1:]
	if l.failure = kernel(); l.failure == nil {
		l.running, l.failure = l.Backend.Record()
	}
	return l.failure
}

func (l *backend) Record() (ring.Event, error) {
	n := l.passed + ring.Event(len(l.waiting))
	if l.running != 0 {
		n++
	}
	return n, l.failure
}

func (l *backend) Query(e ring.Event) (bool, error) {
	err := l.advance()
	return l.passed >= e, err
}

func (l *backend) Sync() error {
	for len(l.waiting) > 0 || l.running != 0 {
		if err := l.advance(); err != nil {
			return err
		}
		time.Sleep(50 * time.Microsecond)
	}
	return l.Backend.Sync()
}

func (l *backend) Write(dst unsafe.Pointer, src []byte) error {
	if err := l.Sync(); err != nil {
		return err
	}
	return l.Backend.Write(dst, src)
}

func (l *backend) Read(dst []byte, src unsafe.Pointer) error {
	if err := l.Sync(); err != nil {
		return err
	}
	return l.Backend.Read(dst, src)
}

func (l *backend) Free(p unsafe.Pointer) {
	_ = l.Sync() // its error comes back from the next call
	l.Backend.Free(p)
}

func (l *backend) Zero(p unsafe.Pointer, bytes int64) error {
	return l.enqueue(func() error { return l.Backend.Zero(p, bytes) })
}

func (l *backend) Forward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, first bool) error {
	x := *t
	return l.enqueue(func() error { return l.Backend.Forward(s, &x, c, rows, first) })
}

func (l *backend) Delta(s ring.Shape, t *ring.Tensors) error {
	x := *t
	return l.enqueue(func() error { return l.Backend.Delta(s, &x) })
}

func (l *backend) Backward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, dkv unsafe.Pointer, first bool) error {
	x := *t
	return l.enqueue(func() error { return l.Backend.Backward(s, &x, c, rows, dkv, first) })
}

func (l *backend) Add(dst, src unsafe.Pointer, n int64) error {
	return l.enqueue(func() error { return l.Backend.Add(dst, src, n) })
}

func (l *backend) Round(dst, src unsafe.Pointer, n int64) error {
	return l.enqueue(func() error { return l.Backend.Round(dst, src, n) })
}

func (l *backend) AddRounded(dst, src unsafe.Pointer, n int64) error {
	return l.enqueue(func() error { return l.Backend.AddRounded(dst, src, n) })
}

func (l *backend) Move(m ring.Rearrangement) error {
	return l.enqueue(func() error { return l.Backend.Move(m) })
}
