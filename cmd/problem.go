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

// source copies a rank's tokens of q, k, v or dout to memory in kernel order.
type source interface {
	load(name string, memory []byte, to shard.Place) error
}

// dtypes maps the dtypes of files to those of kernels.
var dtypes = map[tensorfile.DType]ring.DType{
	tensorfile.F32:  ring.F32,
	tensorfile.BF16: ring.BF16,
	tensorfile.F16:  ring.F16,
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
	if w.Rank() == 0 {
		rows, err := in.ReadRows()
		if err != nil {
			return nil, err
		}
		encoded = shard.EncodeRows(rows)
	}
	encoded, err := w.Bcast(ctx, 0, encoded)
	if err != nil {
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

func (f fileSource) load(name string, memory []byte, to shard.Place) error {
	t, ok := f.in.File.Lookup(name)
	if !ok {
		return fmt.Errorf("%s has no tensor %q", f.in.Path, name)
	}
	return f.mover.Load(t, memory, to)
}
