package cmd

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What could not be told apart, or would write over what is read, is refused before a step.
func TestBenchRefusesWhatIsTheSame(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"sweep.yaml": "seq: 40\n", "lengths": "30\n10\n", "copy": "30\n10\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	here := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--seq", "40,50,40"}, "there twice"},
		{[]string{"--seq", "40", "--mask", "docs:lengths", "--mask", "docs:copy"}, "there twice"},
		{[]string{"--seq", "40", "--out", "out", "--trace", here("out")}, "--trace and --out"},
		{[]string{"--config", "sweep.yaml", "--trace", here("sweep.yaml")}, "is read as well"},
		{[]string{"--seq", "40", "--mask", "docs:lengths", "--trace", here("lengths")}, "is read as well"},
		{[]string{"--seq", "40", "--pass", "forward", "--expect", "backward.wrong<=0"}, "does not time"},
		{[]string{"--seq", "40", "--expect", "forward.wrong>=NaN"}, "--expect"},
		{[]string{"--seq", "40", "--ulysses", "2", "--ranks-sweep"}, "--ulysses 2"},
	} {
		_, code, err := execute(append([]string{"bench", "--ranks", "2", "--repeats", "1", "--log-level", "error"}, c.args...)...)
		if code != exitUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: exit %d: %v", c.args, code, err)
		}
	}
	for _, name := range []string{"out", "trace"} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

// A file of results has one writer at a time.
func TestBenchFileHasOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	first, err := openBenchFile(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := openBenchFile(path, true); err == nil || exitCode(err) != exitEnvironment {
		t.Fatalf("%v, %v", second, err)
	}
	if err := first.file.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := openBenchFile(path, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.file.Close(); err != nil {
		t.Fatal(err)
	}
}

// Figures of messages inside one process do not stand for those of MPI, nor do the names of
// files make another problem.
func TestBenchKey(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"lengths", "copy"} {
		if err := os.WriteFile(name, []byte("30\n10\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := func(mask string) []string {
		return []string{
			"bench", "--ranks", "2", "--seq", "40", "--mask", mask, "--repeats", "1", "--threads", "1", "--log-level", "error", "--out", "out", "--resume",
		}
	}
	for _, mask := range []string{"docs:lengths", "docs:copy", "docs:./lengths"} {
		if _, code, err := execute(args(mask)...); code != exitOK {
			t.Fatal(err)
		}
	}
	if got := points(t, "out"); len(got) != 2 {
		t.Errorf("%q: want a forward and a backward", got)
	}
}

// How heads and gradients travel stands in each format.
func TestBenchShowsExchange(t *testing.T) {
	args := []string{"bench", "--ranks", "4", "--seq", "40", "--schedule", "direct", "--ulysses", "2", "--wire-gradients", "bf16", "--repeats", "1", "--log-level", "error"}
	out, code, err := execute(args...)
	if code != exitOK || strings.Count(out, "direct,ulysses:2,wire:bf16") != 2 {
		t.Errorf("exit %d: %v: %s", code, err, out)
	}
	out, _, _ = execute(append(args, "--output", "csv")...)
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(rows) != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	n := len(rows[0])
	for i, want := range []string{"ulysses,wire_gradients", "2,bf16", "2,bf16"} {
		if got := strings.Join(rows[i][n-6:n-4], ","); got != want {
			t.Errorf("row %d ends with %s, want %s", i, got, want)
		}
	}
}
