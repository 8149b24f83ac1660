package cmd

import (
	"context"
	"fmt"

	"ringattn/ring"
	"ringattn/segments"
	"ringattn/shard"
	"ringattn/tensorfile"
)

// problem is an attention problem that all ranks know.
type problem struct {
	batch, tokens int // B, S
	shape         ring.Shape
	mask          segments.Mask
	backward      bool
	// open gives a rank's access to the tensors.
	open func(b *segments.Batch, rank int) source
}

// source fills the memory of q, of k and v, or of dout with a rank's tokens.
type source interface{ load(h *held) error }

// dtypes maps the dtypes of files to those of kernels.
var dtypes = map[tensorfile.DType]ring.DType{
	tensorfile.F32:  ring.F32,
	tensorfile.BF16: ring.BF16,
	tensorfile.F16:  ring.F16,
}

// openInput opens an input file on every rank, or on none.
func (w *world) openInput(ctx context.Context, path string) (*shard.Input, error) {
	in, err := shard.Open(path, w.options.override)
	if err := w.allOrNone(ctx, withInput(err)); err != nil {
		if in != nil {
			in.File.Close()
		}
		return nil, err
	}
	return in, nil
}

// openProblem agrees with the other ranks on an input file and on what its ids
// and masks say, which rank 0 reads for all.
func (w *world) openProblem(ctx context.Context, in *shard.Input) (*problem, error) {
	facts := []fact{{"the header of " + in.Path, fmt.Sprintf("%x", in.File.Digest())}}
	for _, m := range maskFlags {
		facts = append(facts, fact{"--" + m.flag, w.options.override[m.key]})
	}
	if err := w.agree(ctx, facts...); err != nil {
		return nil, err
	}
	var encoded []byte
	_, err := fromRoot(ctx, w, func() (bool, error) {
		rows, err := in.ReadRows()
		if err == nil {
			encoded = shard.EncodeRows(rows)
		}
		return true, withInput(err)
	})
	if err != nil {
		return nil, err
	}
	if encoded, err = w.Bcast(ctx, 0, encoded); err != nil {
		return nil, err
	}
	rows, err := shard.DecodeRows(encoded)
	if err != nil {
		return nil, err
	}
	return fileProblem(in, rows), nil
}

// fileProblem is the problem in a file, given what its ids and masks say.
func fileProblem(in *shard.Input, rows []segments.Row) *problem {
	return &problem{
		batch: in.Batch, tokens: in.Tokens,
		shape: ring.Shape{
			DType: dtypes[in.DType],
			Heads: in.Heads, KVHeads: in.KVHeads, HeadDim: in.HeadDim,
			Scale: float32(in.Scale),
		},
		mask:     in.Mask(rows),
		backward: in.DOut != nil,
		open: func(b *segments.Batch, rank int) source {
			return fileSource{in, shard.NewMover(in, b, rank)}
		},
	}
}

// fileSource loads from a file.
type fileSource struct {
	in    *shard.Input
	mover *shard.Mover
}

func (f fileSource) load(h *held) error {
	for w := range f.mover.Windows(h.window()) {
		err := h.write(w.At, func(memory []byte, at []int32) error {
			w.At = at
			for _, name := range h.names {
				t, ok := f.in.File.Lookup(name)
				if !ok {
					return fmt.Errorf("%s has no tensor %q", f.in.Path, name)
				}
				if err := f.mover.LoadWindow(t, w, memory, h.place(name)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
