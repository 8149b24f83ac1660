package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"ringattn/inproc"
	"ringattn/report"
	"ringattn/ring"
)

// linkRecords are those in lines of bench.
func linkRecords(t *testing.T, text string) (links []report.Link) {
	t.Helper()
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, `{"type":"link"`) {
			continue
		}
		var l report.Link
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	return links
}

// overLinks measures messages on so many ranks, whose transport is that of the options.
func overLinks(b benchOptions, ranks int, timeout time.Duration, options ...inproc.Option) (string, error) {
	b.pass, b.output = "forward", "jsonl"
	if err := b.validate(); err != nil {
		return "", err
	}
	ends := inproc.New(ranks, options...)
	var out strings.Builder
	o := testOptions("zigzag", "cpu")
	o.logLevel = "disabled"
	err := runInProcess(context.Background(), o, &out, ranks, "test", func(ctx context.Context, w *world) error {
		w.Comm = ring.Comm{Transport: ends[w.Rank()], Timeout: timeout}
		return w.bench(ctx, &b, nil)
	})
	return out.String(), err
}

// Figures fit together, on every number of ranks that has a link, for messages of all kinds of
// sizes: shorter and longer than the buffers that they are made in, and of whole words or not.
func TestLinks(t *testing.T) {
	out, code, err := execute("bench", "--ranks", "3", "--ranks-sweep", "--links", "1,4KiB", "--links", "16777229", "--repeats", "4",
		"--output", "jsonl", "--log-level", "error")
	if code != exitOK {
		t.Fatalf("exit %d: %v", code, err)
	}
	want := []int64{1, 4096, 16777229}
	links := linkRecords(t, out)
	if len(links) != 6 || strings.Count(out, `"type":"meta"`) != 2 {
		t.Fatalf("%d links, want three on 2 ranks and three on 3\n%s", len(links), out)
	}
	for i, l := range links {
		if l.Bytes != want[i%3] || l.Ranks != 2+i/3 || l.Wrong != 0 || l.Transport != "inproc" || len(l.RepeatS) != 4 || len(l.RankS) != l.Ranks {
			t.Fatalf("link %d: %+v", i, l)
		}
		if slices.Min(l.RepeatS) <= 0 || slices.Min(l.RankS) <= 0 || *newQuantiles(l.RepeatS) != *l.TimeS || slices.Max(l.RankS) > l.TimeS.Max {
			t.Errorf("link %d: %+v, %+v", i, l, l.TimeS)
		}
		for seconds, rate := range map[float64]float64{l.TimeS.Median: l.GBPerS, newQuantiles(l.RankS).Median: l.MedianRankGBPerS} {
			if got := rate * 1e9 * seconds / float64(l.Bytes); math.Abs(got-1) > 1e-12 {
				t.Errorf("link %d: %g GB/s in %g s: %g messages", i, rate, seconds, got)
			}
		}
	}
}

// A rank cannot be faster than its link. How much slower it is depends on this machine.
func TestLinksOfAModel(t *testing.T) {
	const bytes, rate = 100_003, 20e6
	out, err := overLinks(benchOptions{links: sizes{bytes}, repeats: 3}, 3, time.Minute, inproc.Link(rate))
	if err != nil {
		t.Fatal(err)
	}
	l := linkRecords(t, out)[0]
	if most := rate / 1e9 * (1 + 1e-6); l.GBPerS > most || l.MedianRankGBPerS > most || l.TimeS.Min < bytes/rate*(1-1e-6) {
		t.Errorf("a link of %g GB/s carries %+v, %+v", rate/1e9, l, l.TimeS)
	}
}

// One byte of the last message to come that is changed, or that keeps what the message before
// had there; and a message that does not come: no figure.
func TestLinksThatAreBroken(t *testing.T) {
	const bytes, ranks, repeats = 100_003, 3, 2
	for fault, lost := range map[string]int64{"": 0, "a byte is changed": 0, "a byte does not come": 1, "none does": bytes} {
		var messages atomic.Int64
		carry := inproc.Copy(func(dst, src unsafe.Pointer, n int64) error {
			to, from := unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n)
			if n != bytes || messages.Add(1) < ranks*(linkWarmup+repeats) {
				copy(to, from)
				return nil
			}
			copy(to, from[:n-lost])
			if fault == "a byte is changed" {
				to[bytes/2] ^= 4
			}
			return nil
		})
		b := benchOptions{links: sizes{bytes}, repeats: repeats, out: filepath.Join(t.TempDir(), "out"), resume: true}
		out, err := overLinks(b, ranks, time.Minute, carry)
		l := linkRecords(t, out)
		if n := messages.Load(); n != ranks*(linkWarmup+repeats) || len(l) != 1 {
			t.Fatalf("%s: %d messages, %d links", fault, n, len(l))
		}
		if fault == "" {
			if err != nil || l[0].Wrong != 0 || l[0].TimeS == nil {
				t.Errorf("nothing is broken: %v, %+v", err, l[0])
			}
			continue
		}
		if _, code, err := execute("report", b.out); code != exitWrong || err.Error() != "1 result of 1 wrong" {
			t.Errorf("%s, report: exit %d: %v", fault, code, err)
		}
		if !errors.Is(err, errWrong) || l[0].Wrong != 1 || l[0].TimeS != nil || l[0].GBPerS != 0 || l[0].MedianRankGBPerS != 0 || len(l[0].RepeatS)+len(l[0].RankS) > 0 {
			t.Errorf("%s: %v, %+v", fault, err, l[0])
		}
		if out, err := overLinks(b, ranks, time.Minute, carry); !errors.Is(err, errWrong) || out != "" {
			t.Errorf("%s, resumed: %v\n%s", fault, err, out)
		}
	}
	out, err := overLinks(benchOptions{links: sizes{bytes}, repeats: repeats}, ranks, 200*time.Millisecond,
		inproc.Drop(func(src, _, _ int, n int64) bool { return n == bytes && src == 1 }))
	if !errors.Is(err, ring.ErrTimeout) || len(linkRecords(t, out)) != 0 {
		t.Errorf("a message that does not come: %v\n%s", err, out)
	}
}

