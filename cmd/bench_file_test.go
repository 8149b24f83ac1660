package cmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ringattn/report"
)

// sweep is a bench of 2 lengths x 2 masks x 2 passes.
func sweep(more ...string) []string {
	return append([]string{
		"bench", "--ranks", "2", "--seq", "40,50", "--mask", "causal", "--mask", "window:9", "--repeats", "2", "--layout", "contiguous",
		"--threads", "1", "--log-level", "error",
	}, more...)
}

// points lists the results and links in a file of bench: what they are of, sorted.
func points(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(text)) {
		var r struct {
			Type string
			report.Key
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if r.Type != "result" && r.Type != "link" {
			continue
		}
		key, err := json.Marshal(r.Key)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(key))
	}
	slices.Sort(list)
	return list
}

// A file that was cut off at any byte gives, resumed, the points of one left alone.
func TestBenchResumes(t *testing.T) {
	dir := t.TempDir()
	whole, cut := filepath.Join(dir, "whole"), filepath.Join(dir, "cut")
	links := []string{"--links", "1KiB,3000"}
	if _, code, err := execute(sweep(append(links, "--out", whole)...)...); code != exitOK {
		t.Fatal(err)
	}
	want := points(t, whole)
	if len(want) != 10 || len(slices.Compact(slices.Clone(want))) != 10 {
		t.Fatalf("the points are %q", want)
	}
	text, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	link := strings.Index(string(text), `{"type":"link"`)
	for _, n := range []int{0, 1, link, link + 200, len(text) / 3, len(text) / 2, len(text) - 400, len(text) - 1, len(text)} {
		if err := os.WriteFile(cut, text[:n], 0o666); err != nil {
			t.Fatal(err)
		}
		if _, code, err := execute(sweep(append(links, "--out", cut, "--resume")...)...); code != exitOK {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if got := points(t, cut); !slices.Equal(got, want) {
			t.Errorf("cut at %d the points are %q, want %q", n, got, want)
		}
	}
	after, err := os.ReadFile(cut)
	if err != nil || string(after) != string(text) {
		t.Errorf("a whole file changes when it is resumed (%v)", err)
	}
}

// Other settings are other points; without --resume a file is left alone.
func TestBenchResumesTheSameAlone(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if _, code, err := execute(sweep("--out", out)...); code != exitOK {
		t.Fatal(err)
	}
	for i, other := range [][]string{{"--repeats", "3"}, {"--heads", "2/1"}, {"--ranks", "1"}, {"--dtype", "bf16"}} {
		if _, code, err := execute(sweep(append(other, "--out", out, "--resume")...)...); code != exitOK {
			t.Fatal(err)
		}
		if got := len(points(t, out)); got != 8*(i+2) {
			t.Errorf("%q: %d points, want 8 more than %d", other, got, 8*(i+1))
		}
	}
	if _, code, err := execute(sweep("--out", out)...); code != exitUsage || !strings.Contains(err.Error(), "--resume goes on") {
		t.Errorf("exit %d: %v", code, err)
	}
}

// What bench has not written it leaves alone.
func TestBenchRefusesForeignFiles(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if _, code, err := execute(sweep("--out", out)...); code != exitOK {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []string{
		"notes\n", "notes", "[1]\n", "{\"learning_rate\":0.1}\n{\"epochs\":3}\n", "{\"learning_rate\":0.1}", string(whole) + "{\"my\":\"note\"}\n",
		string(whole) + "note", "{\"type\":\"note\"}\n",
	} {
		if err := os.WriteFile(out, []byte(foreign), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, code, err := execute(sweep("--out", out, "--resume")...); code != exitUsage || !strings.Contains(err.Error(), "not a line of bench") {
			t.Errorf("%.40q: exit %d: %v", foreign, code, err)
		}
		if text, err := os.ReadFile(out); err != nil || string(text) != foreign {
			t.Errorf("%.40q became %.40q (%v)", foreign, text, err)
		}
	}
	for _, path := range []string{os.DevNull, t.TempDir()} {
		if _, code, err := execute(sweep("--out", path)...); code != exitUsage || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: exit %d: %v", path, code, err)
		}
	}
}

// Shards are disjoint, and all of the sweep together.
func TestBenchShards(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	var got []string
	for _, shard := range []string{"0/3", "1/3", "2/3"} {
		if _, code, err := execute(sweep("--links", "1KiB,3000", "--out", path(shard[:1]), "--shard", shard)...); code != exitOK {
			t.Fatal(err)
		}
		got = append(got, points(t, path(shard[:1]))...)
	}
	if _, code, err := execute(sweep("--links", "1KiB,3000", "--out", path("all"))...); code != exitOK {
		t.Fatal(err)
	}
	slices.Sort(got)
	if want := points(t, path("all")); !slices.Equal(got, want) {
		t.Errorf("shards have %q, want %q", got, want)
	}
	for _, wrong := range []string{"3/3", "-1/2", "1", "1/2/3", "a/b", "1/0"} {
		if _, code, _ := execute(sweep("--shard", wrong)...); code != exitUsage {
			t.Errorf("--shard %s: exit %d", wrong, code)
		}
	}
}

func TestBenchExpectations(t *testing.T) {
	for text, want := range map[string]int{
		"forward.tflops_per_rank>=1e-9": exitOK, "backward.time_s.median<=1000": exitOK, "forward.wrong<=0": exitOK,
		"forward.tflops_per_rank>=1e9": exitWrong, "backward.time_s.max<=1e-12": exitWrong,
		"tflops_per_rank>=1": exitUsage, "forward.speed>=1": exitUsage, "forward.mask>=1": exitUsage, "forward.time_s>=1": exitUsage,
		"forward.exposed_s>=fast": exitUsage, "sideways.wrong<=0": exitUsage, "forward.wrong=0": exitUsage,
	} {
		if _, code, err := execute(sweep("--expect", text)...); code != want {
			t.Errorf("--expect %s: exit %d (%v), want %d", text, code, err, want)
		}
	}
}

// The formats tell the same.
func TestBenchFormats(t *testing.T) {
	csv, code, err := execute(sweep("--output", "csv")...)
	if lines := strings.Split(csv, "\n"); code != exitOK || len(lines) != 10 || strings.Count(lines[0], ",") != 50 {
		t.Errorf("exit %d (%v): %s", code, err, csv)
	}
	text, code, err := execute(sweep("--output", "go")...)
	if code != exitOK || strings.Count(text, "\nBenchmarkAttention/") != 16 || strings.Count(text, " ns/op ") != 16 {
		t.Errorf("exit %d (%v): %s", code, err, text)
	}
}
