package cmd

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ringattn/ring"
	"ringattn/tensorfile"
)

// execute runs a command line in this process.
func execute(args ...string) (stdout string, code int, err error) {
	var out bytes.Buffer
	root := newRoot(&out)
	if len(args) > 0 && (args[0] == "run" || args[0] == "check") {
		// More ranks than CPUs are normal here.
		args = append([]string{args[0], "--log-level", "error"}, args[1:]...)
	}
	root.SetArgs(args)
	err = root.ExecuteContext(context.Background())
	return out.String(), exitCode(err), err
}

const (
	goldenDir = "../testdata/golden"
	realDir   = "../testdata/real"
)

// tensor is one tensor to be written to a test's file.
type tensor struct {
	name  string
	dtype tensorfile.DType
	shape []int64
	value func(i int) float64 // by flat index
}

// writeFile makes a safetensors file.
func writeFile(t testing.TB, path string, metadata map[string]string, tensors ...tensor) {
	t.Helper()
	var specs []tensorfile.Spec
	for _, x := range tensors {
		specs = append(specs, tensorfile.Spec{Name: x.name, DType: x.dtype, Shape: x.shape})
	}
	header, places, size, err := tensorfile.Encode(specs, metadata)
	if err != nil {
		t.Fatal(err)
	}
	file := make([]byte, size)
	copy(file, header)
	for i, x := range tensors {
		p := file[places[i].Offset:][:places[i].Bytes]
		for k := range len(p) / int(x.dtype.Size()) {
			v := x.value(k)
			switch x.dtype {
			case tensorfile.I32:
				binary.LittleEndian.PutUint32(p[4*k:], uint32(int32(v)))
			case tensorfile.I64:
				binary.LittleEndian.PutUint64(p[8*k:], uint64(int64(v)))
			case tensorfile.U8, tensorfile.BOOL:
				p[k] = byte(v)
			default:
				put(dtypes[x.dtype], p[k*int(x.dtype.Size()):], []float32{float32(v)})
			}
		}
	}
	if err := os.WriteFile(path, file, 0o644); err != nil {
		t.Fatal(err)
	}
}

// readTensor reads a float tensor of a file.
func readTensor(t testing.TB, path, name string) (values []float64, info tensorfile.Tensor) {
	t.Helper()
	f, err := tensorfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, ok := f.Lookup(name)
	if !ok {
		t.Fatalf("%s has no tensor %q", path, name)
	}
	p := make([]byte, info.Bytes)
	if err := f.ReadAt(info, p, 0); err != nil {
		t.Fatal(err)
	}
	a := attention{problem: &problem{shape: ring.Shape{DType: dtypes[info.DType]}}}
	for i := range int(info.Bytes / info.DType.Size()) {
		values = append(values, a.given(p, i))
	}
	return values, info
}

func TestGoldenAndRealFiles(t *testing.T) {
	perNode := map[string]string{"1": "1", "2": "1", "3": "1", "4": "2", "6": "3", "8": "4"}
	for _, dir := range []string{goldenDir, realDir} {
		for _, ranks := range []string{"1", "2", "3", "4", "6", "8"} {
			for _, layout := range []string{"contiguous", "zigzag", "balanced"} {
				for _, schedule := range ring.Schedules {
					out, code, err := execute("check", "--golden", dir, "--ranks", ranks, "--layout", layout, "--schedule", schedule, "--ranks-per-node", perNode[ranks], "--threads", "1")
					if code != exitOK {
						t.Errorf("%s, %s ranks, %s, %s: exit %d: %v\n%s", dir, ranks, layout, schedule, code, err, out)
					}
				}
			}
		}
	}
}

// The float64 backend passes the same bounds, and so bounds the bounds.
func TestReferenceBackend(t *testing.T) {
	out, code, err := execute("check", "--golden", goldenDir, "--ranks", "3", "--backend", "ref")
	if code != exitOK {
		t.Errorf("exit %d: %v\n%s", code, err, out)
	}
}

func TestClosedForms(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--seq", "1,2,3,700", "--mask", "causal", "--mask", "full,window:9"},
		{"--seq", "700", "--mask", "full,images:2x100,window:9"},
		{"--seq", "20000", "--heads", "2/1", "--head-dim", "16", "--mask", "window:50", "--mask", "docs:lognormal:200:1"},
	} {
		out, code, err := execute(append([]string{"check", "--ranks", "5"}, args...)...)
		if code != exitOK {
			t.Errorf("%v: exit %d: %v\n%s", args, code, err, out)
		}
	}
}

