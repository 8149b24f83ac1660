package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What all ranks of a job refuse is told once; what one refuses, by that one; and none
// waits for the others.
func TestRefusalsAreToldOnce(t *testing.T) {
	bin, mpirun := binary(t), launcher(t)
	script := filepath.Join(t.TempDir(), "rank")
	body := `#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
if [ "$rank" = "$ONE" ]; then exec "$@" $MORE; fi
exec "$@"
`
	if err := os.WriteFile(script, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		one  string // a rank that gets another argument
		more string
		code int
		want string
	}{
		{"bench --no-such-flag", "", "", 2, `unknown flag: --no-such-flag`},
		{"bench", "", "", 2, `a problem without a file needs --seq`},
		{"nonsense", "", "", 2, `there is no command "nonsense"`},
		{"bench --config nowhere.yaml", "", "", 2, `nowhere.yaml`},
		{"run --in nowhere.safetensors --out x", "", "", 2, `nowhere.safetensors`},
		{"check --golden nowhere", "", "", 2, `no safetensors file`},
		{"bench --seq 50 --ranks-sweep=1,9", "", "", 2, `there are 4 ranks`},
		{"bench --seq 50 --out /nowhere/out", "", "", 2, `/nowhere/out`},
		{"bench --seq 50 --trace /nowhere/trace", "", "", 2, `--trace: /nowhere/trace`},
		{"bench --seq 50 --ranks-sweep 1,2", "", "", 2, `--ranks-sweep=1,2`},
		{"run --in " + realIn + " --out /nowhere/out", "", "", 2, `--out: /nowhere/out: no such file`},
		{"run --in " + realIn + " --out /tmp", "", "", 2, `--out: /tmp is no regular file`},
		{"run --in " + realIn + " --out x --trace /nowhere/trace", "", "", 2, `--trace: /nowhere/trace: no such file`},
		{"check --in ../testdata/golden/causal_single.safetensors --window 3", "", "", 2, `--window would ask for another problem`},
		{"check --seq 50 --transport device --backend cpu", "", "", 3, `no rank computes in device memory`},
		{"check --ranks 2", "", "", 3, `leave --ranks out`},
		{"check --expect-ranks 5", "", "", 3, `--expect-ranks 5`},
		{"check --seq 50 --schedule two-level --ranks-per-node 3", "", "", 2, `as many on each`},
		{"check --seq 50", "2", "--no-such-flag", 2, `rank 2 of 4 .*unknown flag`},
		{"check --seq 50", "0", "--batch 0", 2, `rank 0 of 4 .*--batch is 0`},
		{"check", "3", "--golden nowhere", 3, `disagree`},
		{"check --seq 50", "1", "--window 3 --no-such-flag", 2, `rank 1 of 4 `},
	} {
		text, code := command(t, []string{"ONE=" + c.one, "MORE=" + c.more}, append([]string{mpirun, "4", script, bin}, strings.Fields(c.args)...)...)
		told := regexp.MustCompile(`(?m)^ringattn: error:.*$`).FindAllString(text, -1)
		if c.want == "disagree" {
			// Ranks that do different things find out at their first exchange, in whatever words.
			if code == 0 {
				t.Errorf("%s: exit 0\n%s", c.args, text)
			}
			continue
		}
		if code != c.code || len(told) != 1 || !regexp.MustCompile(c.want).MatchString(told[0]) {
			t.Errorf("%s (%s %s): exit %d, want %d, and once %q:\n%s", c.args, c.one, c.more, code, c.code, c.want, text)
		}
	}
}

