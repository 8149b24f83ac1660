package cmd

import (
	"encoding/csv"
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"ringattn/report"
	"ringattn/ring"
)

// testTick is what the times of these tests are counted in.
const testTick = time.Millisecond

// Two ranks, two repeats: on every rank the parts add up to the slowest rank's time.
func TestBreakdown(t *testing.T) {
	ranks := []benchRank{
		{Stats: []ring.Stats{
			{Wall: 10 * testTick, Kernel: 6 * testTick, Exposed: 3 * testTick, Staging: 1 * testTick},
			{Wall: 20 * testTick, Kernel: 8 * testTick, Exposed: 11 * testTick, Staging: 3 * testTick},
		}},
		{Stats: []ring.Stats{
			{Wall: 14 * testTick, Kernel: 14 * testTick},
			{Wall: 16 * testTick, Kernel: 14 * testTick, Exposed: 2 * testTick},
		}},
	}
	two := 2.0
	even := 14.0 / 10.5
	want := report.Breakdown{
		Kernel:  report.Spread{Min: 0.007, Mean: 0.0105, Max: 0.014, Imbalance: &even},
		Wait:    report.Spread{Min: 0.001, Mean: 0.003, Max: 0.005, Imbalance: new(float64)},
		Staging: report.Spread{Min: 0, Mean: 0.001, Max: 0.002, Imbalance: &two},
		Sync:    report.Spread{Min: 0.002, Mean: 0.002, Max: 0.002, Imbalance: new(float64)},
		Other:   report.Spread{Min: 0, Mean: 0.0005, Max: 0.001, Imbalance: &two},
	}
	*want.Wait.Imbalance, *want.Sync.Imbalance = 5.0/3, 1
	got := newBreakdown(ranks)
	close := func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }
	for k, g := range got.List() {
		w := want.List()[k]
		if !close(g.Min, w.Min) || !close(g.Mean, w.Mean) || !close(g.Max, w.Max) || !close(*g.Imbalance, *w.Imbalance) {
			t.Errorf("%s: %+v (%g), want %+v (%g)", report.Entries[k], *g, *g.Imbalance, *w, *w.Imbalance)
		}
	}
	if !close(got.Whole(), 0.017) { // means of 14 and 20
		t.Errorf("a pass of %g s, want 0.017", got.Whole())
	}
}

// What is hidden is counted over all ranks, of a pass and of each round; a round without messages
// has no overlap.
func TestOverlap(t *testing.T) {
	round := func(hidden, exposed time.Duration) ring.RoundStats {
		return ring.RoundStats{Hidden: hidden * testTick, Exposed: exposed * testTick}
	}
	var x report.Result
	addOverlap(&x, []benchRank{
		{Rounds: []ring.RoundStats{round(3, 1), round(0, 0), round(2, 0)}},
		{Rounds: []ring.RoundStats{round(1, 3), round(0, 0)}},
	})
	if x.Overlap == nil || *x.Overlap != 0.6 || len(x.OverlapByRound) != 3 || *x.OverlapByRound[0] != 0.5 || x.OverlapByRound[1] != nil || *x.OverlapByRound[2] != 1 {
		t.Errorf("%+v", x)
	}
	sum := addRounds(addRounds(nil, []ring.RoundStats{round(1, 2)}), []ring.RoundStats{round(3, 4), round(5, 6)})
	if len(sum) != 2 || sum[0] != round(4, 6) || sum[1] != round(5, 6) {
		t.Errorf("rounds %v", sum)
	}
}

// The figures of a real bench fit together, in its records and in its other formats.
func TestBreakdownOfBench(t *testing.T) {
	args := []string{"bench", "--ranks", "3", "--threads", "1", "--seq", "200", "--repeats", "3", "--log-level", "error"}
	out, code, err := execute(append(args, "--output", "jsonl", "--expect", "forward.breakdown_s.kernel.imbalance>=1", "--expect", "backward.overlap<=1")...)
	if code != exitOK {
		t.Fatalf("exit %d: %v", code, err)
	}
	passes := map[string]float64{} // by pass: the mean of the slowest ranks
	results := 0
	for line := range strings.Lines(out) {
		var s sampleRecord
		if err := json.Unmarshal([]byte(line), &s); err == nil && s.Type == "sample" {
			passes[s.Pass] += s.slowest() / 3
			continue
		}
		var r resultRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Type != "result" {
			continue
		}
		results++
		b := r.Breakdown
		close := func(what string, a, b float64) {
			if math.Abs(a-b) > 1e-9*passes[r.Pass] {
				t.Errorf("%s: %s: %g, want %g: %s", r.Pass, what, a, b, line)
			}
		}
		close("pass", b.Whole(), passes[r.Pass])
		close("kernel", b.Kernel.Mean, r.KernelS)
		close("exposed", b.Wait.Mean+b.Staging.Mean, r.ExposedS)
		for k, s := range b.List() {
			if s.Min < 0 || s.Min > s.Mean*(1+1e-12) || s.Mean > s.Max*(1+1e-12) || (s.Imbalance == nil) != (s.Max == 0) {
				t.Errorf("%s: %+v", report.Entries[k], s)
			}
		}
		if r.Overlap == nil || *r.Overlap < 0 || *r.Overlap > 1 || len(r.OverlapByRound) < 2 {
			t.Errorf("overlap: %s", line)
		}
	}
	if results != 2 {
		t.Fatalf("%d results", results)
	}
	out, _, _ = execute(append(args, "--output", "csv")...)
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(rows) != 3 || len(rows[0]) != 24+1+4*len(report.Entries)+6 || rows[0][25] != "kernel_min_s" || rows[1][25] == "" {
		t.Errorf("csv: %v, %v", err, rows)
	}
	out, _, _ = execute(args...)
	for _, entry := range report.Entries {
		if rows := regexp.MustCompile(" "+entry+" +[0-9]").FindAllString(out, -1); len(rows) != 2 {
			t.Errorf("%s is not there for both passes:\n%s", entry, out)
		}
	}
}
