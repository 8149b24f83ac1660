package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	golden = "../testdata/golden"
	realIn = "../testdata/real/lm_global.safetensors"
)

// binary is the program under test; the test is skipped where there is none.
func binary(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("RINGATTN_BIN")
	if bin == "" {
		t.Skip("needs a binary in RINGATTN_BIN; make e2e gives it")
	}
	return bin
}

// launcher starts N ranks: launcher N COMMAND...
func launcher(t *testing.T) string {
	t.Helper()
	mpirun := os.Getenv("RINGATTN_MPIRUN")
	if mpirun == "" {
		t.Skip("needs a launcher in RINGATTN_MPIRUN; make e2e gives it where there is an MPI")
	}
	return mpirun
}

// environment is this process's without what a launcher or user said, and with
// some more.
func environment(more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !regexp.MustCompile(`^(SLURM_|OMPI_COMM|PMI|OMP_NUM|RINGATTN_)`).MatchString(e) {
			env = append(env, e)
		}
	}
	return append(env, more...)
}

// command runs to its end and gives what it printed and its exit code.
func command(t *testing.T, env []string, args ...string) (text string, code int) {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.Env = environment(env...)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	return string(out), code
}

// F1(b): messages in pieces of 1,000 bytes change no bit; F3: neither does it
// matter whether messages are eager or not.
func TestPiecesAndEagerLimitsChangeNothing(t *testing.T) {
	bin, mpirun := binary(t), launcher(t)
	dir := t.TempDir()
	var want []byte
	for i, env := range [][]string{
		nil,
		{"RINGATTN_TEST_PIECE_BYTES=1000"},
		{"OMPI_MCA_btl=self,vader", "OMPI_MCA_btl_vader_eager_limit=64", "MPIR_CVAR_CH4_SHM_POSIX_EAGER=iqueue"},
		{"OMPI_MCA_btl=self,tcp", "OMPI_MCA_btl_tcp_eager_limit=64", "UCX_RNDV_THRESH=0"},
	} {
		out := filepath.Join(dir, fmt.Sprint(i))
		text, code := command(t, env, mpirun, "3", bin, "run", "--in", realIn, "--out", out)
		if code != 0 {
			t.Fatalf("%v: exit %d\n%s", env, code, text)
		}
		got, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			want = got
		} else if !bytes.Equal(want, got) {
			t.Errorf("%v: the output differs", env)
		}
	}
}

// G3: the collector at its busiest, and every pointer that crosses into C
// checked where the binary was built for it.
func TestBusyCollector(t *testing.T) {
	bin, mpirun := binary(t), launcher(t)
	text, code := command(t, []string{"GOGC=1", "GODEBUG=gccheckmark=0"}, mpirun, "4", bin, "check", "--golden", golden)
	if code != 0 || !strings.Contains(text, ", 0 failed") {
		t.Errorf("exit %d\n%s", code, text)
	}
}

// G5: a rank has as many threads as it has CPUs, and says so.
func TestThreadsFollowTheCPUs(t *testing.T) {
	bin := binary(t)
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		t.Fatal("taskset is missing: install util-linux")
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	allowed := regexp.MustCompile(`Cpus_allowed_list:\s*(\S+)`).FindSubmatch(status)
	last := regexp.MustCompile(`\d+$`).FindString(string(allowed[1]))
	for _, c := range []struct {
		name string
		env  []string
		args []string
		want string // CPUs, threads
	}{
		{"one CPU, not the first", nil, []string{taskset, "-c", last, bin}, last + ` +1 `},
		{"OMP_NUM_THREADS", []string{"OMP_NUM_THREADS=3"}, []string{taskset, "-c", last, bin}, last + ` +3 `},
		{"SLURM_CPUS_PER_TASK", []string{"SLURM_CPUS_PER_TASK=2"}, []string{taskset, "-c", last, bin}, last + ` +2 `},
		{"both", []string{"SLURM_CPUS_PER_TASK=2", "OMP_NUM_THREADS=4"}, []string{taskset, "-c", last, bin}, last + ` +4 `},
	} {
		args := append(c.args, "run", "--ranks", "1", "--in", realIn, "--out", filepath.Join(t.TempDir(), "out"))
		text, code := command(t, c.env, args...)
		if code != 0 || !regexp.MustCompile(`(?m)^ +0 +\S+ +`+c.want).MatchString(text) {
			t.Errorf("%s: exit %d\n%s", c.name, code, text)
		}
	}
}

