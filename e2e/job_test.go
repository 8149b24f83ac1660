package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// job is an MPI job that runs while a test sends signals to its processes.
type job struct {
	t    *testing.T
	c    *exec.Cmd
	dir  string        // of its own
	done chan struct{} // closed when the launcher has ended
}

// startJob starts N ranks of the binary and waits until each runs. What they print goes to
// a file.
func startJob(t *testing.T, ranks int, env []string, args ...string) *job {
	t.Helper()
	bin, mpirun := binary(t), launcher(t)
	j := &job{t: t, dir: t.TempDir(), done: make(chan struct{})}
	script := filepath.Join(j.dir, "rank")
	body := "#!/bin/sh\necho $$ >" + j.dir + "/pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\nexec \"$@\"\n"
	if err := os.WriteFile(script, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(j.dir, "text"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	j.c = exec.Command(mpirun, append([]string{strconv.Itoa(ranks), script, bin}, args...)...)
	j.c.Env, j.c.Stdout, j.c.Stderr = environment(env...), out, out
	if err := j.c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = j.c.Wait() // its code is read from the state
		close(j.done)
	}()
	for end := time.Now().Add(30 * time.Second); len(j.pids()) < ranks; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %d ranks after 30 s\n%s", ranks, j.text())
		}
	}
	return j
}

// pids are the ranks' processes.
func (j *job) pids() (list []int) {
	names, err := filepath.Glob(filepath.Join(j.dir, "pid.*"))
	if err != nil {
		j.t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			j.t.Fatal(err)
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// launcherPID is the process of the launcher: the ancestor of a rank that timeout started.
func (j *job) launcherPID() int {
	j.t.Helper()
	for pid := j.pids()[0]; pid > 1; {
		parent := statField(j.t, pid, 1)
		n, err := strconv.Atoi(parent)
		if err != nil {
			break
		}
		if comm, err := os.ReadFile("/proc/" + parent + "/comm"); err == nil && string(comm) == "timeout\n" {
			return pid
		}
		pid = n
	}
	j.t.Fatal("no timeout above the ranks")
	return 0
}

// statField is a field of /proc/PID/stat, counted from the state, which is 0.
func statField(t *testing.T, pid, field int) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text)[strings.LastIndex(string(text), ")")+2:])[field]
}

func (j *job) send(s syscall.Signal, pids ...int) {
	j.t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			j.t.Fatal(err)
		}
	}
}

