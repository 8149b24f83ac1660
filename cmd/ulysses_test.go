package cmd

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ringattn/cases"
	"ringattn/ring"
	"ringattn/segments"
	"ringattn/shard"
)

// Files with known results on groups of ranks that exchange heads, on every layout; a file
// whose heads cannot be cut is refused.
func TestUlyssesOnFiles(t *testing.T) {
	var files []string
	for _, dir := range []string{goldenDir, realDir} {
		found, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		if err != nil || len(found) == 0 {
			t.Fatalf("no files in %s", dir)
		}
		files = append(files, found...)
	}
	turn, refused := 0, 0
	for _, groups := range []struct{ ranks, members string }{{"2", "2"}, {"4", "2"}, {"4", "4"}, {"6", "2"}, {"8", "2"}, {"8", "4"}} {
		for _, path := range files {
			in, err := shard.Open(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			heads := in.Heads
			in.File.Close()
			for _, layout := range layouts {
				schedule := ring.Schedules[turn%len(ring.Schedules)]
				turn++
				args := []string{"check", "--in", path, "--ranks", groups.ranks, "--ulysses", groups.members, "--layout", layout, "--schedule", schedule, "--threads", "1"}
				out, code, err := execute(args...)
				switch {
				case heads%int(groups.members[0]-'0') == 0 && code != exitOK:
					t.Errorf("%v: exit %d: %v\n%s", args, code, err, out)
				case heads%int(groups.members[0]-'0') > 0:
					if refused++; code != exitUsage || !strings.Contains(err.Error(), "query heads") {
						t.Errorf("%v: %d query heads, exit %d: %v", args, heads, code, err)
					}
				}
			}
		}
	}
	if refused == 0 {
		t.Error("no file was refused")
	}
}

// However query and KV heads divide among the members, results are those of one rank, and
// the same bits for any number of threads.
func TestUlyssesHeads(t *testing.T) {
	const tokens = 60
	ids := make([]int64, tokens)
	for i := range ids {
		ids[i] = int64(1 + i/17%3) // one document in two runs
		if i%19 == 18 {
			ids[i] = 0
		}
	}
	rows := []segments.Row{segments.NewRow(tokens, ids, nil, nil), segments.SingleDocument(tokens)}
	for _, c := range []struct{ heads, kvHeads, members, ranks int }{
		{8, 4, 2, 4}, {8, 4, 4, 8}, // whole KV heads
		{8, 2, 4, 4}, {4, 1, 4, 8}, {4, 1, 2, 2}, // several members read one KV head
		{6, 3, 2, 4},   // one KV head is read by two members, with others
		{12, 6, 4, 8},  // a member reads half of one KV head's queries and all of another's
		{15, 5, 3, 6},  // whole ones again
		{12, 4, 6, 12}, // three members to two KV heads
	} {
		for i, layout := range layouts {
			p := randomCase{cases.Shape{
				Batch: 2, Tokens: tokens, Heads: c.heads, KVHeads: c.kvHeads, HeadDim: 16, DType: "f32",
				Mask: segments.Mask{Causal: true, Rows: rows},
			}}
			o := testOptions(layout, "cpu")
			o.schedule = []string{"ring", "direct", "two-level"}[i]
			want := results(t, p, o, 1, 1)
			o.ulysses = c.members
			got := results(t, p, o, c.ranks, 2)
			for tensor := range want {
				bound, _ := cases.Bounds("f32", tensor, 4)
				var diff, norm float64
				for i, x := range want[tensor] {
					if d := float64(got[tensor][i]) - float64(x); !(math.IsInf(float64(x), -1) && got[tensor][i] == x) {
						diff, norm = diff+d*d, norm+float64(x)*float64(x)
					}
				}
				if e := math.Sqrt(diff / norm); !(e <= bound) {
					t.Errorf("%+v, %s, %s: %s is %.1e off", c, layout, o.schedule, tensor, e)
				}
			}
			o.threads = 3
			for tensor, again := range results(t, p, o, c.ranks, 1) {
				if !slices.EqualFunc(again, got[tensor], func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
					t.Errorf("%+v, %s, %s: %s has other bits with other threads", c, layout, o.schedule, tensor)
				}
			}
		}
	}
}

// The flags of the exchange: what is accepted, what refused, and what plan and run say.
func TestExchangeFlags(t *testing.T) {
	shape := "--seq 64 --mask causal --heads 4/2 --head-dim 8 "
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"plan --ranks 4 --ulysses 2 " + shape, exitOK, "ulysses 2"},
		{"plan --ranks 4 --ulysses 2 --json " + shape, exitOK, `"ulysses":2`},
		{"plan --ranks 4 --json " + shape, exitOK, `"ulysses":1,"wire_gradients":"f32"`},
		{"plan --ranks 4 --wire-gradients bf16 --json " + shape, exitOK, `"wire_gradients":"bf16"`},
		{"plan --ranks 4 --ulysses 2 --ranks-per-node 2 --compare " + shape, exitOK, "two-level, ulysses 2"},
		{"plan --ranks 4 --ulysses 3 " + shape, exitUsage, "4 ranks are no whole number of groups"},
		{"plan --ranks 8 --ulysses 8 " + shape, exitUsage, "4 query heads"},
		{"plan --ranks 4 --ulysses 0 " + shape, exitUsage, "--ulysses is 0"},
		{"plan --ranks 4 --ulysses 2 --ranks-per-node 1 --schedule two-level " + shape, exitUsage, "each group on one node"},
		{"plan --ranks 4 --ulysses 2 --ranks-per-node 1 " + shape, exitOK, "ulysses 2"},
		{"plan --ranks 4 --wire-gradients f16 " + shape, exitUsage, "there is: f32, bf16"},
		{"plan --ranks 4 --stage-tokens 4 --schedule ring " + shape, exitUsage, "--stage-tokens"},
		{"plan --ranks 4 --stage-tokens 4 --schedule direct " + shape, exitOK, "direct"},
		{"plan --ranks 4 --grain 4 --layout zigzag " + shape, exitUsage, "--grain"},
		{"plan --ranks 4 --grain 8 --layout balanced " + shape, exitOK, "[0,8)"},
		{"check --ranks 4 --ulysses 3 --in " + realDir + "/lm_global.safetensors", exitUsage, "groups"},
		{"check --ranks 4 --ulysses 2 --wire-gradients bf16 --golden " + realDir, exitOK, "0 failed"},
	} {
		out, code, err := execute(strings.Fields(c.args)...)
		if text := fmt.Sprint(out, err); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", c.args, code, c.code, c.want, text)
		}
	}
}

// Gradients that travel in bf16 are within the bounds of bf16 on every file, layout and
// schedule, and out, lse and dq within their own.
func TestWireGradientsOnFiles(t *testing.T) {
	for i, layout := range layouts {
		for _, ranks := range []string{"2", "3", "8"} {
			args := []string{"check", "--golden", goldenDir, "--ranks", ranks, "--layout", layout, "--schedule", ring.Schedules[i], "--wire-gradients", "bf16", "--threads", "1"}
			if out, code, err := execute(args...); code != exitOK {
				t.Errorf("%v: exit %d: %v\n%s", args, code, err, out)
			}
		}
	}
}
