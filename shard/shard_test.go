package shard_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ringattn/half"
	"ringattn/segments"
	"ringattn/segments/segmentstest"
	"ringattn/shard"
	"ringattn/tensorfile"
)

func TestRowsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := segmentstest.Mask(t, rapid.IntRange(1, 60).Draw(t, "tokens")).Rows
		got, err := shard.DecodeRows(shard.EncodeRows(rows))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rows, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Damaged bytes are an error or other rows, never a panic or a huge allocation.
func FuzzDecodeRows(f *testing.F) {
	f.Add(shard.EncodeRows([]segments.Row{segments.NewRow(9, []int64{1, 1, 0, 2, 2, 1, 3, 3, 3}, []int64{0, 1, 1, 0, 2, 0, 0, 0, 0}, nil)}))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, p []byte) {
		rows, err := shard.DecodeRows(p)
		if err != nil {
			return
		}
		again, err := shard.DecodeRows(shard.EncodeRows(rows))
		if err != nil || !cmp.Equal(rows, again) {
			t.Fatalf("%v: %v and %v", err, rows, again)
		}
	})
}

// problem is a file in memory whose every number says where it belongs.
type problem struct {
	in      *shard.Input
	tensors map[string]tensorfile.Tensor
}

// number is the value of element (b, h, s, d) of a tensor, exact in bf16.
func number(name string, b, h, s, d int) float32 {
	n := ((b*5+h)*61+s)*7 + d
	return float32((1 + n%127) << (name[len(name)-1] % 8))
}

const dims = 3

func makeProblem(t rapid.TB, dtype tensorfile.DType, bshd bool, m segments.Mask, tokens int) problem {
	t.Helper()
	batch := len(m.Rows)
	layout := "BHSD"
	if bshd {
		layout = "BSHD"
	}
	var specs []tensorfile.Spec
	heads := map[string]int{"q": 4, "k": 2, "v": 2, "dout": 4}
	for _, name := range []string{"q", "k", "v", "dout"} {
		shape := []int64{int64(batch), int64(heads[name]), int64(tokens), dims}
		if bshd {
			shape[1], shape[2] = shape[2], shape[1]
		}
		specs = append(specs, tensorfile.Spec{Name: name, DType: dtype, Shape: shape})
	}
	header, places, size, err := tensorfile.Encode(specs, map[string]string{"causal": "true", "layout": layout})
	if err != nil {
		t.Fatal(err)
	}
	file := make([]byte, size)
	copy(file, header)
	p := problem{tensors: map[string]tensorfile.Tensor{}}
	for _, x := range places {
		p.tensors[x.Name] = x
		for b := range batch {
			for h := range heads[x.Name] {
				for s := range tokens {
					for d := range dims {
						i := ((b*heads[x.Name]+h)*tokens+s)*dims + d
						if bshd {
							i = ((b*tokens+s)*heads[x.Name]+h)*dims + d
						}
						v := number(x.Name, b, h, s, d)
						if dtype == tensorfile.BF16 {
							binary.LittleEndian.PutUint16(file[x.Offset+int64(2*i):], half.F32ToBF16(v))
						} else {
							binary.LittleEndian.PutUint32(file[x.Offset+int64(4*i):], math.Float32bits(v))
						}
					}
				}
			}
		}
	}
	f, err := tensorfile.Parse(bytes.NewReader(file), size)
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = shard.Describe(f, nil); err != nil {
		t.Fatal(err)
	}
	return p
}

// Every number of every rank arrives at its place in the kernel order, and
// nothing else is touched.
func TestLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch := segmentstest.Batch(t, 60, 5)
		dtype := rapid.SampledFrom([]tensorfile.DType{tensorfile.F32, tensorfile.BF16}).Draw(t, "dtype")
		p := makeProblem(t, dtype, rapid.Bool().Draw(t, "bshd"), batch.Mask, batch.Layout.Tokens)
		size := int(dtype.Size())
		for rank := range batch.Ranks() {
			order, mover := batch.Order(rank), shard.NewMover(p.in, batch, rank)
			for name, x := range p.tensors {
				heads := 4
				if name == "k" || name == "v" {
					heads = 2
				}
				// A token's numbers stand between 8 bytes that must stay.
				width := heads * dims * size
				place := shard.Place{Offset: 8, Stride: int64(width + 8)}
				memory := bytes.Repeat([]byte{0xaa}, order.Tokens*(width+8)+8)
				if err := mover.Load(x, memory, place); err != nil {
					t.Fatal(err)
				}
				for _, piece := range order.Pieces {
					for i := range piece.Pos.Len() {
						at := memory[(piece.At+i)*(width+8):]
						if !bytes.Equal(at[:8], bytes.Repeat([]byte{0xaa}, 8)) {
							t.Fatalf("rank %d, %s: bytes before token %d are overwritten", rank, name, piece.At+i)
						}
						for h := range heads {
							for d := range dims {
								k := 8 + (h*dims+d)*size
								var got float32
								if dtype == tensorfile.BF16 {
									got = half.BF16ToF32(binary.LittleEndian.Uint16(at[k:]))
								} else {
									got = math.Float32frombits(binary.LittleEndian.Uint32(at[k:]))
								}
								if want := number(name, piece.Row, h, piece.Pos.Start+i, d); got != want {
									t.Fatalf("rank %d: %s[%d,%d,%d,%d] is %v, want %v", rank, name, piece.Row, h, piece.Pos.Start+i, d, got, want)
								}
							}
						}
					}
				}
			}
		}
	})
}

