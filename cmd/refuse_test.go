package cmd

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ringattn/kernels"
)

// A value that is nothing is refused, whatever flag it is of: above all a file's name.
func TestEmptyValuesAreRefused(t *testing.T) {
	const in, results = goldenDir + "/causal_single.safetensors", "../report/testdata/second.jsonl"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--in", "", "--out", "x"}, "--in"},
		{[]string{"run", "--in", in, "--out", ""}, "--out"},
		{[]string{"run", "--in", in, "--out", "x", "--trace", ""}, "--trace"},
		{[]string{"run", "--in", in, "--out", "x", "--causal="}, "--causal"},
		{[]string{"run", "--in", in, "--out", "x", "--shards", ""}, "--shards"},
		{[]string{"check", "--golden", "", "--in", ""}, "--golden, --in"},
		{[]string{"bench", "--seq", "9", "--out", ""}, "--out"},
		{[]string{"bench", "--seq", "9", "--trace", ""}, "--trace"},
		{[]string{"bench", "--seq", "9", "--config", ""}, "--config"},
		{[]string{"bench", "--seq", "9", "--mask", "full", "--mask", ""}, "--mask"},
		{[]string{"bench", "--seq", "9", "--ranks-sweep="}, "--ranks-sweep"},
		{[]string{"plan", "--ranks", "2", "--in", ""}, "--in"},
		{[]string{"report", results, "--html", ""}, "--html"},
		{[]string{"report", results, "--trace", ""}, "--trace"},
		{[]string{"report", results, ""}, "an argument is empty"},
		{[]string{"man", ""}, "an argument is empty"},
	} {
		out, code, err := execute(c.args...)
		if code != exitUsage || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "empty") || out != "" {
			t.Errorf("%q: exit %d, %v, want %d with %q\n%s", c.args, code, err, exitUsage, c.want, out)
		}
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a file was written")
	}
	// The word that a shell completes may be empty.
	if out, code, err := execute("__complete", "bench", "--layout", ""); code != exitOK {
		t.Errorf("completion: exit %d, %v\n%s", code, err, out)
	}
}

// A value that stands apart from a flag which may have none is refused with what was meant.
func TestValuesApartFromFlags(t *testing.T) {
	for args, want := range map[string]string{
		"bench --seq 9 --ranks-sweep 1,2":           "--ranks-sweep=1,2",
		"bench --seq 9 --ranks-sweep --resume 2":    "--ranks-sweep=2",
		"bench --seq 9 --resume false":              "--resume=false",
		"run --causal false":                        "--causal=false",
		"check --vision-bidirectional true":         "--vision-bidirectional=true",
		"plan --seq 9 --ranks 2 --steps true":       "--steps=true",
		"version --json true":                       "--json=true",
		"bench --seq 9 --ranks-sweep --shard 0/2 x": "--ranks-sweep=x",
	} {
		_, code, err := execute(strings.Fields(args)...)
		if code != exitUsage || err == nil || !strings.Contains(err.Error(), "as in "+want) {
			t.Errorf("%s: exit %d, %v, want %q", args, code, err, want)
		}
	}
	for _, args := range []string{"bench --seq 9 x", "bench --seq 9 --ranks-sweep=2 3", "plan --steps x", "run false"} {
		_, code, err := execute(strings.Fields(args)...)
		if code != exitUsage || err == nil || strings.Contains(err.Error(), "as in") {
			t.Errorf("%s: exit %d, %v, want no hint", args, code, err)
		}
	}
}

// What the environment says wrongly is refused by name, before anything is started.
func TestBadEnvironmentIsRefused(t *testing.T) {
	for _, c := range []struct{ name, value string }{
		{"OMP_NUM_THREADS", "abc"},
		{"OMP_NUM_THREADS", "0"},
		{"SLURM_CPUS_PER_TASK", "-1"},
		{"RINGATTN_FORCE_DEVICE_MEMORY", "yes"},
		{"RINGATTN_TEST_BLOCK_BYTES", "1k"},
		{"RINGATTN_TEST_BUFFER_BYTES", "0"},
		{"RINGATTN_TEST_FREE_BYTES", "many"},
		{"RINGATTN_TEST_PIECE_BYTES", "x"},
		{"RINGATTN_TEST_PIECE_BYTES", "268435457"},
		{"RINGATTN_TEST_KERNEL_DELAY", "2:soon"},
		{"RINGATTN_TEST_ISA", "mmx"},
	} {
		if c.name == "RINGATTN_TEST_ISA" && len(kernels.ISAs()) == 0 {
			continue // built without cgo
		}
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			out, code, err := execute("check", "--seq", "9", "--ranks", "3")
			if code != exitEnvironment || err == nil || !strings.HasPrefix(err.Error(), c.name+" is ") || !strings.Contains(err.Error(), c.value) || out != "" {
				t.Errorf("exit %d, %v\n%s", code, err, out)
			}
		})
	}
	t.Setenv("OMP_NUM_THREADS", "abc") // does not matter beside --threads
	if out, code, err := execute("check", "--seq", "9", "--ranks", "2", "--threads", "1"); code != exitOK {
		t.Errorf("exit %d, %v\n%s", code, err, out)
	}
}

