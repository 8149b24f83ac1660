package cmd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"ringattn/cases"
	"ringattn/tensorfile"
)

// runTo runs the main job in this process and returns its output file.
func runTo(t testing.TB, in string, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.safetensors")
	text, code, err := execute(append([]string{"run", "--in", in, "--out", out}, args...)...)
	if code != exitOK {
		t.Fatalf("run %v: exit %d: %v\n%s", args, code, err, text)
	}
	return out
}

// What run writes, all of it: rows that see nothing are exact zeros and -Inf,
// dtypes are the inputs', every number is within the bounds once it is rounded.
func TestRunWritesTheAnswers(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files")
	}
	for _, in := range files {
		for _, f32 := range []bool{false, true} {
			args := []string{"--ranks", "3", "--layout", "zigzag"}
			if f32 {
				args = append(args, "--out-dtype", "f32")
			}
			out := runTo(t, in, args...)
			_, q := readTensor(t, in, "q")
			maxLSE := 0.0
			lse, _ := readTensor(t, in, "lse")
			for _, x := range lse {
				if !math.IsInf(x, -1) {
					maxLSE = max(maxLSE, math.Abs(x))
				}
			}
			for _, tensor := range []string{"out", "lse", "dq", "dk", "dv"} {
				got, info := readTensor(t, out, tensor)
				want, wantInfo := readTensor(t, in, tensor)
				dtype := q.DType
				if f32 || tensor == "lse" {
					dtype = tensorfile.F32
				}
				if info.DType != dtype || fmt.Sprint(info.Shape) != fmt.Sprint(wantInfo.Shape) {
					t.Errorf("%s: %s is %s %v, want %s %v", in, tensor, info.DType, info.Shape, dtype, wantInfo.Shape)
					continue
				}
				if err := compare(tensor, dtypes[dtype].String(), maxLSE, got, want, int(q.Shape[3])); err != nil {
					t.Errorf("%s: %s: %v", filepath.Base(in), tensor, err)
				}
			}
		}
	}
}

// compare holds a whole tensor against the error measure; a wanted row of zeros,
// or -Inf, must be exactly that.
func compare(tensor, dtype string, maxLSE float64, got, want []float64, step int) error {
	if tensor == "lse" {
		step = 1
	}
	nothing := func(row []float64) bool {
		for _, x := range row {
			if x != 0 && !math.IsInf(x, -1) {
				return false
			}
		}
		return tensor == "out" || math.IsInf(row[0], -1)
	}
	var n cases.Norm
	for i := 0; i < len(want); i += step {
		n.Add(want[i:i+step], nothing(want[i:i+step]))
	}
	m := cases.NewMeasure(n, 1)
	for i := 0; i < len(want); i += step {
		cases.AddRow(m, tensor, got[i:i+step], want[i:i+step], nothing(want[i:i+step]))
	}
	return m.Check(cases.Bounds(dtype, tensor, maxLSE))
}

// sample is an input with random tensors.
func sample(t testing.TB, path string, metadata map[string]string, batch, heads, kv, tokens, d int64, change func(name string, i int, v float64) float64, more ...tensor) {
	t.Helper()
	if change == nil {
		change = func(_ string, _ int, v float64) float64 { return v }
	}
	bshd := metadata["layout"] == "BSHD"
	x := func(name string, h int64) tensor {
		shape := []int64{batch, h, tokens, d}
		if bshd {
			shape = []int64{batch, tokens, h, d}
		}
		return tensor{name, tensorfile.F32, shape, func(i int) float64 {
			// The value belongs to (b, h, s, d), whatever the layout.
			b, a, c, e := int64(i)/(h*tokens*d), int64(i)/(tokens*d)%h, int64(i)/d%tokens, int64(i)%d
			if bshd {
				a, c = int64(i)/d%h, int64(i)/(h*d)%tokens
			}
			r := rand.New(rand.NewPCG(uint64(name[0])<<8|uint64(len(name)), uint64(((b*h+a)*tokens+c)*d+e)))
			return change(name, int(c), float64(float32(r.NormFloat64())))
		}}
	}
	writeFile(t, path, metadata, append([]tensor{x("q", heads), x("k", kv), x("v", kv), x("dout", heads)}, more...)...)
}

func ids(name string, tokens int64, v ...int64) tensor {
	return tensor{name, tensorfile.I64, []int64{1, tokens}, func(i int) float64 { return float64(v[i]) }}
}

// The same command gives the same bytes, with any number of threads.
func TestRunIsDeterministic(t *testing.T) {
	in := filepath.Join(realDir, "lm_global.safetensors")
	want := ""
	for _, threads := range []string{"1", "1", "3"} {
		text, err := os.ReadFile(runTo(t, in, "--ranks", "4", "--threads", threads))
		if err != nil {
			t.Fatal(err)
		}
		if want == "" {
			want = string(text)
		} else if string(text) != want {
			t.Errorf("%s threads: the bytes differ", threads)
		}
	}
}

