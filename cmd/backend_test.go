package cmd

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"ringattn/gpu"
	"ringattn/kernels"
)

// H1: where there is no GPU, --backend cuda says why and is an error of the environment;
// auto computes on the CPU.
func TestWithoutAGPU(t *testing.T) {
	facts := kernels.LookCUDA()
	if facts.Devices > 0 {
		t.Skip("this machine has a GPU")
	}
	if facts.Why == nil {
		t.Fatal("no GPU and no reason")
	}
	for _, command := range []string{"run", "check", "bench"} {
		args := []string{command, "--backend", "cuda", "--ranks", "2"}
		switch command {
		case "run":
			args = append(args, "--in", goldenDir+"/gqa_4to1.safetensors", "--out", t.TempDir()+"/out.safetensors")
		default:
			args = append(args, "--seq", "20")
		}
		_, code, err := execute(args...)
		if code != exitEnvironment || !strings.Contains(err.Error(), facts.Why.Error()) || !strings.Contains(err.Error(), "--backend cuda") {
			t.Errorf("%v: exit %d: %v, want %v in it", args, code, err, facts.Why)
		}
	}
	if out, code, err := execute("check", "--backend", "auto", "--ranks", "2", "--seq", "20"); code != exitOK {
		t.Errorf("auto: exit %d: %v\n%s", code, err, out)
	}
}

// F9: who shares a GPU goes by its UUID and its node.
func TestGPUSharers(t *testing.T) {
	hosts := []hostFacts{
		{Host: "a", GPU: "GPU-1"}, {Host: "a", GPU: "GPU-2"}, {Host: "b", GPU: "GPU-1"}, {Host: "a", GPU: "GPU-1"}, {Host: "a"}, {Host: "a"},
	}
	var sharers []int
	var first []bool
	for r := range hosts {
		sharers, first = append(sharers, gpuSharers(hosts, r)), append(first, firstOfGPU(hosts, r))
	}
	if !slices.Equal(sharers, []int{2, 1, 1, 2, 0, 0}) || !slices.Equal(first, []bool{true, true, true, false, false, false}) {
		t.Errorf("sharers %v, first %v", sharers, first)
	}
}

// A problem is refused where the ranks that share a memory want more of it than is free,
// each memory by itself.
func TestRefusedMemory(t *testing.T) {
	node := func(bytes int64) claim { return claim{"node a", bytes, 1000} }
	gpu := func(name string, bytes int64) claim { return claim{"GPU " + name + " of node a", bytes, 100} }
	for _, c := range []struct {
		name   string
		claims [][]claim
		want   string // "": it fits
	}{
		{"a GPU each", [][]claim{{node(400), gpu("1", 90)}, {node(400), gpu("2", 90)}}, ""},
		{"one GPU", [][]claim{{node(400), gpu("1", 40)}, {node(400), gpu("1", 70)}}, "rank 0 needs 40 B, 2 ranks of GPU 1 of node a together 110 B, free are 100 B"},
		{"the node", [][]claim{{node(600), gpu("1", 90)}, {node(600)}}, "rank 0 needs 600 B, 2 ranks of node a together 1.2 KiB, free are 1000 B"},
		{"others' memory", [][]claim{{node(10)}, {{"node b", 5000, 100}}}, "rank 1 needs 4.9 KiB, 1 rank of node b together 4.9 KiB, free are 100 B"},
		{"not known", [][]claim{{{"node a", 1 << 40, 0}}}, ""},
	} {
		err := refuse(c.claims)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (exitCode(err) != exitEnvironment || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: exit %d, %v, want %q", c.name, exitCode(err), err, c.want)
		}
	}
}

// The record of a GPU has the fields that the published schema has, and no others;
// what could not be read is null.
func TestGPURecord(t *testing.T) {
	text, err := os.ReadFile("../docs/bench.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Defs map[string]struct {
			Required   []string
			Properties struct{ NVML schemaType }
		} `json:"$defs"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	text, err = json.Marshal(&gpuRecord{NVML: gpu.None(errors.New("there is no library"))})
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	nvml := record["nvml"].(map[string]any)
	if nvml["unread"].(map[string]any)["nvml"] != "there is no library" {
		t.Errorf("unread is %v", nvml["unread"])
	}
	delete(nvml, "unread")
	for name, x := range nvml {
		if x != nil {
			t.Errorf("%s is %v, want null", name, x)
		}
	}
	for _, c := range []struct {
		got  map[string]any
		want []string
	}{{record, schema.Defs["gpu"].Required}, {nvml, schema.Defs["gpu"].Properties.NVML.Required}} {
		var names []string
		for name := range c.got {
			names = append(names, name)
		}
		slices.Sort(names)
		slices.Sort(c.want)
		if !slices.Equal(names, c.want) {
			t.Errorf("the record has %v, the schema %v", names, c.want)
		}
	}
}