// What is wrong with the environment of all ranks, or what they find out of their machine, is
// told once as well; what is wrong on one rank, by its number.
func TestWrongEnvironmentsAreToldOnce(t *testing.T) {
	bin, mpirun := binary(t), launcher(t)
	script := filepath.Join(t.TempDir(), "rank")
	body := `#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
if [ "$ONE" = all ] || [ "$rank" = "$ONE" ]; then export "$BAD"; fi
exec "$@"
`
	if err := os.WriteFile(script, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ one, bad, want string }{
		{"all", "OMP_NUM_THREADS=abc", `^ringattn: error: OMP_NUM_THREADS is "abc"`},
		{"all", "SLURM_CPUS_PER_TASK=0", `^ringattn: error: SLURM_CPUS_PER_TASK is "0"`},
		{"all", "RINGATTN_FORCE_DEVICE_MEMORY=yes", `^ringattn: error: RINGATTN_FORCE_DEVICE_MEMORY is "yes"`},
		{"all", "RINGATTN_TEST_PIECE_BYTES=abc", `^ringattn: error: RINGATTN_TEST_PIECE_BYTES is "abc"`},
		{"all", "RINGATTN_TEST_KERNEL_DELAY=abc", `^ringattn: error: RINGATTN_TEST_KERNEL_DELAY is "abc"`},
		{"all", "RINGATTN_TEST_FREE_BYTES=1000", `^ringattn: error: not enough memory: rank 0 needs`},
		{"2", "OMP_NUM_THREADS=abc", `^ringattn: error: rank 2 of 4 .*OMP_NUM_THREADS is "abc"`},
		{"3", "RINGATTN_TEST_FREE_BYTES=1000", `^ringattn: error: not enough memory: rank 3 needs`},
	} {
		text, code := command(t, []string{"ONE=" + c.one, "BAD=" + c.bad}, mpirun, "4", script, bin, "check", "--seq", "50", "--log-level", "error")
		told := regexp.MustCompile(`(?m)^ringattn: error:.*$`).FindAllString(text, -1)
		if code != 3 || len(told) != 1 || !regexp.MustCompile(c.want).MatchString(told[0]) {
			t.Errorf("%s on %s: exit %d, want 3, and once %q:\n%s", c.bad, c.one, code, c.want, text)
		}
	}
}

// The sweep that lies in the repository, cut down to what takes no time: on 1, 2 and 4 ranks
// of one job, and resumed.
func TestSweepOfTheRepository(t *testing.T) {
	bin, mpirun := binary(t), launcher(t)
	out := filepath.Join(t.TempDir(), "out")
	args := []string{
		mpirun, "4", bin, "bench", "--config", "../hostfiles/sweep.yaml", "--seq", "96,128", "--repeats", "2", "--out", out, "--resume", "--log-level", "error",
	}
	var first []string
	for range 2 {
		text, code := command(t, nil, args...)
		if code != 0 {
			t.Fatalf("exit %d\n%s", code, text)
		}
		keys := benchKeys(t, out)
		if len(keys) != 2*2*2*3 || len(slices.Compact(slices.Clone(keys))) != len(keys) || first != nil && !slices.Equal(first, keys) {
			t.Fatalf("%d points, want %d, each once", len(keys), 2*2*2*3)
		}
		first = keys
	}
	text, code := command(t, nil, bin, "report", out)
	if code != 0 || strings.Count(text, "strong scaling: ") != 8 {
		t.Errorf("report: exit %d\n%s", code, text)
	}
}

// There is a bar where stderr is a terminal, and none where it is not, or a dumb one.
func TestProgressOnATerminal(t *testing.T) {
	bin := binary(t)
	script, err := exec.LookPath("script")
	if err != nil {
		t.Fatal("script is missing: install bsdutils")
	}
	bench := " bench --ranks 2 --seq 64,96 --repeats 2 --threads 1 --log-level error"
	for _, c := range []struct {
		name       string
		env        []string
		args       []string
		bar, color bool
	}{
		{"terminal", []string{"TERM=xterm", "NO_COLOR="}, []string{script, "-qec", bin + bench, os.DevNull}, true, true},
		{"NO_COLOR", []string{"TERM=xterm", "NO_COLOR=1"}, []string{script, "-qec", bin + bench, os.DevNull}, true, false},
		{"dumb", []string{"TERM=dumb"}, []string{script, "-qec", bin + bench, os.DevNull}, false, false},
		{"stderr is a pipe", []string{"TERM=xterm"}, []string{script, "-qec", "{ " + bin + bench + " 2>&1 >/dev/tty | cat; }", os.DevNull}, false, false},
		{"pipe", []string{"TERM=xterm"}, append([]string{bin}, strings.Fields(bench)...), false, false},
	} {
		text, code := command(t, c.env, c.args...)
		if code != 0 || strings.Contains(text, "4/4 points") != c.bar || strings.Contains(text, "\x1b[32m") != c.color || strings.Contains(text, "\x1b") != c.bar {
			t.Errorf("%s: exit %d: %q", c.name, code, text)
		}
		if !strings.Contains(text, "#wrong") {
			t.Errorf("%s: no table: %q", c.name, text)
		}
	}
}