// NaN and Inf in padding reach nothing; NaN in a real token reaches its own
// document and no other; and a change in one document changes no bit of another.
func TestDocumentsAndPaddingDoNotLeak(t *testing.T) {
	dir := t.TempDir()
	const tokens = 40
	doc := []int64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, -5, -5, -5}
	meta := map[string]string{"causal": "true"}
	make := func(name string, change func(string, int, float64) float64) string {
		path := filepath.Join(dir, name)
		sample(t, path, meta, 1, 4, 2, tokens, 16, change, ids("packed_seq_ids", tokens, doc...))
		return path
	}
	clean := make("clean", nil)
	padding := make("padding", func(_ string, pos int, v float64) float64 {
		switch {
		case doc[pos] <= 0 && pos%2 == 0:
			return math.NaN()
		case doc[pos] <= 0:
			return math.Inf(1)
		}
		return v
	})
	poisoned := make("poisoned", func(name string, pos int, v float64) float64 {
		if pos == 15 && name != "dout" {
			return math.NaN()
		}
		return v
	})
	changed := make("changed", func(_ string, pos int, v float64) float64 {
		if doc[pos] == 7 {
			return v + 1
		}
		return v
	})
	for _, ranks := range []string{"1", "4", "8"} {
		args := []string{"--ranks", ranks, "--layout", "contiguous"}
		want := runTo(t, clean, args...)
		for _, c := range []struct {
			in      string
			touched bool // document 7 may differ
		}{{padding, false}, {poisoned, true}, {changed, true}} {
			out := runTo(t, c.in, args...)
			for _, name := range []string{"out", "lse", "dq", "dk", "dv"} {
				a, info := readTensor(t, want, name)
				b, _ := readTensor(t, out, name)
				row := 1
				if len(info.Shape) == 4 {
					row = int(info.Shape[3])
				}
				differ := false
				for i := range a {
					if math.Float64bits(a[i]) == math.Float64bits(b[i]) {
						continue
					}
					if pos := i / row % tokens; !c.touched || doc[pos] != 7 {
						t.Fatalf("%s ranks, %s: %s of token %d changes from %v to %v", ranks, filepath.Base(c.in), name, pos, a[i], b[i])
					}
					differ = true
				}
				if differ != c.touched {
					t.Errorf("%s ranks, %s: %s: document 7 differs: %v", ranks, filepath.Base(c.in), name, differ)
				}
			}
		}
	}
}

// Both tensor layouts of one problem have the same numbers.
func TestTensorLayouts(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	sample(t, a, map[string]string{"causal": "true"}, 2, 4, 2, 23, 6, nil)
	sample(t, b, map[string]string{"causal": "true", "layout": "BSHD"}, 2, 4, 2, 23, 6, nil)
	x, y := runTo(t, a, "--ranks", "3"), runTo(t, b, "--ranks", "3")
	for _, name := range []string{"out", "lse", "dq", "dk", "dv"} {
		v, info := readTensor(t, x, name)
		w, other := readTensor(t, y, name)
		h, s, d := int(info.Shape[1]), int(info.Shape[2]), 1
		if len(info.Shape) == 4 {
			d = int(info.Shape[3])
		}
		if want := []int64{2, int64(s), int64(h)}; fmt.Sprint(other.Shape[:3]) != fmt.Sprint(want) {
			t.Fatalf("%s has shape %v", name, other.Shape)
		}
		for i := range v {
			bt, ht, st, dt := i/(h*s*d), i/(s*d)%h, i/d%s, i%d
			if v[i] != w[((bt*s+st)*h+ht)*d+dt] {
				t.Fatalf("%s[%d,%d,%d,%d] differs", name, bt, ht, st, dt)
			}
		}
	}
}

// Flags override what the file says, and both ways of saying it agree.
func TestFlagsOverrideMetadata(t *testing.T) {
	dir := t.TempDir()
	plain, told := filepath.Join(dir, "plain"), filepath.Join(dir, "told")
	types := ids("mm_token_type_ids", 9, 0, 1, 2, 2, 0, 1, 0, 0, 3)
	sample(t, plain, map[string]string{"unknown": "ignored", "causal": "false"}, 1, 2, 2, 9, 5, nil, types)
	sample(t, told, map[string]string{"causal": "true", "window": "2", "scale": "0.25", "vision_bidirectional": "true"}, 1, 2, 2, 9, 5, nil, types)
	a := runTo(t, plain, "--ranks", "2", "--causal", "--window", "2", "--scale", "0.25", "--vision-bidirectional", "--layout", "contiguous")
	b := runTo(t, told, "--ranks", "2", "--layout", "contiguous")
	x, err1 := os.ReadFile(a)
	y, err2 := os.ReadFile(b)
	if err1 != nil || err2 != nil || string(x) != string(y) {
		t.Error("the results differ")
	}
}

