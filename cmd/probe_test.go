package cmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"ringattn/cases"
	"ringattn/half"
	"ringattn/segments"
)

// probeBackend is what computes the probes; a GPU's machine gives it as cuda.
func probeBackend() string { return cmp.Or(os.Getenv("RINGATTN_TEST_BACKEND"), "cpu") }

// layoutOptions are the flags for a layout of the probes.
func layoutOptions(l segments.Layout) *options {
	o := &options{layout: l.Name, schedule: "auto", backend: probeBackend(), transport: "auto", threads: 1, logLevel: "error"}
	if l.Name == "shards" {
		o.layout = "auto"
		var lengths []string
		for r := range l.Ranks() {
			lengths = append(lengths, fmt.Sprint(l.RankTokens(r)))
		}
		o.shards = strings.Join(lengths, ",")
	}
	return o
}

// The numbers that public bug reports give (CASES A to E), each three times on
// the same memory, in float32 and rounded to the case's own dtype.
func TestProbes(t *testing.T) {
	for _, p := range cases.Probes() {
		if p.Large && p.Name[0] == 'E' && p.Name[1] == '1' && probeBackend() != "cuda" {
			continue // two million tokens with 16 heads want a GPU
		}
		for _, layout := range p.Layouts {
			t.Run(fmt.Sprintf("%s/%d_%s", p.Name, layout.Ranks(), layout.Name), func(t *testing.T) {
				err := runInProcess(context.Background(), layoutOptions(layout), io.Discard, layout.Ranks(), "test", func(ctx context.Context, w *world) error {
					a, err := newAttention(ctx, w, valuedProblem(&p.Shape, &p))
					if err != nil {
						return err
					}
					defer a.close()
					for range 3 {
						if _, err := a.passes(ctx); err != nil {
							return err
						}
					}
					for _, tensor := range a.outputs() {
						if err := holdProbe(a, &p, tensor); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func holdProbe(a *attention, p *cases.Probe, tensor string) (err error) {
	memory := a.tensor(tensor).view(tensor)
	step := a.rowLen(tensor)
	row := make([]float32, step)
	a.eachToken(func(at, b, pos int) {
		for h := range a.width(tensor) / step {
			for d := range row {
				row[d] = float32At(memory.token(at), h*step+d)
			}
			if e := p.Check(tensor, "f32", b, h, pos, row); e != nil && err == nil {
				err = e
			}
			for d, x := range row {
				switch {
				case tensor == "lse":
				case p.DType == "bf16":
					row[d] = half.BF16ToF32(half.F32ToBF16(x))
				case p.DType == "f16":
					row[d] = half.F16ToF32(half.F32ToF16(x))
				}
			}
			if e := p.Check(tensor, p.DType, b, h, pos, row); e != nil && err == nil {
				err = e
			}
		}
	})
	return err
}

// E4: every head dimension, dtype and mask, against float64.
func TestHeadDims(t *testing.T) {
	for _, d := range append([]int{1, 3}, cases.HeadDims...) {
		for _, dtype := range []string{"f32", "bf16", "f16"} {
			out, code, err := execute("check", "--ranks", "2", "--seq", "130", "--heads", "2/1", "--head-dim", fmt.Sprint(d), "--dtype", dtype)
			if code != exitOK {
				t.Errorf("D=%d, %s: exit %d: %v\n%s", d, dtype, code, err, out)
			}
		}
	}
}

// E3: more documents and heads than a launch dimension of a GPU holds.
func TestManyHeads(t *testing.T) {
	out, code, err := execute("check", "--ranks", "2", "--seq", "2", "--heads", "65536/65536", "--head-dim", "8")
	if code != exitOK {
		t.Errorf("exit %d: %v\n%s", code, err, out)
	}
}