// The table has links above shapes; Go benchmarks have a line a repeat.
func TestLinksTable(t *testing.T) {
	out, code, err := execute("bench", "--ranks", "2", "--links", "3KiB", "--seq", "50", "--repeats", "1", "--log-level", "error")
	links, shapes := strings.Index(out, "\n    3 KiB      2      1  "), strings.Index(out, "\n    mask   S ")
	if code != exitOK || links < 0 || shapes < links {
		t.Errorf("exit %d (%v)\n%s", code, err, out)
	}
	out, code, err = execute("bench", "--ranks", "2", "--links", "3KiB", "--repeats", "3", "--output", "go", "--log-level", "error")
	if code != exitOK || strings.Count(out, "\nBenchmarkLink/bytes=3072/ranks=2/transport=inproc 1 ") != 3 || strings.Count(out, " GB/s\n") != 3 {
		t.Errorf("exit %d (%v)\n%s", code, err, out)
	}
	var small strings.Builder
	x := linkRecord{"link", report.Link{Bytes: 1, Ranks: 2, Transport: "host", RepeatS: []float64{4e-3}}}
	if err := (benchGo{&small}).link(x); err != nil || small.String() != "BenchmarkLink/bytes=1/ranks=2/transport=host 1 4000000 ns/op 2.5e-07 GB/s\n" {
		t.Errorf("a small message: %v, %s", err, small.String())
	}
}

func TestLinksRefusals(t *testing.T) {
	for args, want := range map[string]string{
		"--links 0": "no size", "--links 3MB": "no size", "--links 1KiB,": "no size", "--links 99999999999GiB": "no size",
		"--links 1KiB,1024": "twice", "--links 1KiB --batch 2": "--batch", "--links 1KiB --pass forward": "--pass",
		"--links 1KiB --seq 8 --output csv": "csv", "--links 1KiB --ranks-sweep=1": "no link", "--links 1KiB --machine 1,1": "--machine", "--links 1KiB --ulysses 2": "--ulysses", "--repeats 2": "--seq",
	} {
		_, code, err := execute(append([]string{"bench", "--ranks", "2", "--log-level", "error"}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit %d: %v", args, code, err)
		}
	}
	if _, code, err := execute("bench", "--ranks", "1", "--links", "1KiB"); code != exitUsage {
		t.Errorf("one rank: exit %d: %v", code, err)
	}
	t.Setenv("RINGATTN_TEST_FREE_BYTES", "1000000")
	if _, code, err := execute("bench", "--ranks", "2", "--links", "64MiB"); code != exitEnvironment || !strings.Contains(err.Error(), "not enough memory") {
		t.Errorf("little memory: exit %d: %v", code, err)
	}
}

// What bench predicts is what plan does; a machine changes no layout and schedule that are given.
func TestBenchPredicts(t *testing.T) {
	shape := []string{"--ranks", "3", "--seq", "90", "--mask", "full", "--layout", "contiguous", "--schedule", "ring"}
	machine := []string{"--machine", "0.5,0.001,7"}
	plan, code, err := execute(slices.Concat([]string{"plan", "--json"}, shape, machine)...)
	var planned planReport
	if code != exitOK || json.Unmarshal([]byte(plan), &planned) != nil {
		t.Fatalf("exit %d (%v)\n%s", code, err, plan)
	}
	bench := slices.Concat([]string{"bench", "--repeats", "1", "--log-level", "error"}, shape)
	with, code, err := execute(slices.Concat(bench, machine, []string{"--output", "jsonl"})...)
	if code != exitOK {
		t.Fatal(err)
	}
	without, code, err := execute(slices.Concat(bench, []string{"--output", "jsonl"})...)
	if code != exitOK {
		t.Fatal(err)
	}
	_, _, _, predicted := records(t, with)
	_, _, _, plain := records(t, without)
	if len(predicted) != 2 || len(plain) != 2 {
		t.Fatalf("%d and %d results", len(predicted), len(plain))
	}
	for i, x := range predicted {
		if x.PredictedS == nil || x.Machine == nil || *x.Machine != (report.Machine{TFLOPS: 0.5, LinkGBPerS: 0.001, NodeLinkGBPerS: 7, StartS: 1e-5}) {
			t.Fatalf("%+v", x)
		}
		if y := plain[i]; y.PredictedS != nil || y.Machine != nil || y.Layout != x.Layout || y.Schedule != x.Schedule || y.BytesSent != x.BytesSent {
			t.Errorf("without a machine: %+v", y)
		}
	}
	if got, want := *predicted[0].PredictedS+*predicted[1].PredictedS, *planned.PredictedS; math.Abs(got-want) > 1e-12*want {
		t.Errorf("both passes are predicted to take %g s, by plan %g s", got, want)
	}
	for name, want := range map[string]bool{"without": false, "with": true} {
		args := bench
		if want {
			args = slices.Concat(bench, machine)
		}
		if out, code, err := execute(args...); code != exitOK || strings.Contains(out, "pred ms") != want {
			t.Errorf("%s a machine: exit %d (%v)\n%s", name, code, err, out)
		}
	}
}
