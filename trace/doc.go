// Package trace keeps what the ranks of a job did, and when, in one file that Perfetto and
// chrome://tracing open: Chrome's trace event format, JSON. It writes such files and reads
// them again.
//
// A process of the file is a rank, a track (a thread of the file) one thing that the rank
// does: steps (passes, and the waits in them), kernels, messages that it sends, messages that
// it receives, copies between device and host memory. What would overlap on a track without
// lying within each other stands on further tracks. An arrow leads from a send to its receive.
//
// All times are on rank 0's clock. Clocks of other ranks are aligned by what rank 0 measured
// of them before the job and after it; Clock says how, and how wrong that may be.
package trace

import "math"

// Kind says what a Span is of; it is the category of its event.
type Kind string

// The kinds of spans: a pass of a rank; its waits in it; from when a kernel was enqueued until
// none is known to be unfinished; one kernel; messages; copies between device and host memory.
const (
	Pass   Kind = "pass"
	Wait   Kind = "wait"
	Busy   Kind = "busy"
	Kernel Kind = "kernel"
	Send   Kind = "send"
	Recv   Kind = "recv"
	Copy   Kind = "copy"
)

// Trace is a file.
type Trace struct {
	Info  Info
	Spans []Span

	arrows []arrow // as Read found them
}

// arrow is one end of a message's arrow.
type arrow struct {
	id, rank, track int
	at              int64
	head            bool
}

// Info is the metadata of a file.
type Info struct {
	Format  string   `json:"format"` // FormatName
	Version string   `json:"version"`
	Args    []string `json:"args"`
	Started string   `json:"started"` // RFC 3339
	Clock   string   `json:"clock"`   // ClockMethod
	Ranks   []Rank   `json:"ranks"`
}

// FormatName is what Info.Format says.
const FormatName = "ringattn trace 1"

// ClockMethod says how the clocks of ranks were aligned.
const ClockMethod = "All times are on rank 0's monotonic clock. Before the first and after the last traced pass rank 0 " +
	"exchanged messages with each rank: it sent at t1, the rank answered with its time t2, and rank 0 had the answer at t3. " +
	"Of all exchanges the one with the least t3-t1 gives the offset t2-(t1+t3)/2, which is wrong by at most (t3-t1)/2, the " +
	"bound. Offsets between are interpolated. bound_ns is the larger bound: it holds at both ends, and between them as far as " +
	"a clock's rate was constant."

// Rank says who a rank is, and how its clock compares with rank 0's.
type Rank struct {
	Rank    int    `json:"rank"`
	Host    string `json:"host"`
	Backend string `json:"backend"`
	Kernels string `json:"kernels"` // how their times were found
	Clock
}

// Clock is how a rank's clock compares with rank 0's: measured before and after, and what
// follows from the two.
type Clock struct {
	Before Offset  `json:"before"`
	After  Offset  `json:"after"`
	Bound  int64   `json:"bound_ns"`  // times of the rank may be wrong by so much
	Drift  float64 `json:"drift_ppm"` // by how much faster it runs, in millionths
}

// Offset is how far a rank's clock is ahead of rank 0's at a time of rank 0's clock, and by
// how much that may be wrong, in ns.
type Offset struct {
	At     int64 `json:"at_ns"`
	Offset int64 `json:"offset_ns"`
	Bound  int64 `json:"bound_ns"`
}

// Span is something that took time on a rank.
type Span struct {
	Rank       int
	Kind       Kind
	Name       string
	Begin, End int64 // ns on rank 0's clock
	Args       Args
	Track      int // of the rank in the file; Write chooses it
}

// Args is what is known of a span besides; what its kind does not have is left out.
type Args struct {
	Number int    `json:"number"` // of the pass, from 0 in the file
	Label  string `json:"label,omitempty"`

	// Of a pass, in ns: what bench and run say of it.
	KernelNS  int64 `json:"kernel_ns,omitempty"`
	ExposedNS int64 `json:"exposed_ns,omitempty"`
	StagingNS int64 `json:"staging_ns,omitempty"`
	HiddenNS  int64 `json:"hidden_ns,omitempty"`

	// Of a message.
	ID    int   `json:"id,omitempty"` // of the send and of its receive, from 1 in the file; Write sets it
	From  *int  `json:"from,omitempty"`
	To    *int  `json:"to,omitempty"`
	Tag   int   `json:"tag,omitempty"`
	Bytes int64 `json:"bytes,omitempty"` // of a copy too

	// Of a kernel, message or wait: the step of the plan.
	Round *int   `json:"round,omitempty"`
	Owner *int   `json:"owner,omitempty"`
	Range string `json:"tokens,omitempty"` // of the owner
	Pairs int64  `json:"pairs,omitempty"`
}

// NewClock is what follows from two measurements.
func NewClock(before, after Offset) Clock {
	c := Clock{Before: before, After: after, Bound: max(before.Bound, after.Bound)}
	if after.At > before.At {
		c.Drift = float64(after.Offset-before.Offset) / float64(after.At-before.At) * 1e6
	}
	return c
}

// Common gives a time of the rank's clock on rank 0's. Order is kept: what does not overlap on
// the rank's clock does not on rank 0's.
func (c Clock) Common(t int64) int64 {
	// The rank's own times of the two measurements.
	first, last := c.Before.At+c.Before.Offset, c.After.At+c.After.Offset
	drift := 0.0
	if last > first {
		drift = float64(c.After.Offset-c.Before.Offset) * float64(t-first) / float64(last-first)
	}
	return t - c.Before.Offset - int64(math.Round(drift))
}
