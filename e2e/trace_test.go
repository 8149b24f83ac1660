package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringattn/trace"
)

// The trace of ranks that are processes: whole, each message with both ends, none there before
// it was sent, as far as the clocks are known.
func TestTraceOfRanks(t *testing.T) {
	bin, mpirun := binary(t), launcher(t)
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"run":   {"run", "--in", realIn, "--out", filepath.Join(dir, "out.safetensors")},
		"bench": {"bench", "--seq", "500,1000", "--mask", "causal", "--mask", "window:100", "--heads", "2/1", "--head-dim", "64", "--repeats", "3"},
	} {
		path := filepath.Join(dir, name+".json")
		args = append([]string{mpirun, "4", bin}, append(args, "--log-level", "error", "--layout", "zigzag", "--schedule", "ring", "--trace", path)...)
		if text, code := command(t, nil, args...); code != 0 {
			t.Fatalf("%s: exit %d\n%s", name, code, text)
		}
		x := checkTrace(t, path)
		passes, messages := 0, 0
		for _, s := range x.Spans {
			switch s.Kind {
			case trace.Pass:
				passes++
			case trace.Recv:
				messages++
			}
		}
		if want := map[string]int{"run": 8, "bench": 32}[name]; passes != want || messages < want/2 || len(x.Info.Ranks) != 4 {
			t.Errorf("%s: %d passes of ranks, %d messages, %d ranks; want %d passes of 4 ranks", name, passes, messages, len(x.Info.Ranks), want)
		}
		for _, r := range x.Info.Ranks {
			t.Logf("%s: rank %d: clock is good to %d ns, drift %.3f ppm", name, r.Rank, r.Bound, r.Drift)
			if r.Rank > 0 && (r.Before.Bound <= 0 || r.After.Bound <= 0 || r.After.At <= r.Before.At) {
				t.Errorf("%s: rank %d: the clock was not measured: %+v", name, r.Rank, r.Clock)
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("files are left behind: %v", left)
	}
}

// A sweep that a signal ends has a whole trace of what it came to; a bench that it breaks off has
// none. Neither leaves anything else behind.
func TestTraceOfWhatWasInterrupted(t *testing.T) {
	bin := binary(t)
	for name, c := range map[string]struct {
		args []string // besides
		want []string // files
	}{
		"sweep":      {[]string{"--out", "points.jsonl"}, []string{"points.jsonl", "trace.json"}},
		"broken off": {nil, nil},
	} {
		dir := t.TempDir()
		// Long enough not to be done before the signal comes.
		var seqs []string
		for n := range 2000 {
			seqs = append(seqs, strconv.Itoa(1000+n))
		}
		args := []string{
			"bench", "--ranks", "2", "--threads", "1", "--log-level", "error", "--head-dim", "32", "--seq", strings.Join(seqs, ","), "--trace", "trace.json",
		}
		cmd := exec.Command(bin, append(args, c.args...)...)
		cmd.Env, cmd.Dir = environment(), dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // it listens by then
		// A sweep has a point to show by then.
		for end := time.Now().Add(60 * time.Second); len(c.want) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if info, err := os.Stat(filepath.Join(dir, c.want[0])); err == nil && info.Size() > 0 {
				break
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 75 {
			t.Errorf("%s: %v, want exit code 75", name, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var files []string
		for _, e := range entries {
			files = append(files, e.Name())
		}
		if !slices.Equal(files, c.want) {
			t.Errorf("%s: files %v, want %v", name, files, c.want)
		}
		if len(c.want) > 0 {
			checkTrace(t, filepath.Join(dir, "trace.json"))
		}
	}
}

// checkTrace reads a trace, which must be whole and such that it can have been.
func checkTrace(t *testing.T, path string) *trace.Trace {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := trace.Read(path, f)
	if err == nil {
		err = x.Check()
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}