// A stopped rank is an error of its neighbours in time, with exit code 5, and
// leaves no output.
func TestAStoppedRankEndsTheJob(t *testing.T) {
	bin, mpirun := binary(t), launcher(t)
	dir := t.TempDir()
	// Rank 1 stops itself as soon as it runs.
	script := filepath.Join(dir, "rank")
	body := `#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
if [ "$rank" = 1 ]; then (sleep 0.7; kill -STOP $$; sleep 8; kill -KILL $$) >/dev/null 2>&1 & fi
exec "$@"
`
	if err := os.WriteFile(script, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	text, code := command(t, nil, mpirun, "3", script, bin, "check", "--seq", "6000", "--heads", "4/4", "--mask", "full", "--timeout", "2s", "--threads", "1")
	if took := time.Since(start); code == 0 || took > 60*time.Second {
		t.Errorf("exit %d after %v\n%s", code, took, text)
	}
	if code == 5 && !regexp.MustCompile(`no answer from rank`).MatchString(text) {
		t.Errorf("the peer is not named:\n%s", text)
	}
}

// TERM ends a job soon, with a code that is not 0 and no file half written.
func TestTermination(t *testing.T) {
	bin := binary(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	c := exec.Command(bin, "check", "--ranks", "3", "--seq", "40000", "--heads", "8/8", "--mask", "full")
	c.Env = environment()
	var text bytes.Buffer
	c.Stdout, c.Stderr = &text, &text
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case <-done:
	case <-time.After(15 * time.Second):
		_ = c.Process.Kill()
		t.Fatalf("it goes on after TERM\n%s", text.String())
	}
	if code := c.ProcessState.ExitCode(); code != 75 || !strings.Contains(text.String(), "interrupted") {
		t.Errorf("exit %d\n%s", code, text.String())
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("there is an output file")
	}
}

// Ranks that were given different arguments say so instead of hanging.
func TestRanksThatDisagree(t *testing.T) {
	bin, mpirun := binary(t), launcher(t)
	script := filepath.Join(t.TempDir(), "rank")
	body := `#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
window=0
if [ "$rank" = 2 ]; then window=5; fi
exec "$@" --window $window
`
	if err := os.WriteFile(script, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	text, code := command(t, nil, mpirun, "3", script, bin, "check", "--in", realIn)
	if code != 3 || !regexp.MustCompile(`rank \d and rank \d disagree about --window`).MatchString(text) {
		t.Errorf("exit %d\n%s", code, text)
	}
}

// G1: signals that mean nothing change nothing, with and without Go's preemption;
// INT ends the job in order.
func TestSignals(t *testing.T) {
	bin := binary(t)
	for _, debug := range []string{"", "asyncpreemptoff=1"} {
		c := exec.Command(bin, "bench", "--ranks", "2", "--seq", "2000", "--repeats", "100000", "--log-level", "error")
		c.Env = environment("GODEBUG=" + debug)
		var text bytes.Buffer
		c.Stdout, c.Stderr = &text, &text
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		for range 1000 {
			for _, s := range []syscall.Signal{syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCHLD} {
				if err := c.Process.Signal(s); err != nil {
					t.Fatalf("it has ended: %v\n%s", err, text.String())
				}
			}
			time.Sleep(time.Millisecond)
		}
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		err := c.Wait()
		if code := c.ProcessState.ExitCode(); code != 75 || strings.Contains(text.String(), "signal stack") {
			t.Errorf("GODEBUG=%s: exit %d (%v)\n%s", debug, code, err, text.String())
		}
		for line := range strings.Lines(text.String()) {
			if !strings.HasPrefix(line, "#") && !strings.Contains(line, "interrupted by a signal") {
				t.Errorf("GODEBUG=%s: it says %q", debug, line)
			}
		}
	}
}