// end waits for the launcher and gives its exit code. The ranks must be gone then, all of
// it in so much time.
func (j *job) end(within time.Duration) int {
	j.t.Helper()
	deadline := time.Now().Add(within)
	select {
	case <-j.done:
	case <-time.After(within):
		j.send(syscall.SIGKILL, append(j.pids(), j.launcherPID())...)
		j.t.Fatalf("the job goes on after %v\n%s", within, j.text())
	}
	for _, pid := range j.pids() {
		for syscall.Kill(pid, 0) == nil {
			if time.Now().After(deadline) {
				j.send(syscall.SIGKILL, pid)
				j.t.Fatalf("process %d of a rank goes on after %v\n%s", pid, within, j.text())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return j.c.ProcessState.ExitCode()
}

// text is what the job has printed so far.
func (j *job) text() string {
	text, err := os.ReadFile(filepath.Join(j.dir, "text"))
	if err != nil {
		j.t.Fatal(err)
	}
	return string(text)
}

// G1: signals that mean nothing to a program change nothing, in any rank, with and without
// Go's preemption by signals; INT to each rank ends the job in order.
func TestSignalsToEachRank(t *testing.T) {
	storm := func(j *job, until func() bool) {
		for i := 0; i < 1000 || !until(); i++ {
			select {
			case <-j.done:
				return
			default:
			}
			pids := j.pids()
			for _, s := range []syscall.Signal{syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCHLD} {
				j.send(s, pids...)
			}
			time.Sleep(time.Millisecond)
		}
	}
	dir := t.TempDir()
	want := filepath.Join(dir, "want")
	run := func(out string) []string {
		return []string{"run", "--in", realIn, "--out", out, "--log-level", "error"}
	}
	if j := startJob(t, 2, nil, run(want)...); j.end(60*time.Second) != 0 {
		t.Fatal(j.text())
	}
	right, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	for i, debug := range []string{"", "asyncpreemptoff=1"} {
		out := filepath.Join(dir, strconv.Itoa(i))
		j := startJob(t, 2, []string{"GODEBUG=" + debug, "RINGATTN_TEST_KERNEL_DELAY=100ms"}, run(out)...)
		storm(j, func() bool { return false })
		if code := j.end(60 * time.Second); code != 0 {
			t.Fatalf("GODEBUG=%s: exit %d\n%s", debug, code, j.text())
		}
		got, err := os.ReadFile(out)
		if err != nil || string(got) != string(right) {
			t.Errorf("GODEBUG=%s: other bits under signals (%v)", debug, err)
		}

		j = startJob(t, 2, []string{"GODEBUG=" + debug}, "bench", "--seq", "1000", "--threads", "1", "--repeats", "1000000", "--log-level", "error")
		for end := time.Now().Add(60 * time.Second); !strings.Contains(j.text(), "# time of"); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("GODEBUG=%s: it does not begin\n%s", debug, j.text())
			}
		}
		storm(j, func() bool { return true })
		for line := range strings.Lines(j.text()) {
			if !strings.HasPrefix(line, "#") {
				t.Errorf("GODEBUG=%s: it says %q", debug, line)
			}
		}
		j.send(syscall.SIGINT, j.pids()...)
		code := j.end(15 * time.Second)
		if text := j.text(); code == 0 || !strings.Contains(text, "interrupted by a signal") || strings.Contains(text, "signal stack") {
			t.Errorf("GODEBUG=%s: exit %d\n%s", debug, code, text)
		}
	}
}

// J1: however a sweep of four ranks is ended, all ranks are gone soon, the code is not 0,
// and its file is whole: report reads it, nothing lies beside it, and it can be resumed.
func TestEndingASweep(t *testing.T) {
	bench := func(out, seq string) []string {
		return []string{
			"bench", "--seq", seq, "--head-dim", "32", "--repeats", "1000", "--threads", "1", "--log-level", "error", "--out", out, "--resume",
		}
	}
	for _, c := range []struct {
		name string
		env  string
		end  func(j *job)
		code int // 0: any but 0
	}{
		{"USR1 to the launcher", "", func(j *job) { j.send(syscall.SIGUSR1, j.launcherPID()) }, 75},
		{"TERM to one rank", "", func(j *job) { j.send(syscall.SIGTERM, j.pids()[2]) }, 75},
		{"TERM to the launcher", "", func(j *job) { j.send(syscall.SIGTERM, j.launcherPID()) }, 0},
		{"the launcher's time limit", "MPIEXEC_TIMEOUT=4", func(*job) {}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			j := startJob(t, 4, []string{c.env}, bench(out, "32,36,40,44,48,52,56,60,64,68,72,76,80,84,88,92,96,100,104,108")...)
			time.Sleep(3 * time.Second)
			points := len(benchKeys(t, out))
			c.end(j)
			code := j.end(15 * time.Second)
			if code == 0 || c.code != 0 && code != c.code {
				t.Errorf("exit %d, want %d\n%s", code, c.code, j.text())
			}
			after := len(benchKeys(t, out))
			if after < points || after >= 40 {
				t.Errorf("%d points, %d before", after, points)
			}
			if c.code == 75 && strings.Count(j.text(), "points; --resume goes on") != 1 {
				t.Errorf("it does not say once how far it came:\n%s", j.text())
			}
			if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 1 {
				t.Errorf("beside the file: %v (%v)", left, err)
			}
			if j := startJob(t, 4, nil, bench(out, "32")...); j.end(60*time.Second) != 0 {
				t.Errorf("it is not resumed:\n%s", j.text())
			}
			if text, code := command(t, nil, binary(t), "report", out); code != 0 {
				t.Errorf("report: exit %d\n%s", code, text)
			}
		})
	}
}

// A signal that all ranks get is told once, by rank 0; one that a single rank gets, by that
// rank. Either ends the job soon, and no output is left.
func TestInterruptedRun(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(j *job)
		code int // 0: any but 0
		rank string
		once bool // nobody else says anything
	}{
		{"USR1 to the launcher", func(j *job) { j.send(syscall.SIGUSR1, j.launcherPID()) }, 75, "rank 0 of 4", true},
		{"TERM to all ranks", func(j *job) { j.send(syscall.SIGTERM, j.pids()...) }, 75, "rank 0 of 4", true},
		// Open MPI's mpirun kills a second later, with its own code.
		{"TERM to the launcher", func(j *job) { j.send(syscall.SIGTERM, j.launcherPID()) }, 0, "rank 0 of 4", true},
		// Its abort may be a signal to rank 0.
		{"TERM to one rank", func(j *job) { j.send(syscall.SIGTERM, j.pids()[2]) }, 75, "rank 2 of 4", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			// Each kernel is late, so that it does not end by itself before.
			j := startJob(t, 4, []string{"RINGATTN_TEST_KERNEL_DELAY=5s"},
				"run", "--in", realIn, "--out", filepath.Join(dir, "out"), "--threads", "1", "--log-level", "error")
			time.Sleep(3 * time.Second)
			c.end(j)
			code := j.end(15 * time.Second)
			text := j.text()
			told := regexp.MustCompile(`(?m)^ringattn: error: .*interrupted by a signal`).FindAllString(text, -1)
			if code == 0 || c.code != 0 && code != c.code {
				t.Errorf("exit %d, want %d", code, c.code)
			}
			if len(told) == 0 || !strings.Contains(told[0], c.rank) || c.once && len(told) > 1 {
				t.Errorf("%s does not tell, or not alone", c.rank)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v (%v)", left, err)
			}
			if t.Failed() {
				t.Log(text)
			}
		})
	}
}
