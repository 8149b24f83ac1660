package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"ringattn/ring"
	"ringattn/trace"
)

func (o *options) addTrace(f *pflag.FlagSet, what string) {
	f.StringVar(&o.trace, "trace", "", "write what all ranks did, on one clock, to this file, which Perfetto opens and report --trace draws: "+what)
}

// tracer records what a rank does, for --trace. The nil *tracer records nothing.
type tracer struct {
	world    *world
	path     string
	timeline *ring.Timeline
	before   []ring.ClockOffset // on rank 0
	started  time.Time
	backend  string
	timed    bool
	passes   int
	kept     []ring.Span
	labels   []string // by pass
	numbers  []int    // of the pass of each of kept
}

// startTrace begins a trace where --trace asks for one: it makes sure that the file can be
// written, and compares the clocks. All ranks call it together.
func (w *world) startTrace(ctx context.Context) (*tracer, error) {
	if w.options.trace == "" {
		return nil, nil
	}
	t := &tracer{world: w, path: w.options.trace, started: time.Now(), timeline: ring.NewTimeline()}
	if _, err := fromRoot(ctx, w, func() (bool, error) { return true, tryAside("--trace", t.path) }); err != nil {
		return nil, err
	}
	var err error
	t.before, err = w.Clocks(ctx, t.timeline.Now)
	return t, err
}

// record has the passes of a problem recorded.
func (t *tracer) record(a *attention) {
	if t == nil {
		return
	}
	a.exec.Trace(t.timeline)
	t.backend = a.backend.Name()
	_, t.timed = a.backend.(ring.Timed)
	if s := a.links.staged; s != nil {
		s.Copied = func(out bool, bytes int64, began, ended time.Time) {
			name := "in"
			if out {
				name = "out"
			}
			t.timeline.Copied(name, bytes, began, ended)
		}
	}
}

// forget drops what was recorded since keep.
func (t *tracer) forget() {
	if t != nil {
		t.timeline.Spans = t.timeline.Spans[:0]
	}
}

// keep puts what was recorded since forget, one pass or several, into the trace. Label says of
// what they are.
func (t *tracer) keep(label string) {
	if t == nil {
		return
	}
	number := t.passes - 1
	var last ring.Pass
	for i, s := range t.timeline.Spans {
		if i == 0 || s.Pass != last {
			number, last = number+1, s.Pass
			t.labels = append(t.labels, label+s.Pass.String())
		}
		t.kept, t.numbers = append(t.kept, s), append(t.numbers, number)
	}
	t.passes = number + 1
	t.forget()
}

// tracePart is what a rank gives to the file.
type tracePart struct {
	Host, Backend string
	Timed         bool
	Spans         []ring.Span
	Numbers       []int
}

// end compares the clocks again, and has rank 0 write the file: whole, or not at all. All
// ranks call it together; none returns without an error before the file is there.
func (t *tracer) end(ctx context.Context) error {
	if t == nil {
		return nil
	}
	w := t.world
	after, err := w.Clocks(ctx, t.timeline.Now)
	if err != nil {
		return err
	}
	parts, err := gatherAll(ctx, w, tracePart{w.host.Host, t.backend, t.timed, t.kept, t.numbers})
	if err != nil {
		return err
	}
	_, err = fromRoot(ctx, w, func() (bool, error) {
		if !slices.ContainsFunc(parts, func(p tracePart) bool { return len(p.Spans) > 0 }) {
			w.log.Warn().Msgf("nothing was timed: no trace is written to %s", t.path)
			return true, nil
		}
		whole := t.merge(parts, after)
		return true, writeAside("--trace", t.path, whole.Write)
	})
	return err
}

