package ring

import (
	"runtime"
	"time"
)

// Pace says how a rank waits between two polls of what it waits for.
type Pace int

const (
	// Sleeping leaves the CPU to the kernels, which want it: the rank sleeps between polls.
	Sleeping Pace = iota

	// Polling is for kernels of a Device, which do not want the CPU: the rank polls without
	// a sleep, and gives its CPU to whoever waits for it in between. An MPI that copies
	// messages through shared memory copies only some fragments in a poll (Open MPI 4.1:
	// of 32 KiB): with sleeps 64 MiB went through host memory in 215 ms, 0.3 GB/s, between
	// two H200; on a machine of two cores two ranks exchanged 64 MiB each way in 192 ms
	// with sleeps, and in 25 ms without. And the end of a kernel was seen up to 400 us
	// late, 5 to 10% of a pass of 2 to 4 ms.
	//
	// It sleeps as well where polls win nothing: when for 10 ms nothing has come to an end
	// and no message is under way, and, for 100 ms, when somebody else has had its CPU for
	// as long as only one does that computes. It would be given half of that CPU, to poll.
	Polling
)

// PaceOf is the pace of a rank that computes with b.
func PaceOf(b Backend) Pace {
	if _, device := b.(Device); device {
		return Polling
	}
	return Sleeping
}

// Pauser is what a Transport implements that has a better way to be idle than
// time.Sleep, whose shortest sleep in an idle process is about 1.1 ms.
type Pauser interface {
	// Pause gives the CPU away for about d, or less if something arrives. For 0 it gives it
	// to whoever waits for it, and returns at once where nobody does.
	Pause(d time.Duration)
}

// Backoff paces a loop that polls. Sleeping, it yields for 20 us and then sleeps for 50,
// 100 and at last 200 us between polls, so that ranks that share a CPU leave it to each
// other. The zero value is ready, and Sleeping.
type Backoff struct {
	Pace   Pace
	start  time.Time
	sleep  time.Duration
	shared time.Time // until when Polling sleeps, since the CPU is another's too
}

const (
	backoffSpin  = 20 * time.Microsecond
	backoffFirst = 50 * time.Microsecond
	backoffLast  = 200 * time.Microsecond

	// backoffBusy is how long the sleeps between polls get while a kernel runs, which
	// wants the CPU. With Open MPI over TCP, two ranks of one thread on two cores and an
	// exchange of 80%, the polls took of a core 10% with sleeps of 20 us, 7% with 200 us,
	// 5% with 400 us and 4% with 1 ms, the copying of the messages included; messages of
	// some mebibytes took equally long with all of them, since a socket holds as much as
	// comes in a millisecond. Longer ones save little and are seen at the end of a pass.
	backoffBusy = 400 * time.Microsecond

	// Of Polling: how long it polls with no message under way; what a yield takes when a
	// thread that computes has the CPU for its time slice, some milliseconds, and not when
	// others poll; and how long it then sleeps, so that what it waited is little beside it.
	pollAlone  = 10 * time.Millisecond
	pollSlice  = 500 * time.Microsecond
	pollShared = 100 * time.Millisecond
)

// Restart is to be called where a wait begins and after progress: polls are quick again.
func (b *Backoff) Restart() { b.start, b.sleep = time.Time{}, 0 }

// Pause waits a little before the next poll of t. It has to know whether a kernel of the
// rank runs, and whether a message of it is under way.
func (b *Backoff) Pause(t Transport, kernel, message bool) {
	now := time.Now()
	if b.start.IsZero() {
		b.start = now
	}
	waited := now.Sub(b.start)
	last := backoffLast
	if kernel {
		last = backoffBusy
	}
	if b.Pace == Polling && now.After(b.shared) {
		if message || waited < pollAlone {
			b.yield(t, now)
			return
		}
		last = backoffFirst
	}
	if b.sleep == 0 && waited < backoffSpin {
		runtime.Gosched()
		return
	}
	b.sleep = min(max(2*b.sleep, backoffFirst), last)
	pauseOf(t, b.sleep)
}

// yield gives the CPU to whoever waits for it, and notes if it came back late.
func (b *Backoff) yield(t Transport, now time.Time) {
	pauseOf(t, 0)
	if back := time.Now(); back.Sub(now) > pollSlice {
		b.shared = back.Add(pollShared)
	}
}

// pauseOf sleeps as the transport does best.
func pauseOf(t Transport, d time.Duration) {
	if c, ok := t.(Comm); ok {
		t = c.Transport
	}
	if p, ok := t.(Pauser); ok {
		p.Pause(d)
		return
	}
	if d == 0 {
		runtime.Gosched()
		return
	}
	time.Sleep(d)
}