// Forward alone: without dout there are no gradients.
func TestForwardOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	one := func(int) float64 { return 1 }
	writeFile(t, path, nil, tensor{"q", tensorfile.BF16, []int64{1, 2, 5, 4}, one}, tensor{"k", tensorfile.BF16, []int64{1, 1, 5, 4}, one}, tensor{"v", tensorfile.BF16, []int64{1, 1, 5, 4}, one})
	out := runTo(t, path, "--ranks", "2", "--causal")
	f, err := tensorfile.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := len(f.Tensors()); n != 2 {
		t.Errorf("%d tensors: %v", n, f.Tensors())
	}
	lse, _ := readTensor(t, out, "lse")
	for i, x := range lse {
		if want := 2 + math.Log(float64(i%5+1)); math.Abs(x-want) > 1e-6 {
			t.Errorf("lse[%d] is %v, want %v", i, x, want)
		}
	}
}

// What does not describe an attention problem is refused by name.
func TestBadInputsAreRefused(t *testing.T) {
	one := func(int) float64 { return 1 }
	f32 := func(name string, shape ...int64) tensor { return tensor{name, tensorfile.F32, shape, one} }
	base := []tensor{f32("q", 1, 4, 6, 8), f32("k", 1, 2, 6, 8), f32("v", 1, 2, 6, 8)}
	with := func(more ...tensor) []tensor { return append(append([]tensor{}, base...), more...) }
	causal := map[string]string{"causal": "true"}
	for _, c := range []struct {
		want string // in the error
		meta map[string]string
		x    []tensor
	}{
		{"causal", nil, base},
		{`"v"`, causal, base[:2]},
		{`"v"`, causal, []tensor{base[0], base[1], f32("v", 1, 2, 7, 8)}},
		{`"k"`, causal, []tensor{base[0], f32("k", 1, 2, 6, 9), base[2]}},
		{`"k"`, causal, []tensor{base[0], f32("k", 2, 2, 6, 8), f32("v", 2, 2, 6, 8)}},
		{"multiple", causal, []tensor{base[0], f32("k", 1, 3, 6, 8), f32("v", 1, 3, 6, 8)}},
		{"4 dimensions", causal, []tensor{f32("q", 4, 6, 8), base[1], base[2]}},
		{`"q"`, causal, []tensor{f32("q", 1, 4, 0, 8), f32("k", 1, 2, 0, 8), f32("v", 1, 2, 0, 8)}},
		{`"dout"`, causal, with(f32("dout", 1, 2, 6, 8))},
		{`"dout"`, causal, with(tensor{"dout", tensorfile.BF16, []int64{1, 4, 6, 8}, one})},
		{`"packed_seq_ids"`, causal, with(tensor{"packed_seq_ids", tensorfile.I64, []int64{1, 7}, one})},
		{`"packed_seq_ids"`, causal, with(f32("packed_seq_ids", 1, 6))},
		{`"padding_mask"`, causal, with(tensor{"padding_mask", tensorfile.I32, []int64{1, 6}, one})},
		{"I64, want F32", causal, []tensor{{"q", tensorfile.I64, []int64{1, 4, 6, 8}, one}, base[1], base[2]}},
		{"yes", map[string]string{"causal": "yes"}, base},
		{"True", map[string]string{"causal": "True"}, base},
		{"window", map[string]string{"causal": "true", "window": "1.5"}, base},
		{"scale", map[string]string{"causal": "true", "scale": "inf"}, base},
		{"bshd", map[string]string{"causal": "true", "layout": "bshd"}, base},
		{"mm_token_type_ids", map[string]string{"causal": "true", "vision_bidirectional": "true"}, base},
	} {
		dir := t.TempDir()
		in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
		writeFile(t, in, c.meta, c.x...)
		_, code, err := execute("run", "--in", in, "--out", out, "--ranks", "2")
		if code != exitUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("exit %d, want %d with %q: %v", code, exitUsage, c.want, err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%q: files are left: %v", c.want, left)
		}
	}
}

// The table says who ran where and what it did: the pairs of all ranks are those
// of the mask.
func TestRunReport(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	text, code, err := execute("run", "--ranks", "3", "--layout", "contiguous", "--in", filepath.Join(goldenDir, "causal_single.safetensors"), "--out", out)
	if code != exitOK {
		t.Fatal(err)
	}
	pairs := 0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) > 12 && f[5] == "forward" {
			n, err := strconv.Atoi(f[14])
			if err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			pairs += n
		}
	}
	if want := 64 * 65 / 2; pairs != want {
		t.Errorf("the pairs are %d, want %d:\n%s", pairs, want, text)
	}
	for _, want := range []string{"causal, 1 document", "3 (--ranks", "backward", "exposed wait", "wrote"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
}
