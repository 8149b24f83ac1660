package cmd

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ringattn/cases"
	"ringattn/report"
	"ringattn/ring"
)

// records reads the lines of bench --output jsonl by type.
func records(t *testing.T, text string) (metas []report.Meta, ranks int, samples []report.Sample, results []report.Result) {
	t.Helper()
	for line := range strings.Lines(text) {
		var kind struct{ Type string }
		err := json.Unmarshal([]byte(line), &kind)
		switch kind.Type {
		case "meta":
			metas = append(metas, report.Meta{})
			err = json.Unmarshal([]byte(line), &metas[len(metas)-1])
		case "rank":
			ranks++
		case "sample":
			samples = append(samples, report.Sample{})
			err = json.Unmarshal([]byte(line), &samples[len(samples)-1])
		case "result":
			results = append(results, report.Result{})
			err = json.Unmarshal([]byte(line), &results[len(results)-1])
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return metas, ranks, samples, results
}

// Each number of ranks is a run of its own in the records, which report reads.
func TestBenchRanksSweep(t *testing.T) {
	for flag, want := range map[string][]int{
		"--ranks-sweep": {1, 2, 4, 6}, "--ranks-sweep=3,1": {3, 1}, "--ranks-sweep=6": {6},
	} {
		out := filepath.Join(t.TempDir(), "out")
		text, code, err := execute("bench", "--ranks", "6", flag, "--seq", "40,50", "--repeats", "2", "--threads", "1", "--out", out,
			"--output", "jsonl", "--log-level", "error")
		if code != exitOK {
			t.Fatalf("%s: %v", flag, err)
		}
		metas, ranks, samples, results := records(t, text)
		of := 0
		for _, n := range want {
			of += n
		}
		if len(metas) != len(want) || ranks != of || len(results) != 4*len(want) || len(samples) != 8*len(want) {
			t.Fatalf("%s: %d metas, %d ranks, %d samples, %d results", flag, len(metas), ranks, len(samples), len(results))
		}
		for i, n := range want {
			if metas[i].World != 6 {
				t.Errorf("%s: a world of %d", flag, metas[i].World)
			}
			for _, r := range results[4*i : 4*i+4] {
				if r.Ranks != n || r.Wrong != 0 || !(r.TFLOPSPerRank > 0) {
					t.Errorf("%s, %d ranks: %+v", flag, n, r)
				}
			}
			for _, s := range samples[8*i : 8*i+8] {
				if len(s.TimeS) != n || slices.Min(s.TimeS) <= 0 {
					t.Errorf("%s, %d ranks: %+v", flag, n, s)
				}
			}
		}
		tables, code, err := execute("report", out)
		if code != exitOK || len(want) == 4 && !strings.Contains(tables, "strong scaling") {
			t.Errorf("%s: exit %d (%v)\n%s", flag, code, err, tables)
		}
	}
}

// A sweep over ranks that is resumed leaves out what is there; a point on some ranks of a
// larger world is another one than that of a world of so many.
func TestBenchRanksSweepResumes(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for i, c := range []struct {
		args string
		want int
	}{
		{"--ranks 4 --ranks-sweep=1,2", 4},
		{"--ranks 4 --ranks-sweep", 6},
		{"--ranks 4 --ranks-sweep --shard 0/2", 6},
		{"--ranks 4", 6},
		{"--ranks 2", 8},
	} {
		args := append([]string{"bench", "--seq", "40", "--repeats", "1", "--threads", "1", "--out", out, "--resume", "--log-level", "error"}, strings.Fields(c.args)...)
		if _, code, err := execute(args...); code != exitOK {
			t.Fatal(err)
		}
		got := points(t, out)
		if len(got) != c.want || len(slices.Compact(got)) != c.want {
			t.Errorf("%d: %s: %d points, want %d, each once", i, c.args, len(got), c.want)
		}
	}
}

func TestBenchRanksSweepRefusals(t *testing.T) {
	for args, want := range map[string]string{
		"--ranks-sweep=1,5": "there are 4 ranks", "--ranks-sweep=0": "numbers of ranks", "--ranks-sweep=2,2": "twice", "--ranks-sweep=1,x": "numbers of ranks",
		"--ranks-sweep --shards 10,10,10,10": "--shards", "--ranks-sweep 1,2": "takes no argument",
		// Of 3 ranks two levels of two are no plan, whatever the world's is.
		"--ranks-sweep=3 --schedule two-level --ranks-per-node 2": "as many on each",
	} {
		_, code, err := execute(append([]string{"bench", "--ranks", "4", "--seq", "40", "--repeats", "1", "--log-level", "error"}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit %d: %v", args, code, err)
		}
	}
}

// The key has what computes, not what was asked for.
func TestBenchKeyHasWhatComputes(t *testing.T) {
	key := func(backend string, headDim int, hosts ...hostFacts) string {
		w := &world{options: &options{backend: backend}, hosts: hosts, threads: 1}
		w.Comm = ring.Comm{Transport: sized{ranks: len(hosts)}}
		r := benchReport{whole: w, world: w, options: &benchOptions{}}
		return r.key(&cases.Shape{Tokens: 10, HeadDim: headDim}, ring.Forward)
	}
	gpu := func(model string) hostFacts {
		return hostFacts{Host: "a", CPUModel: "Xeon avx512", GPU: "GPU-1", GPUModel: model}
	}
	cpu := hostFacts{Host: "a", CPUModel: "Xeon avx512"}
	same := func(what, a, b string, want bool) {
		t.Helper()
		if (a == b) != want {
			t.Errorf("%s: %s and %s", what, a, b)
		}
	}
	auto := key("auto", 64, cpu, cpu)
	same("auto on a CPU, and cpu", auto, key("cpu", 64, cpu, cpu), true)
	same("auto with and without a GPU", auto, key("auto", 64, gpu("H200 sm_90"), gpu("H200 sm_90")), false)
	same("a GPU for one rank", auto, key("auto", 64, cpu, gpu("H200 sm_90")), false)
	same("GPUs of two kinds", key("auto", 64, gpu("H200 sm_90")), key("auto", 64, gpu("A100 sm_80")), false)
	same("auto on a GPU, and cuda", key("auto", 64, gpu("H200 sm_90")), key("cuda", 64, gpu("H200 sm_90")), true)
	same("a head_dim that no GPU takes", key("auto", 600, gpu("H200 sm_90")), key("auto", 600, cpu), true)
	same("another CPU", auto, key("auto", 64, cpu, hostFacts{Host: "a", CPUModel: "Xeon avx2"}), false)
	same("the reference", auto, key("ref", 64, cpu, cpu), false)
	same("another host of the kind", auto, key("auto", 64, hostFacts{Host: "b", CPUModel: cpu.CPUModel}, hostFacts{Host: "b", CPUModel: cpu.CPUModel}), true)
}

// sized is a transport that knows nothing but its size.
type sized struct {
	ring.Transport
	ranks int
}

func (s sized) Size() int { return s.ranks }

// K3: a pass takes as long as its slowest rank, whichever that is, and every rank's times
// are there.
func TestBenchTakesTheSlowestRank(t *testing.T) {
	const late = 0.2 // s of a repeat, whose four kernels and more are 50 ms late
	for _, slow := range []int{3, 0} {
		t.Setenv("RINGATTN_TEST_KERNEL_DELAY", strconv.Itoa(slow)+":50ms")
		text, code, err := execute("bench", "--ranks", "4", "--seq", "256", "--repeats", "3", "--warmup", "0", "--pass", "forward", "--layout", "contiguous", "--schedule", "ring",
			"--mask", "full", "--threads", "1", "--output", "jsonl", "--log-level", "error")
		if code != exitOK {
			t.Fatal(err)
		}
		_, _, samples, results := records(t, text)
		if len(samples) != 3 || len(results) != 1 {
			t.Fatalf("%d samples, %d results", len(samples), len(results))
		}
		for _, s := range samples {
			if len(s.TimeS) != 4 || s.TimeS[slow] < late || slices.Max(s.TimeS) != s.TimeS[slow] && slices.Max(s.TimeS) < late {
				t.Errorf("rank %d is late: %v", slow, s.TimeS)
			}
		}
		// The rate is of all ranks' work over the slowest's time.
		r := results[0]
		flops := 4.0 * 4 * 64 * 256 * 256
		if r.TimeS.Min < late || r.TFLOPSPerRank*1e12 > flops/4/late {
			t.Errorf("rank %d is late: %+v, %+v", slow, r, r.TimeS)
		}
	}
}
