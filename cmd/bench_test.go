package cmd

import (
	"encoding/json"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ringattn/cases"
	"ringattn/report"
	"ringattn/ring"
	"ringattn/segments"
)

// K1: the FLOPs of a shape, by visible pairs, whatever the number of ranks.
func TestFLOPs(t *testing.T) {
	shape := ring.Shape{Heads: 16, KVHeads: 16, HeadDim: 128}
	for mask, want := range map[string]float64{"causal": 68_736_253_952, "full": 137_438_953_472, "window:128": 4_228_382_720} {
		spec, err := cases.ParseMask(mask)
		if err != nil {
			t.Fatal(err)
		}
		m, err := spec.Build(4096, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, ranks := range []int{1, 4} {
			b, err := segments.NewBatch(segments.Zigzag(4096, ranks), m)
			if err != nil {
				t.Fatal(err)
			}
			var pairs int64
			for q := range ranks {
				for kv := range ranks {
					pairs += b.Need(q, kv).Pairs
				}
			}
			if got := passFLOPs(shape, pairs, ring.Forward); got != want {
				t.Errorf("%s, %d ranks: %.0f forward, want %.0f", mask, ranks, got, want)
			}
			if got := passFLOPs(shape, pairs, ring.Backward); got != 2.5*want {
				t.Errorf("%s, %d ranks: %.0f backward, want %.0f", mask, ranks, got, 2.5*want)
			}
		}
	}
}

func TestQuantiles(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    report.Quantiles
	}{
		{[]float64{3}, report.Quantiles{Min: 3, Median: 3, P95: 3, Max: 3}},
		{[]float64{4, 1, 2, 3}, report.Quantiles{Min: 1, Median: 2.5, P95: 4, Max: 4}},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, report.Quantiles{Min: 1, Median: 10.5, P95: 19, Max: 20}},
	} {
		if got := *newQuantiles(c.samples); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.samples, got, c.want)
		}
	}
}

// schemaType is what this test reads of docs/bench.schema.json.
type schemaType struct {
	Required   []string
	Properties map[string]json.RawMessage
}

// Every record has the fields that the published schema has, and no others; the
// numbers fit together.
func TestBenchRecords(t *testing.T) {
	text, err := os.ReadFile("../docs/bench.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Defs map[string]schemaType `json:"$defs"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	out, code, err := execute("bench", "--ranks", "2", "--seq", "64,100", "--mask", "causal", "--mask", "window:9", "--repeats", "3", "--output", "jsonl", "--layout", "contiguous", "--log-level", "error",
		"--links", "1KiB,3000")
	if code != exitOK {
		t.Fatalf("exit %d: %v", code, err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(out) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		kind, _ := record["type"].(string)
		counts[kind]++
		want, ok := schema.Defs[kind]
		if !ok || len(want.Required) != len(want.Properties) {
			t.Fatalf("no type %q in the schema, or optional fields: %s", kind, line)
		}
		var got []string
		for name := range record {
			got = append(got, name)
		}
		slices.Sort(got)
		slices.Sort(want.Required)
		if !slices.Equal(got, want.Required) {
			t.Errorf("%s has %v, the schema %v", kind, got, want.Required)
		}
		if kind != "result" {
			continue
		}
		var r resultRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		n := float64(r.Seq)
		pairs := n * (n + 1) / 2
		if strings.Contains(r.Mask, "window:9") {
			pairs = 9*n - 36
		}
		flops := 4 * float64(r.Heads*r.HeadDim) * pairs
		if r.Pass == "backward" {
			flops *= 2.5
		}
		if rate := flops / 2 / r.TimeS.Median / 1e12; math.Abs(rate-r.TFLOPSPerRank) > 1e-9*rate {
			t.Errorf("%g TFLOP/s a rank, want %g: %s", r.TFLOPSPerRank, rate, line)
		}
		if got := r.TokensPerS * r.TimeS.Median; math.Abs(got-n) > 1e-9*n || r.EnergyJPerToken != nil {
			t.Errorf("%g tokens in a pass, want %g, and no energy of CPUs: %s", got, n, line)
		}
		// Two ranks: one of them sends at least half.
		if sent := r.LinkGBPerS * 1e9 * r.TimeS.Median / float64(r.BytesSent); sent < 0.5-1e-9 || sent > 1+1e-9 {
			t.Errorf("a link carries %g of all bytes: %s", sent, line)
		}
		if r.TimeS.Min > r.TimeS.Median || r.TimeS.Median > r.TimeS.P95 || r.TimeS.P95 > r.TimeS.Max || r.TimeS.Min <= 0 ||
			r.BytesSent <= 0 || r.MemoryBytes <= 0 || r.Wrong != 0 || r.Transport != "inproc" {
			t.Errorf("%s", line)
		}
	}
	if counts["meta"] != 1 || counts["rank"] != 2 || counts["result"] != 8 || counts["sample"] != 24 || counts["link"] != 2 {
		t.Errorf("records: %v", counts)
	}
}

// Threads that share a CPU have no peak that could be measured.
func TestBenchCrowded(t *testing.T) {
	out, code, err := execute("bench", "--ranks", "1", "--threads", strconv.Itoa(runtime.NumCPU()+1), "--seq", "50", "--repeats", "1", "--pass", "forward", "--output", "jsonl", "--log-level", "error")
	if code != exitOK || !strings.Contains(out, `"peak_tflops":0,`) || !strings.Contains(out, `"peak_fraction":null`) {
		t.Errorf("exit %d: %v\n%s", code, err, out)
	}
}

func TestBenchTable(t *testing.T) {
	out, code, err := execute("bench", "--ranks", "1", "--seq", "50", "--repeats", "2", "--pass", "forward", "--backend", "ref", "--log-level", "error")
	if code != exitOK || !strings.Contains(out, "#wrong") || strings.Contains(out, "backward\t") || strings.Count(out, "\n") != 14 || !strings.Contains(out, "exposed wait") {
		t.Errorf("exit %d: %v\n%s", code, err, out)
	}
	// K1: the convention stands above the figures.
	if !strings.Contains(out, "FLOPs 4 x heads x head_dim x visible pairs, backward 2.5 x that") || !strings.Contains(out, "schedule") {
		t.Errorf("the heading is\n%s", out)
	}
	for _, args := range [][]string{
		{"--pass", "sideways"}, {"--repeats", "0"}, {"--warmup", "-1"}, {"--output", "xml"}, {"--window", "3"}, {"--mask", "docs:none"},
	} {
		if _, code, err := execute(append([]string{"bench", "--ranks", "1", "--seq", "8"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit %d: %v", args, code, err)
		}
	}
	if _, code, _ := execute("bench", "--ranks", "1"); code != exitUsage {
		t.Errorf("without --seq: exit %d", code)
	}
}
