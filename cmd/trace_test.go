package cmd

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"ringattn/trace"
)

// readTrace reads a file and checks it.
func readTrace(t *testing.T, path string) *trace.Trace {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := trace.Read(path, f)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	return x
}

func countKinds(x *trace.Trace) map[trace.Kind]int {
	n := map[trace.Kind]int{}
	for _, s := range x.Spans {
		n[s.Kind]++
	}
	return n
}

// The trace of a run has both passes of all ranks; its kernels take as long as run says.
func TestTraceOfRun(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "trace.json")
	text, code, err := execute("run", "--ranks", "4", "--threads", "1", "--layout", "zigzag", "--schedule", "ring", "--in", realDir+"/lm_window128.safetensors",
		"--out", filepath.Join(dir, "out.safetensors"), "--trace", path)
	if code != exitOK || !strings.Contains(text, "wrote      "+path) {
		t.Fatalf("exit %d, %v:\n%s", code, err, text)
	}
	x := readTrace(t, path)
	n := countKinds(x)
	if n[trace.Pass] != 8 || n[trace.Kernel] < 16 || n[trace.Send] == 0 || n[trace.Send] != n[trace.Recv] || n[trace.Copy] != 0 || len(x.Info.Ranks) != 4 {
		t.Errorf("spans: %v", n)
	}
	busy := map[string]float64{} // by rank and pass
	for _, s := range x.Spans {
		if s.Kind == trace.Busy {
			busy[fmt.Sprint(s.Rank, s.Args.Number)] += float64(s.End-s.Begin) * 1e-6
		}
	}
	rows := regexp.MustCompile(`(?m)^ +(\d) .* (forward|backward) +[\d.]+ ms +([\d.]+) ms`).FindAllStringSubmatch(text, -1)
	if len(rows) != 8 {
		t.Fatalf("%d rows:\n%s", len(rows), text)
	}
	for _, row := range rows {
		pass := map[string]int{"forward": 0, "backward": 1}[row[2]]
		rank, _ := strconv.Atoi(row[1])
		printed, _ := strconv.ParseFloat(row[3], 64)
		// run prints hundredths of the rank's own clock.
		got := busy[fmt.Sprint(rank, pass)]
		if drift := math.Abs(x.Info.Ranks[rank].Drift) * 1e-6 * got; math.Abs(got-printed) > 0.005+drift+1e-5 {
			t.Errorf("rank %s, %s: kernels are in flight for %.4f ms, run says %s", row[1], row[2], got, row[3])
		}
	}
}

// bench records the last repeat of each point.
func TestTraceOfBench(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	_, code, err := execute("bench", "--ranks", "3", "--threads", "1", "--seq", "64,100", "--repeats", "3", "--log-level", "error", "--output", "jsonl", "--trace", path)
	if code != exitOK {
		t.Fatalf("exit %d: %v", code, err)
	}
	x := readTrace(t, path)
	var labels []string
	for _, s := range x.Spans {
		if s.Kind == trace.Pass && s.Rank == 0 {
			labels = append(labels, s.Args.Label)
		}
	}
	want := "causal, S 64, forward; causal, S 64, backward; causal, S 100, forward; causal, S 100, backward"
	if got := strings.Join(labels, "; "); got != want || countKinds(x)[trace.Pass] != 12 {
		t.Errorf("passes %s, want %s; spans %v", got, want, countKinds(x))
	}
}

// A trace that cannot be written is refused before anything is computed, and nothing is left
// behind.
func TestTraceUsage(t *testing.T) {
	dir := t.TempDir()
	for name, path := range map[string]string{"into no folder": dir + "/none/trace.json", "over a folder": dir} {
		out, code, err := execute("bench", "--ranks", "2", "--seq", "64", "--log-level", "error", "--trace", path)
		if code != exitUsage || err == nil || !strings.Contains(err.Error(), "--trace: ") || strings.Contains(out, "causal") {
			t.Errorf("%s: exit %d, %v: %s", name, code, err, out)
		}
	}
	in, out := filepath.Join(dir, "in.safetensors"), filepath.Join(dir, "out.safetensors")
	text, err := os.ReadFile(realDir + "/lm_window128.safetensors")
	if err == nil {
		err = os.WriteFile(in, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{in, out} {
		if _, code, err := execute("run", "--ranks", "2", "--in", in, "--out", out, "--trace", path); code != exitUsage {
			t.Errorf("over %s: exit %d, %v", path, code, err)
		}
	}
	// A command that fails, or finds a wrong result, leaves no half a file.
	path := filepath.Join(dir, "trace.json")
	if _, code, err := execute("run", "--ranks", "2", "--in", in, "--out", filepath.Join(dir, "none", "out"), "--trace", path); code != exitUsage {
		t.Errorf("no folder for the output: exit %d, %v", code, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
