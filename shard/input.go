package shard

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"ringattn/tensorfile"
)

// ErrInput is wrapped by every error about what a file or a flag says.
var ErrInput = errors.New("bad input")

func bad(format string, args ...any) error {
	return fmt.Errorf("shard: "+format+": %w", append(args, ErrInput)...)
}

// Settings is what a file's metadata, or the flags that override it, say of the
// computation.
type Settings struct {
	Causal bool
	Window int // 0: none
	Scale  float64
	Vision bool
	BSHD   bool // tensors are [B, S, H, D]; else [B, H, S, D]
}

// The metadata keys, which are also the names of the flags except that of
// Layout, which is --tensor-layout.
const (
	KeyCausal = "causal"
	KeyWindow = "window"
	KeyScale  = "scale"
	KeyVision = "vision_bidirectional"
	KeyLayout = "layout"
)

// Input is an attention problem in a file.
type Input struct {
	Settings
	File *tensorfile.File
	Path string

	Q, K, V tensorfile.Tensor
	DOut    *tensorfile.Tensor // nil: forward only
	IDs     *tensorfile.Tensor // packed_seq_ids, or nil
	Types   *tensorfile.Tensor // mm_token_type_ids, or nil
	Padding *tensorfile.Tensor // padding_mask, or nil

	Batch, Tokens           int // B, S
	Heads, KVHeads, HeadDim int
	DType                   tensorfile.DType
}

// Open opens a file and checks that it holds an attention problem. Entries of
// override stand in for the metadata of the same key. The caller closes
// Input.File.
func Open(path string, override map[string]string) (*Input, error) {
	if ext := filepath.Ext(path); ext == ".npy" || ext == ".npz" {
		return nil, bad("%s: %s files are not there yet, only safetensors", path, ext)
	}
	f, err := tensorfile.Open(path)
	if err != nil {
		if errors.Is(err, tensorfile.ErrFormat) {
			err = fmt.Errorf("%w: %w", err, ErrInput)
		}
		return nil, err
	}
	in, err := Describe(f, override)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	in.Path = path
	return in, nil
}

// Describe is Open for a file that is open already.
func Describe(f *tensorfile.File, override map[string]string) (*Input, error) {
	in := &Input{File: f}
	if err := in.settings(f.Metadata(), override); err != nil {
		return nil, err
	}
	for _, want := range []struct {
		name string
		into *tensorfile.Tensor
	}{{"q", &in.Q}, {"k", &in.K}, {"v", &in.V}} {
		t, ok := f.Lookup(want.name)
		if !ok {
			return nil, bad("there is no tensor %q", want.name)
		}
		*want.into = t
	}
	for _, want := range []struct {
		name string
		into **tensorfile.Tensor
	}{{"dout", &in.DOut}, {"packed_seq_ids", &in.IDs}, {"mm_token_type_ids", &in.Types}, {"padding_mask", &in.Padding}} {
		if t, ok := f.Lookup(want.name); ok {
			*want.into = &t
		}
	}
	if err := in.shapes(); err != nil {
		return nil, err
	}
	if in.Vision && in.Types == nil {
		return nil, bad("%s is true, and there is no tensor \"mm_token_type_ids\"", KeyVision)
	}
	if in.Scale == 0 {
		in.Scale = 1 / math.Sqrt(float64(in.HeadDim))
	}
	return in, nil
}

// ParseBool reads a truth value as metadata and flags spell it.
func ParseBool(key, text string) (bool, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, bad("%s is %q, want true or false", key, text)
}

// ParseScale reads the factor of q.k: a float32, finite and not 0.
func ParseScale(text string) (float64, error) {
	scale, err := strconv.ParseFloat(text, 32)
	if err != nil || math.IsNaN(scale) || math.IsInf(scale, 0) || scale == 0 {
		return 0, bad("%s is %q, want a finite number other than 0", KeyScale, text)
	}
	return scale, nil
}

func (in *Input) settings(metadata, override map[string]string) error {
	for k, v := range override {
		metadata[k] = v
	}
	causal, ok := metadata[KeyCausal]
	if !ok {
		return bad("neither the file nor a flag says whether the mask is causal: give --causal=true or --causal=false")
	}
	var err error
	if in.Causal, err = ParseBool(KeyCausal, causal); err != nil {
		return err
	}
	if text, ok := metadata[KeyVision]; ok {
		if in.Vision, err = ParseBool(KeyVision, text); err != nil {
			return err
		}
	}
	if text, ok := metadata[KeyWindow]; ok {
		in.Window, err = strconv.Atoi(text)
		if err != nil || in.Window < 0 {
			return bad("%s is %q, want an integer >= 0", KeyWindow, text)
		}
	}
	if text, ok := metadata[KeyScale]; ok {
		if in.Scale, err = ParseScale(text); err != nil {
			return err
		}
	}
	switch text, ok := metadata[KeyLayout]; {
	case !ok || text == "BHSD":
	case text == "BSHD":
		in.BSHD = true
	default:
		return bad("%s is %q, want BHSD or BSHD", KeyLayout, text)
	}
	return nil
}

// The largest problem, so that no count of bytes or pairs overflows 64 bits.
const (
	maxRows     = 1 << 24 // of a batch
	maxNumbers  = 1 << 28 // of one token, all heads
	maxAllPairs = 1 << 61 // rows x tokens x tokens
)

