package ring

import (
	"fmt"
	"time"
)

// SpanKind says what a Span is of.
type SpanKind string

// The kinds of spans. Of one rank, passes do not overlap, nor do busy times, nor kernels; a
// wait lies within a pass, a kernel within a busy time. Messages and copies overlap.
const (
	SpanPass   SpanKind = "pass"
	SpanBusy   SpanKind = "busy"   // a kernel was enqueued and not known to be finished: adds up to Stats.Kernel
	SpanKernel SpanKind = "kernel" // one kernel, see Timed
	SpanWait   SpanKind = "wait"   // the rank waited for a slot, or at the end for its kernels
	SpanSend   SpanKind = "send"   // from when a message was posted until it was known to be done
	SpanRecv   SpanKind = "recv"
	SpanCopy   SpanKind = "copy" // of a piece of a message, between host and device memory
)

// Span is something that took time in a pass of a rank.
type Span struct {
	Kind       SpanKind
	Pass       Pass
	Begin, End time.Duration // since the Timeline's zero
	Name       string        // of a kernel: attend, add, zero or delta; of a wait: the slot; of a copy: in or out
	Step       Step          // of a kernel or message
	Bytes      int64         // of a message or copy
	Stats      *Stats        // of a pass
}

// Timed is a Backend that knows when its kernels ran. Those of others are taken to begin
// when they were enqueued and the one before was done, and to end when that was noticed.
type Timed interface {
	// StartTiming is called before the kernels whose times are asked for, when none is in
	// flight.
	StartTiming() error
	// Ran tells how long ago that began and ended which was enqueued between two marks of
	// Record; Query has reported to as passed, not many marks ago.
	Ran(from, to Event) (began, ended time.Duration, err error)
}

// Timeline records what an Exec does, by the host's monotonic clock. Not safe for
// concurrent use.
type Timeline struct {
	Spans []Span

	zero     time.Time
	pass     Pass
	busy     time.Time     // since when kernels have been in flight
	last     time.Duration // end of the newest kernel
	kernels  []openKernel  // enqueued and not known to be done, oldest first
	messages []openMessage
}

type openKernel struct {
	span     Span
	from, to Event
}

type openMessage struct {
	request Request
	span    Span
}

// NewTimeline starts a clock.
func NewTimeline() *Timeline { return &Timeline{zero: time.Now()} }

// Now is the time on the Timeline's clock.
func (t *Timeline) Now() time.Duration { return time.Since(t.zero) }

// Copied records a copy of a message's piece.
func (t *Timeline) Copied(name string, bytes int64, began, ended time.Time) {
	t.add(Span{Kind: SpanCopy, Name: name, Bytes: bytes}, began, ended)
}

func (t *Timeline) add(s Span, began, ended time.Time) {
	s.Pass, s.Begin, s.End = t.pass, began.Sub(t.zero), ended.Sub(t.zero)
	t.Spans = append(t.Spans, s)
}

// Trace has the runs from now on recorded, by nil not any more. Run allocates then.
func (e *Exec) Trace(t *Timeline) {
	e.timeline = t
	e.timed, _ = e.backend.(Timed)
}

// traceStart begins the timing of a run's kernels.
func (e *Exec) traceStart(p Pass) error {
	if e.timeline == nil {
		return nil
	}
	e.timeline.pass = p
	if e.timed == nil {
		return nil
	}
	if err := e.timed.StartTiming(); err != nil {
		return fmt.Errorf("ring: rank %d: start the timing of kernels: %w", e.comm.Rank(), err)
	}
	return nil
}

// mark is where a kernel begins, if op is one, that is about to be enqueued.
func (e *Exec) mark(op Op) (Event, error) {
	if e.timed == nil || e.timeline == nil || op == Recv || op == Send || op == Wait {
		return 0, nil
	}
	return e.backend.Record()
}

// traceKernel notes the kernel that was just enqueued, behind the mark from.
func (e *Exec) traceKernel(name string, s Step, from Event) {
	if t := e.timeline; t != nil {
		t.kernels = append(t.kernels, openKernel{Span{Kind: SpanKernel, Pass: t.pass, Begin: t.Now(), Name: name, Step: s}, from, e.last})
	}
}

// traceKernels notes which kernels are done. Kernels lie within the time for which the host
// knew of one: a backend's clock may be another one.
func (e *Exec) traceKernels() error {
	t := e.timeline
	if t == nil {
		return nil
	}
	for len(t.kernels) > 0 {
		k := &t.kernels[0]
		done, err := e.backend.Query(k.to)
		if err != nil || !done {
			return err
		}
		now := t.Now()
		begin, end := k.span.Begin, now
		if e.timed != nil {
			began, ended, err := e.timed.Ran(k.from, k.to)
			if err != nil {
				return err
			}
			now = t.Now()
			begin, end = now-began, now-ended
		}
		if !e.idle.IsZero() {
			now = e.idle.Sub(t.zero)
		}
		least := max(t.busy.Sub(t.zero), t.last)
		k.span.Begin = min(max(begin, least), now)
		k.span.End = min(max(end, k.span.Begin), now)
		t.last = k.span.End
		t.Spans = append(t.Spans, k.span)
		t.kernels = t.kernels[1:]
	}
	if !e.idle.IsZero() && !t.busy.IsZero() {
		t.add(Span{Kind: SpanBusy}, t.busy, e.idle)
		t.busy = time.Time{}
	}
	return nil
}

// traceMessage notes that a message was posted.
func (e *Exec) traceMessage(s *boundStep, r Request, now time.Time) {
	if t := e.timeline; t != nil {
		kind := SpanSend
		if s.Op == Recv {
			kind = SpanRecv
		}
		t.messages = append(t.messages, openMessage{r, Span{Kind: kind, Pass: t.pass, Begin: now.Sub(t.zero), Step: s.Step, Bytes: s.bytes}})
	}
}

// traceDone notes that a message is known to be done.
func (e *Exec) traceDone(r Request, now time.Time) {
	t := e.timeline
	if t == nil {
		return
	}
	for i, m := range t.messages {
		if m.request == r {
			m.span.End = now.Sub(t.zero)
			t.Spans = append(t.Spans, m.span)
			t.messages = append(t.messages[:i], t.messages[i+1:]...)
			return
		}
	}
}

// traceWait notes a wait that began at a time; zero: there was nothing to wait for.
func (e *Exec) traceWait(why *boundStep, began time.Time) {
	if e.timeline == nil || began.IsZero() {
		return
	}
	s := Span{Kind: SpanWait, Name: "kernels"}
	if why != nil {
		s.Name, s.Step = why.Slot.String(), why.Step
	}
	e.timeline.add(s, began, time.Now())
}

// traceEnd notes a pass.
func (e *Exec) traceEnd(began, ended time.Time) {
	if e.timeline != nil {
		stats := e.stats
		e.timeline.add(Span{Kind: SpanPass, Name: e.timeline.pass.String(), Stats: &stats}, began, ended)
	}
}
