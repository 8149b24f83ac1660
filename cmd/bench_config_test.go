package cmd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"ringattn/report"
)

// configFile writes a file for --config.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sweep.yaml")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// A file says what flags say, and flags have the last word.
func TestBenchConfig(t *testing.T) {
	path := configFile(t, `# a sweep
ranks: 2
seq: [40, 2k]
mask:
  - causal
  - window:9,full # one mask of two parts
heads: 2/1
head-dim: 16
pass: [forward, backward]
repeats: 2
threads: 1
ranks-sweep: true
output: jsonl
log-level: error
`)
	for _, c := range []struct {
		args  []string
		seqs  []int
		masks []string
		n     int
	}{
		{nil, []int{40, 2048}, []string{"causal", "window:9"}, 16},
		{[]string{"--seq", "30", "--pass", "forward"}, []int{30}, []string{"causal", "window:9"}, 4},
		{[]string{"--mask", "full", "--ranks-sweep=2"}, []int{40, 2048}, []string{"full"}, 4},
	} {
		text, code, err := execute(append([]string{"bench", "--config", path}, c.args...)...)
		if code != exitOK {
			t.Fatalf("%q: %v", c.args, err)
		}
		_, _, _, results := records(t, text)
		if len(results) != c.n {
			t.Errorf("%q: %d results, want %d", c.args, len(results), c.n)
		}
		distinct := func(of func(r report.Result) string) (list []string) {
			for _, r := range results {
				if x := of(r); !slices.Contains(list, x) {
					list = append(list, x)
				}
			}
			return list
		}
		seqs := distinct(func(r report.Result) string { return (&lengths{r.Seq}).String() })
		masks := distinct(func(r report.Result) string { return r.Mask })
		l := lengths(c.seqs)
		if strings.Join(seqs, ",") != l.String() || len(masks) != len(c.masks) || !strings.HasPrefix(masks[0], c.masks[0]) {
			t.Errorf("%q: lengths %q, masks %q", c.args, seqs, masks)
		}
		for _, r := range results {
			if r.Heads != 2 || r.KVHeads != 1 || r.HeadDim != 16 {
				t.Errorf("%+v", r)
			}
		}
	}
}

// What is not understood is refused, with its line and column.
func TestBenchConfigRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"seq: 40\n\n  \nhead_dim: 64\n":      `:4:1: there is no setting "head_dim"`,
		"seq: 40\nconfig: other\n":           ":2:1: there is no setting",
		"seq: 40\nseq: 50\n":                 ":2:1: seq is there twice",
		"seq: [40, many]\n":                  ":1:11: ",
		"seq: 40\nrepeats: some\n":           ":2:10: ",
		"seq: 40\nrepeats: [1, 2]\n":         ":2:10: ",
		"seq: {from: 1}\n":                   ":1:6: seq is neither",
		"seq: [[1]]\n":                       ":1:7: seq is neither",
		"seq:\n":                             "seq is neither",
		"seq: []\n":                          ":1:6: seq is neither",
		"a: &x 1\nseq: *x\n":                 ":1:1: ",
		"- seq\n":                            ":1:1: want lines",
		"seq: 40\n---\nseq: 50\n":            "more than one document",
		"":                                   "is empty",
		"# nothing\n":                        "is empty",
		"seq: [40\n":                         "line ",
		"seq: 40\nresume: maybe\nout: x\n":   ":2:9: ",
		"seq: 40\nmask: spiral\n":            "spiral",
		"seq: 40\n? [a]\n: 1\n":              ":2:3: there is no setting",
		"seq: 40\nranks-sweep: [1, 2, 99]\n": "there are 2 ranks",
	} {
		_, code, err := execute("bench", "--ranks", "2", "--repeats", "1", "--log-level", "error", "--config", configFile(t, text))
		// A flag of the command line hides the file's repeats, not what is wrong with them.
		if strings.Contains(text, "repeats") {
			_, code, err = execute("bench", "--ranks", "2", "--log-level", "error", "--config", configFile(t, text))
		}
		if code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: exit %d: %v; want %q", text, code, err, want)
		}
	}
	if _, code, err := execute("bench", "--config", "nowhere.yaml"); code != exitUsage || !strings.Contains(err.Error(), "nowhere.yaml") {
		t.Errorf("exit %d: %v", code, err)
	}
}

func TestLengths(t *testing.T) {
	for text, want := range map[string]string{"4096": "4096", "32k,1m": "32768,1048576", " 7 , 8": "7,8", "0": "0"} {
		var l lengths
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.Var(&l, "seq", "")
		if err := f.Parse([]string{"--seq", text}); err != nil || l.String() != want {
			t.Errorf("%q: %v (%v)", text, l, err)
		}
	}
	for _, text := range []string{"", "k", "4kk", "1g", "1.5k", "4096,", "9223372036854775807k"} {
		if err := new(lengths).Set(text); err == nil {
			t.Errorf("%q is no error", text)
		}
	}
}