// check must see an error: a wrong answer beside right inputs is exit 1.
func TestCheckSeesAWrongAnswer(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(goldenDir, "gqa_4to1.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"out", "lse", "dq", "dk", "dv"} {
		path := filepath.Join(t.TempDir(), "wrong.safetensors")
		bad := bytes.Clone(good)
		if err := os.WriteFile(path, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := tensorfile.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := f.Lookup(name)
		f.Close()
		// One number of thousands is off by a twentieth: the tensor hardly moves.
		at := x.Offset + x.Bytes/8*4
		v := math.Float32frombits(binary.LittleEndian.Uint32(bad[at:]))
		binary.LittleEndian.PutUint32(bad[at:], math.Float32bits(v+0.05))
		if err := os.WriteFile(path, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		out, code, _ := execute("check", "--in", path, "--ranks", "2")
		if code != exitWrong || !strings.Contains(out, "FAIL") || !strings.Contains(out, name+":") || !strings.Contains(out, "0 passed, 1 failed") {
			t.Errorf("%s: exit %d\n%s", name, code, out)
		}
	}
}

func TestCheckAgainstOneRank(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.safetensors")
	wave := func(f float64) func(int) float64 {
		return func(i int) float64 { return math.Sin(f * float64(i*i%1009)) }
	}
	writeFile(t, path, map[string]string{"causal": "true"},
		tensor{"q", tensorfile.F32, []int64{1, 4, 50, 24}, wave(1)}, tensor{"k", tensorfile.F32, []int64{1, 2, 50, 24}, wave(2)},
		tensor{"v", tensorfile.F32, []int64{1, 2, 50, 24}, wave(3)}, tensor{"dout", tensorfile.F32, []int64{1, 4, 50, 24}, wave(4)})
	out, code, err := execute("check", "--in", path, "--ranks", "3")
	if code != exitOK || !strings.Contains(out, "(one rank)") {
		t.Errorf("exit %d: %v\n%s", code, err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestUsageErrors(t *testing.T) {
	in := filepath.Join(goldenDir, "causal_single.safetensors")
	for _, c := range []struct {
		args string
		code int
		want string // in the error
	}{
		{"", exitOK, ""},
		{"--help", exitOK, ""},
		{"nonsense", exitUsage, "nonsense"},
		{"sim", exitUsage, "not there yet"},
		{"doctor --help", exitUsage, "not there yet"},
		{"man", exitUsage, "folder"},
		{"run extra", exitUsage, "extra"},
		{"run", exitUsage, "--in"},
		{"run --no-such-flag", exitUsage, "no-such-flag"},
		{"run --in " + in + " --out " + in + " --ranks 1", exitUsage, "is the input file"},
		{"run --in nowhere.safetensors --out x --ranks 1", exitUsage, "nowhere.safetensors"},
		{"run --in " + in + " --out no/such/folder/x --ranks 2", exitUsage, "no/such/folder"},
		{"run --in " + in + " --out x --ranks 1 --causal=perhaps", exitUsage, "perhaps"},
		{"run --in " + in + " --out x --ranks 1 --window=-1", exitUsage, "-1"},
		{"run --in " + in + " --out x --ranks 1 --scale nan", exitUsage, "nan"},
		{"run --in " + in + " --out x --ranks 1 --vision-bidirectional", exitUsage, "mm_token_type_ids"},
		{"run --in " + in + " --out x --ranks 1 --tensor-layout SBHD", exitUsage, "SBHD"},
		{"run --in " + in + " --out x.npy --ranks 1", exitUsage, "npy"},
		{"run --in x.npy --out x --ranks 1", exitUsage, "npy"},
		{"run --in " + in + " --out x --ranks 1 --causal false", exitUsage, "--causal=false"},
		{"run --in " + in + " --out x --ranks 1 --layout=", exitUsage, "--layout"},
		{"run --in " + in + " --out x --ranks 1 --schedule=", exitUsage, "--schedule"},
		{"run --in " + in + " --out x --ranks 3 --shards 9223372036854775807,9223372036854775807,66", exitUsage, "left for it"},
		{"run --in " + in + " --out x --ranks 0", exitUsage, "--ranks is 0"},
		{"run --in " + in + " --out x --ranks 1 --threads 0", exitUsage, "--threads is 0"},
		{"run --in " + in + " --out x --ranks 1 --expect-ranks 0", exitUsage, "--expect-ranks is 0"},
		{"run --in " + in + " --out x --ranks 1 --out-dtype f64", exitUsage, "f64"},
		{"run --in " + in + " --out x --ranks 3 --schedule two-level --ranks-per-node 2", exitUsage, "as many on each"},
		{"run --in " + in + " --out x --ranks 1 --layout spiral", exitUsage, "spiral"},
		{"run --in " + in + " --out x --ranks 2 --shards 60,5", exitUsage, "4 of 64"},
		{"run --in " + in + " --out x --ranks 2 --shards 64", exitUsage, "2 ranks"},
		{"run --in " + in + " --out x --ranks 2 --shards 32,32 --layout zigzag", exitUsage, "--shards"},
		{"run --in " + in + " --out x --ranks 1 --backend cuda", exitEnvironment, "CUDA"},
		{"run --in " + in + " --out x --ranks 1 --transport device", exitEnvironment, "device"},
		{"run --in " + in + " --out x --ranks 1 --transport device --backend ref", exitEnvironment, "device"},
		{"run --in " + in + " --out x --ranks 2 --expect-ranks 4", exitEnvironment, "4"},
		{"run --in " + in + " --out x --ranks -1", exitUsage, "-1"},
		{"run --in " + in + " --out x --ranks 1 --threads -3", exitUsage, "-3"},
		{"run --in " + in + " --out x --ranks 1 --timeout -3s", exitUsage, "-3s"},
		{"run --in " + in + " --out x --ranks 1 --log-level loud", exitUsage, "loud"},
		{"check --golden nowhere --ranks 1", exitUsage, "nowhere"},
		{"check --golden a --in b", exitUsage, "not both"},
		{"check --in " + in + " --seq 5 --ranks 1", exitUsage, "--seq"},
		{"check --seq 0 --ranks 1", exitUsage, "0"},
		{"check --seq 9 --mask windy:3 --ranks 1", exitUsage, "windy"},
		{"check --seq 9 --heads 3/2 --ranks 1", exitUsage, "3/2"},
		{"check --seq 9 --dtype f64 --ranks 1", exitUsage, "f64"},
		{"check --seq 9 --window 3 --ranks 1", exitUsage, "--window"},
		{"check --seq 9 --scale banana --ranks 1", exitUsage, "banana"},
		{"check --causal=false --ranks 1", exitUsage, "--causal"},
		{"check --scale 3 --ranks 1", exitUsage, "--scale"},
		{"check --in " + in + " --window 5 --ranks 1", exitUsage, "--window"},
		{"check --seq 9 --head-dim 2147483648 --ranks 1", exitUsage, "limit"},
		{"check --seq 9 --batch 99999999 --ranks 1", exitUsage, "limit"},
		{"check --seq 9 --scale 0.3 --ranks 2", exitOK, ""},
		{"check --seq 100 --mask window:9223372036854775807,images:3x20 --ranks 5 --layout contiguous", exitOK, ""},
		{"check --seq 9 --mask docs:/dev/zero --ranks 1", exitUsage, "regular file"},
		{"plan --seq 9223372036854775807 --ranks 2", exitUsage, "limit"},
		{"plan --seq 9 --ranks 2 --compare --json", exitUsage, "--compare"},
		{"plan --seq 9 --ranks 2 --machine 400", exitUsage, "--machine"},
		{"plan --seq 9 --ranks 2 --machine 400,x", exitUsage, "--machine"},
		{"plan --seq 9 --ranks 2 --machine 0,50", exitUsage, "--machine"},
		{"plan --seq 9 --ranks 2 --ranks-per-node 0", exitUsage, "--ranks-per-node is 0"},
		{"plan --seq 9", exitUsage, "--ranks"},
		{"plan --ranks 2", exitUsage, "--seq"},
		{"plan --ranks 2 --seq 9 --in " + in, exitUsage, "--seq"},
		{"plan --ranks 2 --seq 9,10", exitUsage, "at a time"},
	} {
		out, code, err := execute(strings.Fields(c.args)...)
		if code != c.code || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("ringattn %s: exit %d (%v), want %d with %q\n%s", c.args, code, err, c.code, c.want, out)
		}
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a failed command left an output file")
	}
	if left, _ := filepath.Glob("x.partial*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestNotEnoughMemoryIsSaidBefore(t *testing.T) {
	t.Setenv("RINGATTN_TEST_FREE_BYTES", "1000")
	_, code, err := execute("check", "--seq", "64", "--ranks", "2")
	if code != exitEnvironment || !strings.Contains(err.Error(), "not enough memory") || !strings.Contains(err.Error(), "rank ") {
		t.Errorf("exit %d: %v", code, err)
	}
}

func TestLaunchersAreHeldToTheirWord(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		args string
		code int
	}{
		{map[string]string{"SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, "check --seq 8", exitEnvironment},
		{map[string]string{"PMI_SIZE": "4"}, "check --seq 8", exitEnvironment},
		{map[string]string{"OMPI_COMM_WORLD_SIZE": "4"}, "check --seq 8 --ranks 4", exitEnvironment},
		{map[string]string{"SLURM_NTASKS": "4"}, "check --seq 8 --ranks 4", exitOK},
		{map[string]string{"OMPI_COMM_WORLD_SIZE": "4"}, "plan --seq 8 --ranks 3", exitOK},
		{map[string]string{"OMPI_COMM_WORLD_SIZE": "4"}, "version", exitOK},
	} {
		t.Run(c.args, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			_, code, err := execute(strings.Fields(c.args)...)
			if code != c.code || code == exitEnvironment && !regexp.MustCompile(`\b4\b.*\b(1|4)\b`).MatchString(err.Error()) {
				t.Errorf("%v, %s: exit %d (%v), want %d", c.env, c.args, code, err, c.code)
			}
		})
	}
}

func TestPlanJSON(t *testing.T) {
	out, code, err := execute("plan", "--json", "--ranks", "4", "--seq", "16", "--heads", "2/1", "--head-dim", "8", "--layout", "zigzag", "--schedule", "ring", "--ranks-per-node", "2")
	if code != exitOK {
		t.Fatalf("exit %d: %v", code, err)
	}
	var got struct {
		Ranks, Tokens    int
		Layout, Schedule string
		Shards           [][][2]int
		PredictedS       *float64 `json:"predicted_s"`
		Forward          struct {
			Pairs             []int64
			BytesSent         []int64 `json:"bytes_sent"`
			BytesLeast        []int64 `json:"bytes_least"`
			BytesBetweenNodes []int64 `json:"bytes_between_nodes"`
			MemoryBytes       []int64 `json:"memory_bytes"`
			Steps             []int
			PairsMaxOverMean  float64 `json:"pairs_max_over_mean"`
			TokensMaxOverMean float64 `json:"tokens_max_over_mean"`
		}
		Backward map[string]any
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	// CASES C5: the map, and 34 pairs on each rank.
	if got.Ranks != 4 || got.Tokens != 16 || got.Layout != "zigzag" || got.Schedule != "ring" || got.PredictedS != nil ||
		len(got.Shards) != 4 || got.Shards[1] != nil && (got.Shards[1][0] != [2]int{2, 4} || got.Shards[1][1] != [2]int{12, 14}) {
		t.Errorf("%s", out)
	}
	for rank, pairs := range got.Forward.Pairs {
		if pairs != 34 || got.Forward.MemoryBytes[rank] <= 0 || got.Forward.Steps[rank] <= 0 {
			t.Errorf("rank %d: %d pairs", rank, pairs)
		}
	}
	if got.Forward.PairsMaxOverMean != 1 || got.Forward.TokensMaxOverMean != 1 || len(got.Backward) != 8 {
		t.Errorf("%s", out)
	}
	// A token has 64 bytes of keys and values, a rank 4 tokens. Those of a rank
	// are needed in full by the ranks before it and the first half by those after.
	// The halves travel each by itself, and no further than they are needed: the
	// first all the way round, so that ranks 1 and 3 send it to the other node, the
	// second from its owner, 1 to 0, 2 to 0 and 1, 3 to 0, 1 and 2, or through these.
	var sent, least int64
	for rank, n := range got.Forward.BytesSent {
		sent, least = sent+n, least+got.Forward.BytesLeast[rank]
	}
	if want := int64(6*4*64 + 6*2*64); least != want || sent != want {
		t.Errorf("%d bytes are sent, the least is %d, want %d", sent, least, want)
	}
	if want := []int64{0, 512, 128, 512}; !slices.Equal(got.Forward.BytesBetweenNodes, want) {
		t.Errorf("%d bytes are sent between nodes, want %d", got.Forward.BytesBetweenNodes, want)
	}
}

func TestPlanText(t *testing.T) {
	out, code, err := execute("plan", "--ranks", "3", "--in", filepath.Join(goldenDir, "docs_window.safetensors"), "--steps")
	for _, want := range []string{"3 ranks", "proved", "rank 2, backward", "attend own-kv", "window 12"} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit %d (%v), %q is missing:\n%s", code, err, want, out)
		}
	}
}

func TestVersion(t *testing.T) {
	out, code, _ := execute("version", "--json")
	var facts map[string]string
	if err := json.Unmarshal([]byte(out), &facts); err != nil || code != exitOK || facts["version"] == "" || facts["mpi"] == "" {
		t.Errorf("exit %d: %v\n%s", code, err, out)
	}
}

func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if _, code, err := execute("man", dir); code != exitOK {
		t.Fatal(err)
	}
	pages, _ := filepath.Glob(filepath.Join(dir, "ringattn*.1"))
	if len(pages) < 5 {
		t.Errorf("man pages: %v", pages)
	}
}
