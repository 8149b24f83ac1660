package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// event is one of Chrome's trace events. Times are in microseconds, with three decimals.
type event struct {
	Name  string  `json:"name"`
	Cat   Kind    `json:"cat,omitempty"`
	Phase string  `json:"ph"`
	PID   int     `json:"pid"`
	TID   int     `json:"tid"`
	TS    *micros `json:"ts,omitempty"`
	Dur   *micros `json:"dur,omitempty"`
	ID    int     `json:"id,omitempty"` // of an arrow
	Bind  string  `json:"bp,omitempty"`
	Args  any     `json:"args,omitempty"`
}

// micros are nanoseconds, written as microseconds to the nanosecond.
type micros int64

// MarshalJSON writes a decimal fraction.
func (m micros) MarshalJSON() ([]byte, error) {
	sign, n := "", int64(m)
	if n < 0 {
		sign, n = "-", -n
	}
	return fmt.Appendf(nil, "%s%d.%03d", sign, n/1000, n%1000), nil
}

// UnmarshalJSON reads a number of at most three decimals.
func (m *micros) UnmarshalJSON(text []byte) error {
	x, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return err
	}
	if x < -maxMicros || x > maxMicros {
		return fmt.Errorf("a time of %s microseconds", text)
	}
	// Below 2^52 ns, 52 days, a float64 of microseconds tells nanoseconds apart.
	*m = micros(math.Round(x * 1000))
	return nil
}

const maxMicros = 1 << 42

// tracks are what a rank's spans stand on; of those that overlap there are as many as it takes.
var tracks = []struct {
	kinds []Kind
	name  string
	lanes bool // spans overlap
}{
	{[]Kind{Pass, Wait}, "steps", false},
	{[]Kind{Busy, Kernel}, "kernels", false},
	{[]Kind{Send}, "send", true},
	{[]Kind{Recv}, "receive", true},
	{[]Kind{Copy}, "copy", true},
}

// ErrUnmatched is wrapped by the error of Write where a send has no receive, or a receive no
// send of its size.
var ErrUnmatched = errors.New("a message with one end")

// match gives sends and their receives a common number. Messages of one pass, from one rank
// to another with one tag, are received in the order in which they were sent.
func (t *Trace) match() error {
	type way struct{ number, from, to, tag int }
	index := map[way][2][]*Span{}
	var ways []way
	for i := range t.Spans {
		s := &t.Spans[i]
		if s.Kind != Send && s.Kind != Recv {
			continue
		}
		if s.Args.From == nil || s.Args.To == nil {
			return fmt.Errorf("trace: rank %d: %s without its ranks", s.Rank, s.Kind)
		}
		w := way{s.Args.Number, *s.Args.From, *s.Args.To, s.Args.Tag}
		ends, ok := index[w]
		if !ok {
			ways = append(ways, w)
		}
		end := 0
		if s.Kind == Recv {
			end = 1
		}
		ends[end] = append(ends[end], s)
		index[w] = ends
	}
	slices.SortFunc(ways, func(a, b way) int {
		return cmp.Or(a.number-b.number, a.from-b.from, a.to-b.to, a.tag-b.tag)
	})
	id := 0
	for _, w := range ways {
		ends := index[w]
		for _, end := range ends {
			// Stable: of two that begin at one time the first stands first.
			slices.SortStableFunc(end, func(a, b *Span) int { return cmp.Compare(a.Begin, b.Begin) })
		}
		for i := range max(len(ends[0]), len(ends[1])) {
			if i >= len(ends[0]) || i >= len(ends[1]) {
				return fmt.Errorf("trace: %w: %d sends and %d receives from rank %d to rank %d, tag %d, in pass %d",
					ErrUnmatched, len(ends[0]), len(ends[1]), w.from, w.to, w.tag, w.number)
			}
			send, recv := ends[0][i], ends[1][i]
			if send.Args.Bytes != recv.Args.Bytes {
				return fmt.Errorf("trace: %w: send %d of %d bytes from rank %d to rank %d, tag %d, in pass %d is received as %d",
					ErrUnmatched, i, send.Args.Bytes, w.from, w.to, w.tag, w.number, recv.Args.Bytes)
			}
			id++
			send.Args.ID, recv.Args.ID = id, id
		}
	}
	return nil
}

