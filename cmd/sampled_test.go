package cmd

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"ringattn/cases"
	"ringattn/segments"
)

// Sampled rows are right whatever the dtype and the mask, and one number of one that is wrong is
// found.
func TestSampledRows(t *testing.T) {
	const tokens = 150
	ids, types, pad := make([]int64, tokens), make([]int64, tokens), make([]int64, tokens)
	for i := range tokens {
		ids[i], types[i] = int64(1+i/31%3), int64(i/12%2)
		if i%17 == 5 {
			pad[i] = 1
		}
	}
	packed, one := segments.NewRow(tokens, ids, types, pad), segments.SingleDocument(tokens)
	for i, mask := range []segments.Mask{
		{Causal: true, Rows: []segments.Row{one}},
		{Rows: []segments.Row{one, packed}},
		{Causal: true, Window: 9, Rows: []segments.Row{packed}},
		{Causal: true, Window: 20, Vision: true, Rows: []segments.Row{packed, one}},
	} {
		for _, dtype := range []string{"f32", "bf16", "f16"} {
			shape := cases.Shape{Name: "test", Batch: len(mask.Rows), Tokens: tokens, Heads: 4, KVHeads: 2, HeadDim: 24, DType: dtype, Mask: mask}
			name := fmt.Sprintf("mask %d, %s", i, dtype)
			err := runInProcess(context.Background(), testOptions("zigzag", "cpu"), io.Discard, 3, "test", func(ctx context.Context, w *world) error {
				closed, err := cases.Classes(shape)
				if err != nil {
					return err
				}
				a, err := newAttention(ctx, w, valuedProblem(&closed.Shape, closed))
				if err != nil {
					return err
				}
				defer a.close()
				if err := a.randomise(); err != nil {
					return err
				}
				if _, err := a.passes(ctx); err != nil {
					return err
				}
				if wrong, err := a.holdSamples(ctx); err != nil || len(wrong) > 0 {
					return fmt.Errorf("%v, %w", wrong, err)
				}
				for _, tensor := range []string{"out", "lse", "dq"} {
					undo := func() {}
					if samples := a.samples(); len(samples) > 0 && w.Rank() == 1 {
						step := a.rowLen(tensor)
						x := a.tensor(tensor).view(tensor).token(samples[0].at)[4*(samples[0].head*step+step-1):]
						was := binary.NativeEndian.Uint32(x)
						binary.NativeEndian.PutUint32(x, math.Float32bits(math.Float32frombits(was)+0.5))
						undo = func() { binary.NativeEndian.PutUint32(x, was) }
					}
					wrong, err := a.holdSamples(ctx)
					if err != nil || len(wrong) != 1 || !strings.Contains(wrong[0], ": "+tensor+": ") {
						return fmt.Errorf("%s is wrong, and found is %q (%w)", tensor, wrong, err)
					}
					if err := w.Barrier(ctx); err != nil {
						return err
					}
					undo()
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Gradients of queries that see one key are 0, from terms that are not.
func TestSampledRowsOfOneKey(t *testing.T) {
	for _, args := range []string{
		"--seq 1", "--seq 64 --mask window:1", "--seq 2 --head-dim 256", "--seq 2 --head-dim 7", "--seq 1,2,3 --ranks 7", "--seq 1 --mask full --batch 8 --dtype bf16",
		"--seq 300 --mask window:1 --ranks 2 --dtype f16",
	} {
		out, code, err := execute(append(strings.Fields("bench --repeats 1 --warmup 0 --log-level error --output csv"), strings.Fields(args)...)...)
		if code != exitOK {
			t.Errorf("%s: exit %d: %v\n%s", args, code, err, out)
		}
	}
}