// What all ranks store is the whole tensor: each token's numbers where they
// belong, the fill value in padding, rounded to the file's dtype.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		batch := segmentstest.Batch(t, 40, 4)
		bshd, f32 := rapid.Bool().Draw(t, "bshd"), rapid.Bool().Draw(t, "f32")
		p := makeProblem(t, tensorfile.BF16, bshd, batch.Mask, batch.Layout.Tokens)
		header, places, size, err := tensorfile.Encode(p.in.Outputs(true, f32), nil)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "out")
		temp, err := tensorfile.CreateTemp(path, header, size)
		if err != nil {
			t.Fatal(err)
		}
		for rank := range batch.Ranks() {
			w, err := tensorfile.OpenForWrite(temp, places)
			if err != nil {
				t.Fatal(err)
			}
			order, mover := batch.Order(rank), shard.NewMover(p.in, batch, rank)
			for _, x := range places {
				heads, numbers := 4, dims
				switch x.Name {
				case "dk", "dv":
					heads = 2
				case "lse":
					numbers = 1
				}
				width := 4 * heads * numbers
				memory := make([]byte, order.Tokens*width+4)
				for _, piece := range order.Pieces {
					for i := range piece.Pos.Len() {
						for h := range heads {
							for d := range numbers {
								v := number(x.Name, piece.Row, h, piece.Pos.Start+i, d)
								binary.NativeEndian.PutUint32(memory[4+(piece.At+i)*width+4*(h*numbers+d):], math.Float32bits(v))
							}
						}
					}
				}
				if err := mover.Store(w, x, memory, shard.Place{Offset: 4, Stride: int64(width)}, -7); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(w.Sync(), w.Close()); err != nil {
				t.Fatal(err)
			}
		}
		if err := tensorfile.Commit(temp, path); err != nil {
			t.Fatal(err)
		}
		f, err := tensorfile.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		checkStored(t, f, batch, bshd)
	})
}

func checkStored(t rapid.TB, f *tensorfile.File, batch *segments.Batch, bshd bool) {
	tokens := batch.Layout.Tokens
	real := make([][]bool, len(batch.Mask.Rows))
	for b, row := range batch.Mask.Rows {
		real[b] = make([]bool, tokens)
		for _, d := range row.Docs {
			for s := d.Start; s < d.End; s++ {
				real[b][s] = true
			}
		}
	}
	for _, x := range f.Tensors() {
		raw := make([]byte, x.Bytes)
		if err := f.ReadAt(x, raw, 0); err != nil {
			t.Fatal(err)
		}
		heads, numbers := 4, dims
		switch x.Name {
		case "dk", "dv":
			heads = 2
		case "lse":
			numbers = 1
		}
		for i := range len(raw) / int(x.DType.Size()) {
			d, rest := i%numbers, i/numbers
			s, h, b := rest%tokens, rest/tokens%heads, rest/tokens/heads
			if bshd {
				h, s, b = rest%heads, rest/heads%tokens, rest/heads/tokens
			}
			var got float32
			if x.DType == tensorfile.BF16 {
				got = half.BF16ToF32(binary.LittleEndian.Uint16(raw[2*i:]))
			} else {
				got = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			}
			want := float32(-7)
			if real[b][s] {
				want = number(x.Name, b, h, s, d)
			}
			if x.DType == tensorfile.BF16 {
				want = half.BF16ToF32(half.F32ToBF16(want))
			}
			if got != want {
				t.Fatalf("%s[%d,%d,%d,%d] is %v, want %v", x.Name, b, h, s, d, got, want)
			}
		}
	}
}

// Blocks are bounded, and a tensor larger than one comes through all the same.
func TestLongRows(t *testing.T) {
	const tokens = 200_000 // of 12 bytes a head: more than two blocks
	m := segments.Mask{Causal: true, Rows: []segments.Row{segments.NewRow(tokens, nil, nil, nil)}}
	p := makeProblem(t, tensorfile.F32, false, m, tokens)
	batch, err := segments.NewBatch(segments.Contiguous(tokens, 1), m)
	if err != nil {
		t.Fatal(err)
	}
	memory := make([]byte, tokens*4*dims*4)
	if err := shard.NewMover(p.in, batch, 0).Load(p.tensors["q"], memory, shard.Place{Stride: 4 * dims * 4}); err != nil {
		t.Fatal(err)
	}
	for s := range tokens {
		for h := range 4 {
			got := math.Float32frombits(binary.LittleEndian.Uint32(memory[((s*4+h)*dims+1)*4:]))
			if want := number("q", 0, h, s, 1); got != want {
				t.Fatalf("token %d, head %d: %v, want %v", s, h, got, want)
			}
		}
	}
}