// Files that cannot be written are refused before anything else that would fail later, and
// leave nothing behind.
func TestOutputsAreTriedFirst(t *testing.T) {
	dir := t.TempDir()
	in := goldenDir + "/causal_single.safetensors"
	nowhere := filepath.Join(dir, "none", "file")
	// The next thing to fail would be the memory, with another code.
	t.Setenv("RINGATTN_TEST_FREE_BYTES", "1")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--in", in, "--out", nowhere}, "--out: " + nowhere + ": no such file or directory"},
		{[]string{"run", "--in", in, "--out", dir}, "--out: " + dir + " is no regular file"},
		{[]string{"run", "--in", in, "--out", filepath.Join(dir, "o"), "--trace", nowhere}, "--trace: " + nowhere + ": no such file or directory"},
		{[]string{"bench", "--seq", "9", "--log-level", "error", "--out", nowhere}, "--out: open " + nowhere + ": no such file or directory"},
		{[]string{"bench", "--seq", "9", "--log-level", "error", "--out", filepath.Join(dir, "o"), "--trace", nowhere}, "--trace: " + nowhere + ": no such file or directory"},
	} {
		_, code, err := execute(append(c.args, "--ranks", "3")...)
		if code != exitUsage || err == nil || err.Error() != c.want {
			t.Errorf("%q: exit %d, %v, want %d, %s", c.args, code, err, exitUsage, c.want)
		}
	}
	// The page is tried before results are read.
	if _, code, err := execute("report", "report_test.go", "--html", nowhere); code != exitUsage || err == nil || !strings.Contains(err.Error(), "--html: "+nowhere) {
		t.Errorf("report: exit %d, %v", code, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// check --in needs a place for what one rank computes, beside the file.
func TestCheckNeedsAPlaceBesideTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.safetensors")
	sample(t, path, map[string]string{"causal": "true"}, 1, 2, 2, 30, 4, nil)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// In this folder not even root makes another.
	out, code, err := execute("check", "--ranks", "3", "--in", fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if code != exitUsage || err == nil || !strings.Contains(err.Error(), ".ringattn-check-") {
		t.Errorf("exit %d, %v\n%s", code, err, out)
	}
}

// The header says on how many nodes the ranks are, and what flags say of layout and schedule
// that no column has; each row its layout and schedule.
func TestHeadersSayWhereRanksAre(t *testing.T) {
	for _, c := range []struct{ args, header, row string }{
		{"check --ranks 3 --layout zigzag --schedule ring", ", 3 ranks (--ranks, in one process) on 1 node\n", "  zigzag +ring "},
		{
			"check --ranks 4 --layout balanced --grain 8 --schedule two-level --ranks-per-node 2",
			", 4 ranks (--ranks, in one process) on 2 nodes of 2 ranks (--ranks-per-node), --grain 8\n", " balanced +two-level ",
		},
		{"check --ranks 3 --shards 10,20,34 --schedule direct", ", 3 ranks (--ranks, in one process) on 1 node, --shards 10,20,34\n", " shards +direct "},
		{
			"bench --ranks 3 --repeats 1 --layout zigzag --schedule direct --stage-tokens 20 --ranks-per-node 2 --ranks-sweep=1,3",
			", 3 ranks (--ranks, in one process) on 2 nodes of 1 to 2 ranks (--ranks-per-node), --stage-tokens 20\n", " zigzag +direct ",
		},
		{"bench --ranks 3 --repeats 1 --layout zigzag --schedule ring --ranks-sweep=2", ", 2 of 3 ranks (--ranks, in one process) on 1 node\n", " zigzag +ring "},
	} {
		out, code, err := execute(append(strings.Fields(c.args), "--seq", "64", "--log-level", "error")...)
		if code != exitOK || !strings.Contains(out, c.header) || !regexp.MustCompile(c.row).MatchString(out) {
			t.Errorf("%s: exit %d, %v, want %q and %q\n%s", c.args, code, err, c.header, c.row, out)
		}
	}
}
