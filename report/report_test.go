package report

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden text anew; review the diff")

// run is what a test varies of a run; record makes the lines that bench would print.
type run struct {
	ranks, threads                   int
	cpus, gpu, transport, mpi, build string
	shared                           bool
	timed                            []timed
	key, backend, mask               string
}

type timed struct {
	seq     int
	seconds float64
	wrong   int
	pass    string
}

func (r run) records(t *testing.T) string {
	t.Helper()
	or := func(text, other string) string {
		if text == "" {
			return other
		}
		return text
	}
	var b strings.Builder
	line := func(record map[string]any) {
		text, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", text)
	}
	line(map[string]any{
		"type": "meta", "version": "0.1.0", "revision": or(r.build, "abc"), "mpi": or(r.mpi, "Open MPI"), "launch": "srun", "transport": "MPI",
		"args": []string{"bench"}, "started": "2026-01-02T03:04:05Z", "later": map[string]int{"field": 1},
	})
	for i := range r.ranks {
		rank := map[string]any{
			"type": "rank", "rank": i, "host": "node1", "cpus": or(r.cpus, fmt.Sprint(i)), "threads": max(1, r.threads), "backend": or(r.backend, "cpu avx2, 1 thread"),
			"peak_tflops": 0, "gpu": nil, "gpu_shared": r.shared,
		}
		if r.gpu != "" {
			rank["gpu"] = map[string]any{"name": r.gpu, "uuid": fmt.Sprint("GPU-", i), "nvml": map[string]any{"driver": nil}}
		}
		line(rank)
	}
	for _, x := range r.timed {
		pairs := float64(x.seq) * float64(x.seq+1) / 2
		flops := 4 * 4 * 64 * pairs
		if x.pass == "backward" {
			flops *= 2.5
		}
		record := map[string]any{
			"type": "result", "seq": x.seq, "batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "f32", "mask": or(r.mask, "causal"),
			"pass": or(x.pass, "forward"), "layout": "zigzag", "schedule": "ring", "ranks": r.ranks, "backend": or(r.backend, "cpu avx2"),
			"transport": or(r.transport, "host"), "time_s": nil, "kernel_s": 0, "exposed_s": 0, "tflops_per_rank": 0, "peak_fraction": nil,
			"bytes_sent": 0, "memory_bytes": 0, "wrong": x.wrong, "later": "field",
		}
		if r.key != "" {
			record["key"] = r.key
		}
		if x.wrong == 0 {
			record["time_s"] = Quantiles{x.seconds, x.seconds, x.seconds, x.seconds}
			record["tflops_per_rank"] = flops / float64(r.ranks) / x.seconds / 1e12
		}
		line(record)
	}
	return b.String()
}

// study reads one file of all runs.
func study(t *testing.T, runs ...run) *Study {
	t.Helper()
	var text strings.Builder
	for _, r := range runs {
		text.WriteString(r.records(t))
	}
	return merged(t, text.String())
}