// merge puts the ranks' parts on one clock.
func (t *tracer) merge(parts []tracePart, after []ring.ClockOffset) *trace.Trace {
	all := &trace.Trace{Info: trace.Info{Version: versionLine(), Args: os.Args[1:], Started: t.started.UTC().Format(time.RFC3339)}}
	for r, part := range parts {
		clock := trace.NewClock(traceOffset(t.before[r]), traceOffset(after[r]))
		how := "the backend's clock: of a GPU by its events, of CPU threads by the host's"
		if !part.Timed {
			how = "from enqueued, or the one before done, until that was noticed"
		}
		all.Info.Ranks = append(all.Info.Ranks, trace.Rank{Rank: r, Host: part.Host, Backend: part.Backend, Kernels: how, Clock: clock})
		for i, s := range part.Spans {
			x := trace.Span{Rank: r, Kind: trace.Kind(s.Kind), Begin: clock.Common(int64(s.Begin)), End: clock.Common(int64(s.End))}
			x.Args = trace.Args{Number: part.Numbers[i], Bytes: s.Bytes}
			t.describe(&x, &s)
			all.Spans = append(all.Spans, x)
		}
	}
	return all
}

func traceOffset(o ring.ClockOffset) trace.Offset {
	return trace.Offset{At: int64(o.At), Offset: int64(o.Offset), Bound: int64(o.Bound)}
}

// describe fills in what a span of a rank is called, and what is known of it.
func (t *tracer) describe(x *trace.Span, s *ring.Span) {
	step := func() {
		x.Args.Round, x.Args.Owner, x.Args.Range, x.Args.Pairs = &s.Step.Round, &s.Step.Owner, s.Step.Range.String(), s.Step.Pairs
	}
	switch s.Kind {
	case ring.SpanPass:
		x.Name, x.Args.Label = s.Pass.String(), t.labels[x.Args.Number]
		x.Args.KernelNS, x.Args.ExposedNS = int64(s.Stats.Kernel), int64(s.Stats.Exposed)
		x.Args.StagingNS, x.Args.HiddenNS = int64(s.Stats.Staging), int64(s.Stats.Hidden)
	case ring.SpanBusy:
		x.Name = "in flight"
	case ring.SpanWait:
		x.Name = "wait " + s.Name
		if s.Step.Op == ring.Wait {
			x.Args.Round = &s.Step.Round
		}
	case ring.SpanKernel:
		x.Name = s.Name
		if s.Name != "delta" {
			step()
		}
	case ring.SpanSend, ring.SpanRecv:
		what := "kv"
		switch {
		case s.Step.Tensor != ring.NoTensor:
			what = s.Step.Tensor.String()
		case s.Step.Slot.Grad:
			what = "grad"
		}
		step()
		x.Args.Tag = s.Step.Tag()
		if s.Kind == ring.SpanSend {
			x.Name = fmt.Sprintf("%s to rank %d", what, s.Step.Peer)
			x.Args.From, x.Args.To = &x.Rank, &s.Step.Peer
		} else {
			x.Name = fmt.Sprintf("%s from rank %d", what, s.Step.Peer)
			x.Args.From, x.Args.To = &s.Step.Peer, &x.Rank
		}
	case ring.SpanCopy:
		x.Name = "copy " + s.Name
	}
}

// tryAside finds out whether writeAside is likely to succeed.
func tryAside(flag, path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return usageError("%s: %s is no regular file", flag, path)
	}
	f, err := createAside(flag, path)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// createAside makes the file that is to become path.
func createAside(flag, path string) (*os.File, error) {
	aside := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.tmp", filepath.Base(path), os.Getpid()))
	f, err := os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		var at *os.PathError
		if errors.As(err, &at) {
			err = at.Err
		}
		return nil, usageError("%s: %s: %v", flag, path, err)
	}
	return f, nil
}

// writeAside writes a file beside path, then renames it: it appears complete or not at all.
func writeAside(flag, path string, write func(io.Writer) error) error {
	f, err := createAside(flag, path)
	if err != nil {
		return err
	}
	if err = errors.Join(write(f), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", flag, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
