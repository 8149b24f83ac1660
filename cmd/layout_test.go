package cmd

import (
	"encoding/json"
	"strings"
	"testing"

	"ringattn/ring"
	"ringattn/segments"
)

// What auto takes, with predictions and, for many ranks, without.
func TestAutoChooses(t *testing.T) {
	docs := "docs:../testdata/lengths/prose-and-manuals.txt"
	for _, c := range []struct{ args, layout, schedule string }{
		{"--ranks 1 --mask causal", "contiguous", "ring"},
		{"--ranks 8 --mask causal", "zigzag", "ring"},
		{"--ranks 8 --mask full", "contiguous", "ring"},
		{"--ranks 8 --mask window:1024", "contiguous", "ring"},
		{"--ranks 8 --mask " + docs, "balanced", "direct"},
		{"--ranks 8 --layout zigzag --mask " + docs, "zigzag", ""},
		{"--ranks 8 --schedule direct --mask causal", "zigzag", "direct"},
		{"--ranks 4 --ranks-per-node 2 --mask full --machine 400,50,0.2", "contiguous", "two-level"},
		{"--ranks 80 --mask causal", "zigzag", "ring"},
		{"--ranks 80 --mask full", "contiguous", "ring"},
		{"--ranks 80 --ranks-per-node 8 --mask full", "contiguous", "two-level"},
		{"--ranks 80 --mask " + docs, "balanced", "direct"},
		{"--ranks 80 --layout contiguous --mask " + docs, "contiguous", "direct"},
	} {
		args := append(strings.Fields("plan --json --seq 262144 --heads 32/4 --head-dim 128 --dtype bf16"), strings.Fields(c.args)...)
		out, code, err := execute(args...)
		if code != exitOK {
			t.Errorf("%s: exit %d: %v", c.args, code, err)
			continue
		}
		var got planReport
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		if got.Layout != c.layout || c.schedule != "" && got.Schedule != c.schedule {
			t.Errorf("%s: %s, %s, want %s, %s", c.args, got.Layout, got.Schedule, c.layout, c.schedule)
		}
		if (got.PredictedS != nil) != strings.Contains(c.args, "--machine") {
			t.Errorf("%s: predicted_s is %v", c.args, got.PredictedS)
		}
	}
}

// Where CPUs compute, auto reckons with CPUs: work that is short for a GPU is long for them.
func TestAutoReckonsWithWhatComputes(t *testing.T) {
	cpu, gpu := hostFacts{CPUModel: "Xeon"}, hostFacts{CPUModel: "Xeon", GPU: "GPU-1", GPUModel: "H200 sm_90"}
	of := func(headDim int, hosts ...hostFacts) float64 {
		w := &world{options: &options{backend: "auto"}, hosts: hosts}
		return w.usualMachine(headDim).Flops
	}
	for name, x := range map[string]struct{ got, want float64 }{
		"CPUs":            {of(64, cpu, cpu), 100e9},
		"GPUs":            {of(64, gpu, gpu), 400e12},
		"one CPU":         {of(64, gpu, cpu), 100e9},
		"rows for no GPU": {of(4000, gpu, gpu), 100e9},
	} {
		if x.got != x.want {
			t.Errorf("%s: %g FLOP/s, want %g", name, x.got, x.want)
		}
	}
	for machine, want := range map[string]string{"": "zigzag", "--machine=400,50": "contiguous"} {
		args := append(strings.Fields("bench --ranks 4 --seq 2048 --heads 2/1 --head-dim 32 --mask causal --repeats 1 --output jsonl"), strings.Fields(machine)...)
		out, code, err := execute(args...)
		if code != exitOK || !strings.Contains(out, `"layout":"`+want+`"`) {
			t.Errorf("%q: not %s, exit %d: %v\n%s", machine, want, code, err, out)
		}
	}
}

// Padding inside a document does not make two of it, and where nobody sees anything the first
// choice is as good as any.
func TestAutoAndPadding(t *testing.T) {
	const tokens = 800
	pad := make([]int64, tokens)
	pad[300] = 1
	m := segments.Mask{Causal: true, Rows: []segments.Row{segments.NewRow(tokens, nil, nil, pad)}}
	o := &options{layout: "auto", schedule: "auto"}
	if got := o.usual(m, ring.NodesOf(80, 80)); got != (choice{"zigzag", "ring"}) {
		t.Errorf("one document with padding inside: %v", got)
	}
	for i := range pad {
		pad[i] = 1
	}
	m.Rows[0] = segments.NewRow(tokens, nil, nil, pad)
	p := &problem{mask: m, tokens: tokens, batch: 1, shape: ring.Shape{Heads: 1, KVHeads: 1, HeadDim: 8}}
	if got, err := o.choose(p, 4, nil, usualGPU); err != nil || got != (choice{"contiguous", "ring"}) {
		t.Errorf("padding alone: %v, %v", got, err)
	}
}

// A machine that is none is refused, and of a table that is refused nothing is printed.
func TestPlanRefuses(t *testing.T) {
	for _, args := range []string{
		"--ranks 4 --seq 100 --machine 1e-320,1e-320", "--ranks 4 --seq 100 --machine 400,1e10",
		"--compare --ranks 16 --seq 100 --ulysses 3", "--compare --ranks 4 --seq 100 --machine 0,1",
	} {
		if out, code, err := execute(append([]string{"plan"}, strings.Fields(args)...)...); code != exitUsage || out != "" {
			t.Errorf("%s: exit %d, %v, and %q", args, code, err, out)
		}
	}
}

func TestPlanCompares(t *testing.T) {
	args := strings.Fields("plan --compare --ranks 4 --ranks-per-node 2 --seq 512 --mask causal --mask full")
	out, code, err := execute(args...)
	if code != exitOK {
		t.Fatalf("exit %d: %v", code, err)
	}
	rows := map[string]int{}
	for line := range strings.Lines(out) {
		for _, mask := range []string{"causal, 1 document", "full, 1 document"} {
			if strings.Contains(line, mask) {
				rows[mask]++
			}
		}
	}
	if rows["causal, 1 document"] != 9 || rows["full, 1 document"] != 9 {
		t.Errorf("rows: %v\n%s", rows, out)
	}
	out, code, err = execute(append(args, "--schedule", "direct", "--layout", "balanced", "--wire-gradients", "bf16")...)
	if n := strings.Count(out, " direct, bf16 "); code != exitOK || n != 2 {
		t.Errorf("%d rows for one layout and schedule of two masks, exit %d: %v", n, code, err)
	}
}