// Write writes a file. The spans of a rank that are a message have been posted in the order in
// which they stand.
func (t *Trace) Write(out io.Writer) error {
	if err := t.match(); err != nil {
		return err
	}
	t.Info.Format, t.Info.Clock = FormatName, ClockMethod
	w := &writer{out: bufio.NewWriterSize(out, 1<<20)}
	w.text(`{"displayTimeUnit":"ms","otherData":`)
	w.json(t.Info)
	w.text(",\n\"traceEvents\":[\n")
	byRank := map[int][]*Span{}
	for i := range t.Spans {
		byRank[t.Spans[i].Rank] = append(byRank[t.Spans[i].Rank], &t.Spans[i])
	}
	for _, r := range t.Info.Ranks {
		w.rank(r, byRank[r.Rank])
	}
	w.text("\n]}\n")
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if w.err != nil {
		return fmt.Errorf("trace: write: %w", w.err)
	}
	return nil
}

// writer keeps the first error.
type writer struct {
	out   *bufio.Writer
	begun bool // there is an event
	err   error
}

func (w *writer) text(s string) {
	if w.err == nil {
		_, w.err = w.out.WriteString(s)
	}
}

func (w *writer) json(x any) {
	text, err := json.Marshal(x)
	if w.err == nil {
		w.err = err
	}
	w.text(string(text))
}

func (w *writer) event(e event) {
	if w.begun {
		w.text(",\n")
	}
	w.begun = true
	w.json(e)
}

func (w *writer) about(what string, pid, tid int, args any) {
	w.event(event{Name: what, Phase: "M", PID: pid, TID: tid, Args: args})
}

// rank writes a process: its tracks one after another, each in order of time.
func (w *writer) rank(r Rank, spans []*Span) {
	name := func(s string) any { return map[string]string{"name": s} }
	order := func(n int) any { return map[string]int{"sort_index": n} }
	w.about("process_name", r.Rank, 0, name(fmt.Sprintf("rank %d, %s, %s", r.Rank, r.Host, r.Backend)))
	w.about("process_sort_index", r.Rank, 0, order(r.Rank))
	tid := 0
	for _, track := range tracks {
		var mine []*Span
		for _, s := range spans {
			if slices.Contains(track.kinds, s.Kind) {
				mine = append(mine, s)
			}
		}
		// What others lie in comes first.
		slices.SortStableFunc(mine, func(a, b *Span) int {
			return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(b.End, a.End), slices.Index(track.kinds, a.Kind)-slices.Index(track.kinds, b.Kind))
		})
		lanes := [][]*Span{mine}
		if track.lanes {
			lanes = lanesOf(mine)
		}
		for i, lane := range lanes {
			if len(lane) == 0 {
				continue
			}
			tid++
			title := track.name
			if i > 0 {
				title += " " + strconv.Itoa(i+1)
			}
			w.about("thread_name", r.Rank, tid, name(title))
			w.about("thread_sort_index", r.Rank, tid, order(tid))
			for _, s := range lane {
				w.span(s, tid)
			}
		}
	}
}

func (w *writer) span(s *Span, tid int) {
	begin, dur := micros(s.Begin), micros(s.End-s.Begin)
	w.event(event{Name: s.Name, Cat: s.Kind, Phase: "X", PID: s.Rank, TID: tid, TS: &begin, Dur: &dur, Args: s.Args})
	arrow := event{Name: "message", Cat: "message", PID: s.Rank, TID: tid, ID: s.Args.ID, TS: &begin}
	switch s.Kind {
	case Send:
		arrow.Phase = "s"
	case Recv:
		// Its head belongs to the span around it, which ends a moment later.
		last := micros(max(s.Begin, s.End-1))
		arrow.Phase, arrow.Bind, arrow.TS = "f", "e", &last
	default:
		return
	}
	w.event(arrow)
}

// lanesOf puts spans, in order of time, on tracks on which they do not overlap.
func lanesOf(spans []*Span) [][]*Span {
	var lanes [][]*Span
	for _, s := range spans {
		free := slices.IndexFunc(lanes, func(lane []*Span) bool { return lane[len(lane)-1].End <= s.Begin })
		if free < 0 {
			free = len(lanes)
			lanes = append(lanes, nil)
		}
		lanes[free] = append(lanes[free], s)
	}
	return lanes
}