// Limits refuses a problem that is too large to be counted.
func Limits(batch, tokens, heads, headDim int) error {
	switch {
	case batch > maxRows:
		return bad("%d batch rows, the limit is %d", batch, maxRows)
	case heads > maxNumbers || headDim > maxNumbers || heads*headDim > maxNumbers:
		return bad("%d heads of head_dim %d, the limit is %d numbers a token", heads, headDim, maxNumbers)
	case tokens > math.MaxInt32:
		return bad("%d tokens in a row, the limit is %d", tokens, math.MaxInt32)
	case float64(batch)*float64(tokens)*float64(tokens) > maxAllPairs:
		return bad("%d rows of %d tokens have more than %d pairs, the limit", batch, tokens, int64(maxAllPairs))
	}
	return nil
}

// Answers checks that the file holds a right answer for each output, in F32 and
// in the shapes of the results.
func (in *Input) Answers() error {
	for _, want := range in.Outputs(in.DOut != nil, true) {
		t, ok := in.File.Lookup(want.Name)
		switch {
		case !ok:
			return bad("%s: there is no tensor %q to compare with", in.Path, want.Name)
		case t.DType != want.DType || !slices.Equal(t.Shape, want.Shape):
			return bad("%s: tensor %q to compare with is %s %v, want %s %v", in.Path, want.Name, t.DType, t.Shape, want.DType, want.Shape)
		}
	}
	return nil
}

// shapes reads the sizes off q and k and holds all tensors against them.
func (in *Input) shapes() error {
	for _, t := range []tensorfile.Tensor{in.Q, in.K} {
		if len(t.Shape) != 4 {
			return bad("tensor %q has shape %v, want 4 dimensions", t.Name, t.Shape)
		}
		for _, n := range t.Shape {
			if n < 1 || n > math.MaxInt32 {
				return bad("tensor %q has shape %v, want sizes from 1 to %d", t.Name, t.Shape, math.MaxInt32)
			}
		}
	}
	s, h := 2, 1
	if in.BSHD {
		s, h = 1, 2
	}
	in.Batch, in.Tokens = int(in.Q.Shape[0]), int(in.Q.Shape[s])
	in.Heads, in.KVHeads, in.HeadDim = int(in.Q.Shape[h]), int(in.K.Shape[h]), int(in.Q.Shape[3])
	if err := Limits(in.Batch, in.Tokens, in.Heads, in.HeadDim); err != nil {
		return err
	}
	if in.Heads%in.KVHeads != 0 {
		return bad("q has %d heads and k has %d: the first must be a multiple of the second", in.Heads, in.KVHeads)
	}
	switch in.DType = in.Q.DType; in.DType {
	case tensorfile.F32, tensorfile.BF16, tensorfile.F16:
	default:
		return bad("tensor \"q\" is %s, want F32, BF16 or F16", in.DType)
	}
	queries, keys := in.shape(in.Heads), in.shape(in.KVHeads)
	row := []int64{int64(in.Batch), int64(in.Tokens)}
	integers := []tensorfile.DType{tensorfile.I32, tensorfile.I64}
	for _, c := range []struct {
		t      *tensorfile.Tensor
		shape  []int64
		dtypes []tensorfile.DType
	}{
		{&in.Q, queries, []tensorfile.DType{in.DType}},
		{&in.K, keys, []tensorfile.DType{in.DType}},
		{&in.V, keys, []tensorfile.DType{in.DType}},
		{in.DOut, queries, []tensorfile.DType{in.DType}},
		{in.IDs, row, integers},
		{in.Types, row, integers},
		{in.Padding, row, []tensorfile.DType{tensorfile.U8, tensorfile.BOOL}},
	} {
		switch {
		case c.t == nil:
		case !slices.Equal(c.t.Shape, c.shape):
			return bad("tensor %q has shape %v, want %v", c.t.Name, c.t.Shape, c.shape)
		case !slices.Contains(c.dtypes, c.t.DType):
			return bad("tensor %q is %s, want %s", c.t.Name, c.t.DType, either(c.dtypes))
		}
	}
	return nil
}

// shape is that of a tensor with so many heads, in the file's layout.
func (in *Input) shape(heads int) []int64 {
	b, h, s, d := int64(in.Batch), int64(heads), int64(in.Tokens), int64(in.HeadDim)
	if in.BSHD {
		return []int64{b, s, h, d}
	}
	return []int64{b, h, s, d}
}

func either(dtypes []tensorfile.DType) string {
	text := string(dtypes[0])
	for _, d := range dtypes[1:] {
		text += " or " + string(d)
	}
	return text
}

// LSEShape is [B, Hq, S], or [B, S, Hq] in a BSHD file.
func (in *Input) LSEShape() []int64 { return in.shape(in.Heads)[:3] }

// Outputs lists the tensors of a result: out and lse, and with a backward pass
// dq, dk and dv. All but lse, which is F32, have the input's dtype, or F32 where
// f32 is set; shapes and layout are the input's.
func (in *Input) Outputs(backward, f32 bool) []tensorfile.Spec {
	d := in.DType
	if f32 {
		d = tensorfile.F32
	}
	q, k := in.shape(in.Heads), in.shape(in.KVHeads)
	specs := []tensorfile.Spec{{Name: "out", DType: d, Shape: q}, {Name: "lse", DType: tensorfile.F32, Shape: in.LSEShape()}}
	if backward {
		specs = append(specs, tensorfile.Spec{Name: "dq", DType: d, Shape: q},
			tensorfile.Spec{Name: "dk", DType: d, Shape: k}, tensorfile.Spec{Name: "dv", DType: d, Shape: k})
	}
	return specs
}
