package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// benchKeys lists the points in a file of bench, sorted.
func benchKeys(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var keys []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var record struct{ Type, Key string }
		if json.Unmarshal(lines.Bytes(), &record) == nil && record.Type == "result" {
			keys = append(keys, record.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// A sweep killed at three moments and resumed has the points of one left alone, each once.
// TERM ends it after the point at hand, with exit code 75.
func TestBenchKilledAndResumed(t *testing.T) {
	bin := binary(t)
	dir := t.TempDir()
	args := func(out string) []string {
		return []string{
			bin, "bench", "--ranks", "2", "--seq", "64,96,128,160,192,224,256,288", "--mask", "causal", "--mask", "window:20", "--head-dim", "32",
			"--repeats", "3", "--threads", "1", "--log-level", "error", "--resume", "--out", filepath.Join(dir, out),
		}
	}
	began := time.Now()
	if text, code := command(t, nil, args("alone")...); code != 0 {
		t.Fatalf("exit %d: %s", code, text)
	}
	took := time.Since(began)
	want := benchKeys(t, filepath.Join(dir, "alone"))
	if len(slices.Compact(slices.Clone(want))) != 32 || len(want) != 32 {
		t.Fatalf("%d points, want 32, each once", len(want))
	}
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		c := exec.Command(args("killed")[0], args("killed")[1:]...)
		c.Env = environment()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(rand.Float64() * float64(took) / 3)
		time.Sleep(after)
		if err := c.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		err := c.Wait()
		var exit *exec.ExitError
		switch {
		case err == nil: // it was done sooner
		case !errors.As(err, &exit):
			t.Fatal(err)
		case signal == syscall.SIGTERM && exit.ExitCode() != 75 && exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM:
			t.Errorf("TERM after %v: %v, want exit code 75", after, err) // or TERM itself, before the program listens
		}
		t.Logf("signal %d (%v) after %v: %d points", i, signal, after, len(benchKeys(t, filepath.Join(dir, "killed"))))
	}
	if text, code := command(t, nil, args("killed")...); code != 0 {
		t.Fatalf("exit %d: %s", code, text)
	}
	if got := benchKeys(t, filepath.Join(dir, "killed")); !slices.Equal(got, want) {
		t.Errorf("%d points after three signals, want the %d of a sweep left alone", len(got), len(want))
	}
}
