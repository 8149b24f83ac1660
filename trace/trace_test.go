package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

// sample is two ranks that exchange two messages each way while their kernels run; rank 1's
// clock is 1 ms ahead and runs 1% faster.
func sample() *Trace {
	t := &Trace{Info: Info{Version: "test", Args: []string{"run"}, Ranks: []Rank{
		{Rank: 0, Host: "a", Backend: "cpu"},
		{Rank: 1, Host: "b", Backend: "cpu", Clock: NewClock(Offset{At: 0, Offset: 1_000_000, Bound: 50}, Offset{At: 1_000_000, Offset: 1_010_000, Bound: 40})},
	}}}
	for rank := range 2 {
		from, to := rank, 1-rank
		clock := t.Info.Ranks[rank].Clock
		own := func(common int64) int64 { // a common time on the rank's clock
			if rank == 0 {
				return common
			}
			return common + 1_000_000 + common/100
		}
		add := func(kind Kind, name string, begin, end int64, args Args) {
			t.Spans = append(t.Spans, Span{Rank: rank, Kind: kind, Name: name, Begin: clock.Common(own(begin)), End: clock.Common(own(end)), Args: args})
		}
		kernel := own(80_000) - own(10_000)
		add(Kernel, "attend", 10_000, 40_000, Args{})
		add(Kernel, "attend", 40_000, 70_000, Args{})
		add(Busy, "in flight", 10_000, 80_000, Args{})
		add(Wait, "wait kv1", 15_000, 85_000, Args{})
		add(Send, "kv", 12_000, 50_000, Args{From: &from, To: &to, Tag: 8, Bytes: 100})
		add(Send, "kv", 13_000, 30_000, Args{From: &from, To: &to, Tag: 8, Bytes: 200})
		add(Recv, "kv", 5_000, 49_000, Args{From: &to, To: &from, Tag: 8, Bytes: 100})
		add(Recv, "kv", 6_000, 60_000, Args{From: &to, To: &from, Tag: 8, Bytes: 200})
		add(Pass, "forward", 0, 90_000, Args{Label: "forward", KernelNS: kernel})
	}
	return t
}

