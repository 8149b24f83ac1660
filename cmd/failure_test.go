package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ringattn/cases"
	"ringattn/segments"
	"ringattn/shard"
	"ringattn/tensorfile"
)

// A job that ends while its output is being written leaves nothing behind.
func TestAFailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	in, err := shard.Open(filepath.Join(goldenDir, "gqa_4to1.safetensors"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer in.File.Close()
	stop := errors.New("stop it")
	err = runInProcess(context.Background(), testOptions("zigzag", "cpu"), io.Discard, 3, "test", func(ctx context.Context, w *world) error {
		p, err := w.openProblem(ctx, in)
		if err != nil {
			return err
		}
		a, err := newAttention(ctx, w, p)
		if err != nil {
			return err
		}
		if _, err := a.passes(ctx); err != nil {
			return err
		}
		cancelled, cancel := context.WithCancelCause(ctx)
		cancel(stop)
		return a.write(cancelled, in, filepath.Join(dir, "out"), false)
	})
	if !errors.Is(err, stop) {
		t.Errorf("the error is %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Names of files need not be UTF-8.
func TestNamesOfAnyBytes(t *testing.T) {
	dir := t.TempDir() + "/\xff"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	in, out := dir+"/in\xfe.safetensors", dir+"/out\xfd.safetensors"
	sample(t, in, map[string]string{"causal": "true"}, 1, 2, 2, 30, 4, nil)
	for _, args := range [][]string{{"run", "--in", in, "--out", out, "--trace", dir + "/trace\xfc"}, {"check", "--in", in}} {
		if text, code, err := execute(append(args, "--ranks", "3")...); code != exitOK {
			t.Errorf("%q: exit %d: %v\n%s", args, code, err, text)
		}
	}
	var names []string
	left, err := os.ReadDir(dir)
	for _, e := range left {
		names = append(names, e.Name())
	}
	if want := []string{"in\xfe.safetensors", "out\xfd.safetensors", "trace\xfc"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("files %q, want %q (%v)", names, want, err)
	}
}

// A panic in a rank is an internal error, not a crash.
func TestAPanicIsAnInternalError(t *testing.T) {
	err := runInProcess(context.Background(), testOptions("zigzag", "cpu"), io.Discard, 2, "test", func(_ context.Context, w *world) error {
		if w.Rank() == 1 {
			panic("broken")
		}
		return nil
	})
	if exitCode(err) != exitInternal || !strings.Contains(err.Error(), "broken") {
		t.Errorf("exit %d: %v", exitCode(err), err)
	}
}

// Ranks that were started for different commands or problems say so.
func TestRanksAgreeFirst(t *testing.T) {
	for _, field := range []string{"the command", "the shapes"} {
		err := runInProcess(context.Background(), testOptions("zigzag", "cpu"), io.Discard, 3, "test", func(ctx context.Context, w *world) error {
			w.command = "check"
			shapes := "a"
			if w.Rank() == 1 && field == "the command" {
				w.command = "run"
			}
			if w.Rank() == 1 && field == "the shapes" {
				shapes = "b"
			}
			return w.agree(ctx, fact{"the shapes", shapes})
		})
		if exitCode(err) != exitEnvironment || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("%s: exit %d: %v", field, exitCode(err), err)
		}
	}
}

// A file whose answers are not all there, or of other shapes, is bad input.
func TestBadAnswersAreRefused(t *testing.T) {
	one := func(int) float64 { return 1 }
	q, kv := []int64{1, 2, 6, 4}, []int64{1, 1, 6, 4}
	f32 := func(name string, shape []int64) tensor { return tensor{name, tensorfile.F32, shape, one} }
	base := []tensor{f32("q", q), f32("k", kv), f32("v", kv), f32("dout", q), f32("lse", q[:3]), f32("dq", q), f32("dk", kv), f32("dv", kv)}
	for name, x := range map[string][]tensor{
		"the shape":   append(base[:8:8], f32("out", []int64{32})),
		"the length":  append(base[:8:8], f32("out", []int64{1, 2, 12, 4})),
		"the dtype":   append(base[:8:8], tensor{"out", tensorfile.BF16, q, one}),
		"one missing": append(base[:7:7], f32("out", q)),
	} {
		path := filepath.Join(t.TempDir(), "in.safetensors")
		writeFile(t, path, map[string]string{"causal": "true"}, x...)
		if _, code, err := execute("check", "--in", path, "--ranks", "2"); code != exitUsage || !strings.Contains(err.Error(), "to compare with") {
			t.Errorf("%s: exit %d: %v", name, code, err)
		}
	}
}

// A file that has become shorter since its header was read is bad input.
func TestATruncatedInputIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.safetensors")
	sample(t, path, map[string]string{"causal": "true"}, 1, 2, 2, 30, 4, nil)
	in, err := shard.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer in.File.Close()
	if err := os.Truncate(path, in.File.Size()/2); err != nil {
		t.Fatal(err)
	}
	err = runInProcess(context.Background(), testOptions("contiguous", "cpu"), io.Discard, 2, "test", func(ctx context.Context, w *world) error {
		p, err := w.openProblem(ctx, in)
		if err == nil {
			_, err = newAttention(ctx, w, p)
		}
		return err
	})
	if exitCode(err) != exitUsage {
		t.Errorf("exit %d: %v", exitCode(err), err)
	}
}

func TestThreadsFromTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		omp, slurm string
		flag, want int
	}{{"4,2", "", 0, 4}, {"", "3", 0, 3}, {"5", "3", 0, 5}, {"many", "", 2, 2}} {
		t.Setenv("OMP_NUM_THREADS", c.omp)
		t.Setenv("SLURM_CPUS_PER_TASK", c.slurm)
		o := testOptions("zigzag", "cpu")
		o.threads = c.flag
		err := runInProcess(context.Background(), o, io.Discard, 1, "test", func(_ context.Context, w *world) error {
			if w.threads != c.want {
				t.Errorf("%+v: %d threads", c, w.threads)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A rank that is interrupted while results are compared says so, whatever it has of the others.
func TestInterruptedWhileComparing(t *testing.T) {
	shape := cases.Shape{
		Name: "causal", Batch: 1, Tokens: 40, Heads: 2, KVHeads: 1, HeadDim: 8, DType: "f32",
		Mask: segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(40)}},
	}
	closed, err := cases.Classes(shape)
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stopped by the test")
	err = runInProcess(context.Background(), testOptions("zigzag", "cpu"), io.Discard, 2, "test", func(ctx context.Context, w *world) error {
		a, err := newAttention(ctx, w, valuedProblem(&closed.Shape, closed))
		if err != nil {
			return err
		}
		if _, err := a.passes(ctx); err != nil {
			return err
		}
		stopped, cancel := context.WithCancelCause(ctx)
		cancel(stop)
		if _, err := a.hold(stopped, closedAnswer{closed}); !errors.Is(err, stop) {
			return fmt.Errorf("hold: %v, want %v", err, stop)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
