package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ringattn/trace"
)

// traceOf is a trace of so many ranks, each of which sends a message to the next one while a
// kernel runs, and waits for another.
func traceOf(t *testing.T, ranks int, label string) *trace.Trace {
	t.Helper()
	x := new(trace.Trace)
	for rank := range ranks {
		next, before := (rank+1)%ranks, (rank+ranks-1)%ranks
		at := int64(1_000_000 + 1000*rank)
		add := func(kind trace.Kind, begin, end int64, args trace.Args) {
			x.Spans = append(x.Spans, trace.Span{Rank: rank, Kind: kind, Name: string(kind), Begin: at + begin, End: at + end, Args: args})
		}
		x.Info.Ranks = append(x.Info.Ranks, trace.Rank{Rank: rank, Host: "h", Clock: trace.Clock{Bound: int64(1000 * rank)}})
		add(trace.Pass, 0, 100_000, trace.Args{Label: label, KernelNS: 50_000, ExposedNS: 30_000, HiddenNS: 10_000})
		add(trace.Busy, 10_000, 40_000, trace.Args{})
		add(trace.Kernel, 12_000, 40_000, trace.Args{})
		add(trace.Busy, 70_000, 90_000, trace.Args{})
		add(trace.Wait, 30_000, 75_000, trace.Args{})
		add(trace.Send, 5_000, 20_000, trace.Args{From: &rank, To: &next, Bytes: 8})
		add(trace.Recv, 15_000, 70_000, trace.Args{From: &before, To: &rank, Bytes: 8})
		add(trace.Copy, 60_000, 65_000, trace.Args{Bytes: 8})
	}
	var file bytes.Buffer
	if err := x.Write(&file); err != nil {
		t.Fatal(err)
	}
	x, err := trace.Read("test", &file)
	if err == nil {
		err = x.Check()
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// A timeline counts from the beginning of the first rank; a rank that computes does not wait.
func TestTimelines(t *testing.T) {
	all := Timelines(traceOf(t, 2, "causal, forward"))
	if len(all) != 1 || all[0].Label != "causal, forward" || all[0].end() != 101_000 {
		t.Fatalf("%+v", all)
	}
	r := all[0].Ranks[1]
	for name, x := range map[string]struct{ got, want []Range }{
		"pass":     {[]Range{r.Pass}, []Range{{1000, 101_000}}},
		"busy":     {r.Busy, []Range{{11_000, 41_000}, {71_000, 91_000}}},
		"waits":    {r.Waits, []Range{{41_000, 71_000}}},
		"messages": {r.Messages, []Range{{6000, 71_000}}},
		"copies":   {r.Copies, []Range{{61_000, 66_000}}},
	} {
		if diff := cmp.Diff(x.want, x.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	want := []Arrow{{1, 0, 6000, 70_000}, {0, 1, 5000, 71_000}}
	slices.SortFunc(all[0].Arrow, func(a, b Arrow) int { return a.To - b.To })
	if diff := cmp.Diff(want, all[0].Arrow); diff != "" {
		t.Errorf("arrows (-want +got):\n%s", diff)
	}
}

func TestRanges(t *testing.T) {
	got := union([]Range{{5, 7}, {1, 3}, {2, 4}, {4, 5}, {9, 10}})
	if diff := cmp.Diff([]Range{{1, 7}, {9, 10}}, got); diff != "" {
		t.Errorf("union (-want +got):\n%s", diff)
	}
	for _, c := range []struct{ a, b, want []Range }{
		{[]Range{{0, 10}}, nil, []Range{{0, 10}}},
		{[]Range{{0, 10}}, []Range{{0, 10}}, nil},
		{[]Range{{0, 10}, {20, 30}}, []Range{{2, 3}, {8, 22}, {30, 31}}, []Range{{0, 2}, {3, 8}, {22, 30}}},
	} {
		if diff := cmp.Diff(c.want, without(c.a, c.b)); diff != "" {
			t.Errorf("%v without %v (-want +got):\n%s", c.a, c.b, diff)
		}
	}
}

// The page of a trace, alone and beside results, is whole; what has no room is said to be left
// out.
func TestPageOfTraces(t *testing.T) {
	const hostile = `docs:<script>"&`
	alone := new(Study)
	for i := range mostTimelines + 1 {
		alone.Traces = append(alone.Traces, traceOf(t, mostRows+4, fmt.Sprint(hostile, i)))
	}
	beside := merged(t, goldenRecords(t)...)
	beside.Traces = alone.Traces[:1]
	for name, s := range map[string]*Study{"alone": alone, "beside results": beside} {
		page := htmlOf(t, s)
		figures := 0
		for _, e := range elements(t, page) {
			if e.Name.Local == "script" {
				t.Errorf("%s: a label became an element", name)
			}
			if e.Name.Local == "svg" && strings.Contains(attribute(e, "aria-label"), "what ranks did in "+hostile) {
				figures++
			}
		}
		if want := min(len(s.Traces), mostTimelines); figures != want || !strings.Contains(page, "the first 16 of 20 ranks") {
			t.Errorf("%s: %d timelines, want %d", name, figures, want)
		}
		if strings.Contains(page, "Charts of the first") != (len(s.Traces) > mostTimelines) || strings.Contains(page, "NaN") {
			t.Errorf("%s: the page does not say what it leaves out", name)
		}
		if strings.Contains(page, "What ran") != (s == beside) {
			t.Errorf("%s: runs without runs, or none with them", name)
		}
		var text strings.Builder
		if err := s.Text(&text); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(text.String(), "20 ranks, clocks aligned to 19.0 us"); got != len(s.Traces) || strings.Count(text.String(), "25.0") < 20 {
			t.Errorf("%s:\n%s", name, text.String())
		}
	}
}