func written(t *testing.T, x *Trace) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := x.Write(&file); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func read(t *testing.T, text []byte) *Trace {
	t.Helper()
	x, err := Read("test", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// What is written can be read, and is as it was.
func TestRoundTrip(t *testing.T) {
	want := sample()
	got := read(t, written(t, want))
	if err := got.Check(); err != nil {
		t.Error(err)
	}
	if got.Info.Ranks[1].Clock != want.Info.Ranks[1].Clock || got.Info.Clock != ClockMethod {
		t.Errorf("the metadata are %+v", got.Info)
	}
	sums := func(x *Trace) (n, begins, ends int64) {
		for _, s := range x.Spans {
			n, begins, ends = n+1, begins+s.Begin*int64(1+s.Rank), ends+s.End*int64(1+s.Rank)
		}
		return
	}
	n, b, e := sums(got)
	if wn, wb, we := sums(want); n != wn || b != wb || e != we {
		t.Errorf("%d spans, begins %d, ends %d; want %d, %d, %d", n, b, e, wn, wb, we)
	}
}

// Rank 1's clock is put on rank 0's, drift and all.
func TestClocksAreAligned(t *testing.T) {
	c := NewClock(Offset{At: 1000, Offset: 500, Bound: 7}, Offset{At: 2000, Offset: 600, Bound: 9})
	for own, want := range map[int64]int64{1500: 1000, 2600: 2000, 2050: 1500, 400: 0} {
		if got := c.Common(own); got != want {
			t.Errorf("%d of the rank's clock is %d, want %d", own, got, want)
		}
	}
	if c.Bound != 9 || math.Abs(c.Drift-1e5) > 1e-6 {
		t.Errorf("bound %d, drift %g", c.Bound, c.Drift)
	}
}

// Chrome's format: complete events with a process and a thread, each with a name; a tail and a
// head of each arrow.
func TestFormat(t *testing.T) {
	var file struct {
		TraceEvents []map[string]any `json:"traceEvents"`
	}
	if err := json.Unmarshal(written(t, sample()), &file); err != nil {
		t.Fatal(err)
	}
	phases := map[string]int{}
	names := map[[2]float64]string{}
	for _, e := range file.TraceEvents {
		phases[e["ph"].(string)]++
		at := [2]float64{e["pid"].(float64), e["tid"].(float64)}
		if e["name"] == "thread_name" {
			names[at] = e["args"].(map[string]any)["name"].(string)
		}
		if e["ph"] == "X" && (e["ts"] == nil || e["dur"] == nil || names[at] == "") {
			t.Errorf("no time, or a track without a name: %v", e)
		}
	}
	if phases["X"] != 18 || phases["s"] != 4 || phases["f"] != 4 {
		t.Errorf("phases %v", phases)
	}
	var tracks []string
	for tid := 1.0; names[[2]float64{0, tid}] != ""; tid++ {
		tracks = append(tracks, names[[2]float64{0, tid}])
	}
	if got := strings.Join(tracks, ", "); got != "steps, kernels, send, send 2, receive, receive 2" {
		t.Errorf("tracks: %s", got)
	}
}

// Check objects to whatever is changed of a good file.
func TestCheckObjects(t *testing.T) {
	good := written(t, sample())
	find := func(x *Trace, rank int, kind Kind) *Span {
		for i := range x.Spans {
			if s := &x.Spans[i]; s.Rank == rank && s.Kind == kind {
				return s
			}
		}
		t.Fatalf("no %s of rank %d", kind, rank)
		return nil
	}
	drop := func(x *Trace, s *Span) {
		for i := range x.Spans {
			if &x.Spans[i] == s {
				x.Spans = append(x.Spans[:i], x.Spans[i+1:]...)
				return
			}
		}
	}
	for name, change := range map[string]func(*Trace){
		"no receive":                func(x *Trace) { drop(x, find(x, 1, Recv)) },
		"no send":                   func(x *Trace) { drop(x, find(x, 1, Send)) },
		"other bytes":               func(x *Trace) { find(x, 0, Recv).Args.Bytes++ },
		"other tag":                 func(x *Trace) { find(x, 0, Recv).Args.Tag++ },
		"another peer":              func(x *Trace) { self := 0; find(x, 0, Recv).Args.From = &self },
		"another number":            func(x *Trace) { find(x, 0, Send).Args.ID = 99 },
		"one number twice":          func(x *Trace) { find(x, 0, Send).Args.ID = find(x, 1, Send).Args.ID },
		"received before sent":      func(x *Trace) { s := find(x, 0, Recv); s.Begin, s.End = 0, 11_800 },
		"no pass":                   func(x *Trace) { drop(x, find(x, 1, Pass)) },
		"two passes":                func(x *Trace) { x.Spans = append(x.Spans, *find(x, 0, Pass)) },
		"a wait beyond its pass":    func(x *Trace) { find(x, 1, Wait).End = 91_000 },
		"a kernel of no busy time":  func(x *Trace) { s := find(x, 0, Kernel); s.Begin, s.End = 2_000, 4_000 },
		"a kernel that is too long": func(x *Trace) { find(x, 0, Kernel).End = 45_000 },
		"less in flight":            func(x *Trace) { find(x, 0, Busy).End -= 1_000 },
		"more kernel time":          func(x *Trace) { find(x, 1, Pass).Args.KernelNS += 2_000 },
		"no tail":                   func(x *Trace) { x.arrows = x.arrows[1:] },
		"an arrow elsewhere":        func(x *Trace) { x.arrows[0].at = 89_000 },
		"an arrow of another track": func(x *Trace) { x.arrows[0].track = 1 },
		"an arrow twice":            func(x *Trace) { x.arrows = append(x.arrows, x.arrows[0]) },
	} {
		x := read(t, good)
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		change(x)
		if err := x.Check(); err == nil {
			t.Errorf("%s: no objection", name)
		}
	}
	// Within the bound of the clocks a message may seem to be there early.
	x := read(t, good)
	s := find(x, 0, Recv)
	s.Begin, s.End = 0, 11_960
	x.arrows = nil
	if err := x.Check(); err == nil || !strings.Contains(err.Error(), "tails") {
		t.Errorf("received 40 ns before sent, with clocks good to 50: %v", err)
	}
}

// A message with one end is not written.
func TestUnmatched(t *testing.T) {
	for i := range sample().Spans {
		x := sample()
		if k := x.Spans[i].Kind; k != Send && k != Recv {
			continue
		}
		x.Spans[i].Args.Bytes++
		if err := x.Write(new(bytes.Buffer)); !errors.Is(err, ErrUnmatched) {
			t.Errorf("other bytes: %v", err)
		}
		x = sample()
		x.Spans = append(x.Spans[:i], x.Spans[i+1:]...)
		if err := x.Write(new(bytes.Buffer)); !errors.Is(err, ErrUnmatched) {
			t.Errorf("one end: %v", err)
		}
	}
}

// A file that is not whole, or another one, is refused.
func TestReadRefuses(t *testing.T) {
	good := written(t, sample())
	for n := range good[:len(good)-1] {
		if n%7 > 0 && n < len(good)-300 {
			continue
		}
		if _, err := Read("test", bytes.NewReader(good[:n])); err == nil && n < len(good)-1 {
			t.Fatalf("%d of %d bytes are a trace", n, len(good))
		}
	}
	for name, text := range map[string]string{
		"another format": strings.Replace(string(good), FormatName, "other", 1), "something behind": string(good) + "{}",
		"no rank": strings.Replace(string(good), `"pid":1,"tid":1,"ts"`, `"pid":7,"tid":1,"ts"`, 1), "Chrome's other form": "[]",
		"no number": strings.Replace(string(good), `"ts":5.000`, `"ts":1e99`, 1),
	} {
		if text == string(good) {
			t.Fatalf("%s: nothing was changed", name)
		}
		if _, err := Read("test", strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