func merged(t *testing.T, texts ...string) *Study {
	t.Helper()
	s, err := merge(texts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func merge(texts ...string) (*Study, error) {
	var files []*File
	for i, text := range texts {
		f, err := Read(fmt.Sprintf("file%d", i), strings.NewReader(text))
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return Merge(files...)
}

// only is the one table of a kind.
func only(t *testing.T, s *Study, k Kind) *Table {
	t.Helper()
	var found []*Table
	for _, x := range s.Tables {
		if x.Kind == k {
			found = append(found, x)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d tables of %v scaling, want 1", len(found), k)
	}
	return found[0]
}

func column(t *Table, of func(Row) float64) string {
	var texts []string
	for _, r := range t.Rows {
		texts = append(texts, fmt.Sprintf("%.4f", of(r)))
	}
	return strings.Join(texts, " ")
}

// CASES K5 (a): strong scaling.
func TestStrongScaling(t *testing.T) {
	var runs []run
	for ranks, seconds := range map[int]float64{1: 8.0, 2: 4.4, 4: 2.5, 8: 1.6} {
		runs = append(runs, run{ranks: ranks, timed: []timed{{seq: 4096, seconds: seconds}}})
	}
	x := only(t, study(t, runs...), Strong)
	if got, want := column(x, func(r Row) float64 { return r.Speedup }), "1.0000 1.8182 3.2000 5.0000"; got != want {
		t.Errorf("speedup is %s, want %s", got, want)
	}
	if got, want := column(x, func(r Row) float64 { return r.Efficiency }), "1.0000 0.9091 0.8000 0.6250"; got != want {
		t.Errorf("efficiency is %s, want %s", got, want)
	}
	if got := x.baseline(); !strings.HasPrefix(got, "baseline: 1 rank, S 4096, 8000.00 ms") {
		t.Errorf("the baseline is named as %q", got)
	}
}

// CASES K5 (b): weak scaling goes by pairs, which grow while tokens per rank do not.
func TestWeakScalingGoesByPairs(t *testing.T) {
	pairs := map[int]float64{1: 524800, 2: 1049088, 4: 2097664, 8: 4194816}
	var runs []run
	for ranks, n := range pairs {
		runs = append(runs, run{ranks: ranks, timed: []timed{{seq: 1024 * ranks, seconds: n * 1e-7}, {seq: 1024 * ranks, seconds: n * 2e-7, pass: "backward"}}})
	}
	s := study(t, runs...)
	if len(s.Tables) != 2 {
		t.Fatalf("%d tables, want one of weak scaling a pass", len(s.Tables))
	}
	for _, x := range s.Tables {
		if x.Kind != Weak {
			t.Fatalf("a table of %v scaling", x.Kind)
		}
		for _, r := range x.Rows {
			if got, want := math.Round(r.PairsPerRank()), pairs[r.Ranks]; got != want {
				t.Errorf("%s, %d ranks: %.0f pairs per rank, want %.0f", x.Pass, r.Ranks, got, want)
			}
			if strings.HasPrefix(r.Note, "over 1") {
				t.Errorf("%d ranks: %q", r.Ranks, r.Note)
			}
		}
		if got, want := column(x, func(r Row) float64 { return r.Efficiency }), "1.0000 1.0000 1.0000 1.0000"; got != want {
			t.Errorf("%s: efficiency is %s, want %s", x.Pass, got, want)
		}
		if got, want := column(x, func(r Row) float64 { return r.Work }), "1.0000 1.9990 3.9971 7.9932"; got != want {
			t.Errorf("%s: work is %s, want %s", x.Pass, got, want)
		}
	}
}

// CASES K5 (c): without one rank the baseline is the fewest, and is said to be; more
// than 1 is shown and flagged.
func TestBaselineWithoutOneRank(t *testing.T) {
	x := only(t, study(t,
		run{ranks: 8, timed: []timed{{seq: 4096, seconds: 1.0}}},
		run{ranks: 2, timed: []timed{{seq: 4096, seconds: 4.4}}},
		run{ranks: 4, timed: []timed{{seq: 4096, seconds: 2.5}}}), Strong)
	if got := x.baseline(); !strings.HasPrefix(got, "baseline: 2 ranks, the fewest here") {
		t.Errorf("the baseline is named as %q", got)
	}
	if got, want := column(x, func(r Row) float64 { return r.Efficiency }), "1.0000 0.8800 1.1000"; got != want {
		t.Errorf("efficiency is %s, want %s", got, want)
	}
	if got, want := column(x, func(r Row) float64 { return r.Speedup }), "1.0000 1.7600 4.4000"; got != want {
		t.Errorf("speedup is %s, want %s", got, want)
	}
	if !strings.HasPrefix(x.Rows[2].Note, "over 1") || x.Rows[1].Note != "" {
		t.Errorf("notes are %q and %q, want the second to flag what is over 1", x.Rows[1].Note, x.Rows[2].Note)
	}
}

func TestSequenceScaling(t *testing.T) {
	x := only(t, study(t, run{ranks: 2, timed: []timed{{seq: 2048, seconds: 5}, {seq: 1024, seconds: 1}}}), Sequence)
	// 2098176 pairs against 524800 in five times the time.
	if got, want := column(x, func(r Row) float64 { return r.Efficiency }), "1.0000 0.7996"; got != want {
		t.Errorf("efficiency is %s, want %s", got, want)
	}
}

// Tokens per rank are compared exactly, whether they are whole or not.
func TestWeakScalingOfUnevenShards(t *testing.T) {
	x := only(t, study(t,
		run{ranks: 3, timed: []timed{{seq: 1000, seconds: 1}}}, run{ranks: 6, timed: []timed{{seq: 2000, seconds: 2}}},
		run{ranks: 10, timed: []timed{{seq: 3333, seconds: 3}}}), Weak)
	if len(x.Rows) != 2 || x.cells()[1][8] != "1000/3" {
		t.Errorf("rows are %q", x.cells())
	}
}

// Two points that differ in how they were timed are both there, and one is the baseline.
func TestTwoAtTheBaseline(t *testing.T) {
	x := only(t, study(t,
		run{ranks: 1, key: "5 repeats", timed: []timed{{seq: 4096, seconds: 8}}}, run{ranks: 1, key: "7 repeats", timed: []timed{{seq: 4096, seconds: 16}}},
		run{ranks: 2, timed: []timed{{seq: 4096, seconds: 4}}}), Strong)
	if got, want := column(x, func(r Row) float64 { return r.Efficiency }), "1.0000 0.5000 1.0000"; got != want {
		t.Errorf("efficiency is %s, want %s", got, want)
	}
	if x.Rows[0].Note != "baseline" || x.Rows[1].Note != "a second one at the baseline's ranks" {
		t.Errorf("notes are %q and %q", x.Rows[0].Note, x.Rows[1].Note)
	}
}

// A row on something else than the baseline is not compared, and says on what.
func TestComparisonIsRefused(t *testing.T) {
	base := []run{{ranks: 1, timed: []timed{{seq: 4096, seconds: 8}}}, {ranks: 2, timed: []timed{{seq: 4096, seconds: 4}}}}
	for name, c := range map[string]struct {
		run  run
		note string
	}{
		"GPU":       {run{gpu: "NVIDIA H200"}, "GPU is NVIDIA H200, the baseline's none"},
		"backend":   {run{backend: "cpu avx512, 1 thread"}, "backend is cpu avx512, the baseline's cpu avx2"},
		"transport": {run{transport: "device"}, "transport is device, the baseline's host"},
		"MPI":       {run{mpi: "MPICH"}, "MPI is MPICH, the baseline's Open MPI"},
		"build":     {run{build: "def"}, "build is 0.1.0 (def), the baseline's 0.1.0 (abc)"},
		"CPUs":      {run{cpus: "0-3,8"}, "binding is 1 thread on 5 CPUs, the baseline's 1 thread on 1 CPU"},
		"threads":   {run{threads: 2, cpus: "0-7"}, "binding is 2 threads on 8 CPUs, the baseline's 1 thread on 1 CPU"},
		"crowding":  {run{cpus: "0"}, "crowding is 4 threads a CPU, the baseline's at most 1 thread a CPU"},
		"shared":    {run{shared: true}, "ranks share a GPU, and their kernels take turns"},
	} {
		c.run.ranks, c.run.timed = 4, []timed{{seq: 4096, seconds: 2}}
		x := only(t, study(t, append(base, c.run)...), Strong)
		r := x.Rows[2]
		if r.Compared || r.Speedup != 0 || r.Efficiency != 0 || r.Note != "not compared: "+c.note {
			t.Errorf("%s: compared %v, note %q, want %q", name, r.Compared, r.Note, c.note)
		}
		if cells := x.cells()[2]; cells[4] != "-" || cells[5] != "-" || cells[2] != "2000.00" {
			t.Errorf("%s: the row is %q: want its time, and no speedup or efficiency", name, cells)
		}
		if !x.Rows[1].Compared {
			t.Errorf("%s: a row like the baseline is not compared: %s", name, x.Rows[1].Note)
		}
	}
}

// The number of a GPU does not make it another one.
func TestDeviceNumbersAreCompared(t *testing.T) {
	one := run{ranks: 1, gpu: "NVIDIA H200", backend: "cuda device 3, NVIDIA H200, sm_90", timed: []timed{{seq: 4096, seconds: 8}}}
	two := run{ranks: 2, gpu: "NVIDIA H200", backend: "cuda device 0, NVIDIA H200, sm_90", timed: []timed{{seq: 4096, seconds: 4}}}
	if x := only(t, study(t, one, two), Strong); !x.Rows[1].Compared {
		t.Errorf("two devices of one kind: %s", x.Rows[1].Note)
	}
}

// Two settings of which each has a study have a table each.
func TestTwoEnvironments(t *testing.T) {
	s := study(t,
		run{ranks: 1, timed: []timed{{seq: 4096, seconds: 8}}}, run{ranks: 2, timed: []timed{{seq: 4096, seconds: 4}}},
		run{ranks: 1, mpi: "MPICH", timed: []timed{{seq: 4096, seconds: 6}}}, run{ranks: 2, mpi: "MPICH", timed: []timed{{seq: 4096, seconds: 4}}})
	if len(s.Tables) != 2 {
		t.Fatalf("%d tables, want 2", len(s.Tables))
	}
	for _, x := range s.Tables {
		if len(x.Rows) != 2 || !x.Rows[0].Compared || !x.Rows[1].Compared {
			t.Errorf("%s: want two rows that are compared, have %+v", x.baseline(), x.Rows)
		}
	}
}

// Masks of one name may differ, as those of a file of lengths that has changed.
func TestOtherPairsAreNotCompared(t *testing.T) {
	a := run{ranks: 1, mask: "docs:F", timed: []timed{{seq: 4096, seconds: 8}}}.records(t)
	b := run{ranks: 2, mask: "docs:F", timed: []timed{{seq: 4000, seconds: 4}}}.records(t)
	x := only(t, merged(t, a, strings.Replace(b, `"seq":4000`, `"seq":4096`, 1)), Strong)
	if r := x.Rows[1]; r.Compared || !strings.HasPrefix(r.Note, "not compared: 8002000 pairs, the baseline's 8390656") {
		t.Errorf("compared %v, note %q", r.Compared, r.Note)
	}
}

func TestWrongResultsHaveNoFigures(t *testing.T) {
	right := run{ranks: 1, timed: []timed{{seq: 4096, seconds: 8}}}
	bad := run{ranks: 2, timed: []timed{{seq: 4096, wrong: 3}}}.records(t)
	// Neither has one that comes with figures.
	figures := strings.NewReplacer(`"time_s":null`, `"time_s":{"min":1,"median":1.2345,"p95":1,"max":1}`, `"tflops_per_rank":0`, `"tflops_per_rank":7.654`).Replace(bad)
	if figures == bad {
		t.Fatal("the record has no fields to replace")
	}
	for _, text := range []string{bad, figures} {
		s := merged(t, right.records(t), text, run{ranks: 4, timed: []timed{{seq: 4096, seconds: 2}}}.records(t))
		if s.Wrong() != 1 {
			t.Errorf("%d wrong, want 1", s.Wrong())
		}
		x := only(t, s, Strong)
		if got := strings.Join(x.cells()[1], " "); got != "2 4096 wrong - - - - - 2048 1 3 tensors beyond the bounds" {
			t.Errorf("the row of a wrong result is %q", got)
		}
		var text, page strings.Builder
		if err := s.Text(&text); err != nil {
			t.Fatal(err)
		}
		if err := s.HTML(&page); err != nil {
			t.Fatal(err)
		}
		for _, figure := range []string{"1234.5", "7.654"} {
			if strings.Contains(text.String(), figure) || strings.Contains(page.String(), figure) {
				t.Errorf("a figure of a wrong result is shown: %s", figure)
			}
		}
	}
	// It is no baseline either.
	s := study(t, run{ranks: 1, timed: []timed{{seq: 4096, wrong: 1}}}, run{ranks: 2, timed: []timed{{seq: 4096, seconds: 4}}}, run{ranks: 4, timed: []timed{{seq: 4096, seconds: 2}}})
	if x := only(t, s, Strong); x.Base == nil || x.Base.Ranks != 2 {
		t.Errorf("the baseline is %s", x.baseline())
	}
}

// goldenRecords are the files of records that the golden text and the page are of.
func goldenRecords(t *testing.T) []string {
	t.Helper()
	var texts []string
	for _, name := range []string{"first", "second"} {
		text, err := os.ReadFile("testdata/" + name + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// The golden text: what changes a table shows up as a diff.
func TestGoldenText(t *testing.T) {
	texts := goldenRecords(t)
	var got strings.Builder
	if err := merged(t, texts...).Text(&got); err != nil {
		t.Fatal(err)
	}
	const path = "testdata/report.txt"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The order of files is not in the tables.
	var other strings.Builder
	if err := merged(t, texts[1], texts[0]).Text(&other); err != nil {
		t.Fatal(err)
	}
	if _, tables, _ := strings.Cut(got.String(), "\nresults\n"); !strings.HasSuffix(other.String(), tables) {
		t.Error("the tables are others with the files the other way round")
	}
}
