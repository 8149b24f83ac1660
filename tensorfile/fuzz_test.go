package tensorfile

import (
	"bytes"
	"encoding/json"
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzParse checks that no input crashes Parse, and of every file it accepts
// that the tensors tile the data, that each has the size of its shape, that
// encoding/json reads the same from the header, and that Encode writes the same
// tensors again.
func FuzzParse(f *testing.F) {
	for _, c := range malformed {
		if len(c.file) < 4096 {
			f.Add(c.file)
		}
	}
	for _, c := range wellFormed {
		f.Add(c.file)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			if len(err.Error()) > 4096 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
			return
		}
		tensors := file.Tensors()
		at := 8 + file.headerLen
		for _, x := range tensors {
			if x.Offset != at {
				t.Fatalf("tensor %q begins at %d, the one before ends at %d", x.Name, x.Offset, at)
			}
			at += x.Bytes
			bits := big.NewInt(x.DType.bits())
			for _, n := range x.Shape {
				bits.Mul(bits, big.NewInt(n))
			}
			if bits.Cmp(big.NewInt(8*x.Bytes)) != 0 {
				t.Fatalf("tensor %q of %d bytes: shape %v of %s has %d bits", x.Name, x.Bytes, x.Shape, x.DType, bits)
			}
			p := make([]byte, x.Bytes)
			if err := file.ReadAt(x, p, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p, data[x.Offset:x.Offset+x.Bytes]) {
				t.Fatalf("tensor %q: other bytes than the file's", x.Name)
			}
		}
		if at != int64(len(data)) {
			t.Fatalf("the tensors end at %d of %d bytes", at, len(data))
		}
		sameAsJSON(t, file)
		sameAfterEncode(t, file)
	})
}

func sameAsJSON(t *testing.T, file *File) {
	header, err := file.Header()
	if err != nil {
		t.Fatal(err)
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(header, &entries); err != nil {
		t.Fatalf("accepted, but not JSON: %v", err)
	}
	metadata := map[string]string{}
	if m, ok := entries[metadataKey]; ok {
		if err := json.Unmarshal(m, &metadata); err != nil {
			t.Fatal(err)
		}
		delete(entries, metadataKey)
	}
	if diff := cmp.Diff(metadata, file.Metadata()); diff != "" {
		t.Errorf("metadata, encoding/json against Parse:\n%s", diff)
	}
	if len(entries) != len(file.tensors) {
		t.Fatalf("%d tensors, encoding/json finds %d", len(file.tensors), len(entries))
	}
	for name, raw := range entries {
		var e struct {
			DType   DType   `json:"dtype"`
			Shape   []int64 `json:"shape"`
			Offsets []int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatalf("tensor %q: %v", name, err)
		}
		got, ok := file.Lookup(name)
		begin := 8 + file.headerLen + e.Offsets[0]
		want := Tensor{Name: name, DType: e.DType, Shape: e.Shape, Offset: begin, Bytes: e.Offsets[1] - e.Offsets[0]}
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("tensor %q, encoding/json against Parse:\n%s", name, diff)
		}
	}
}

func sameAfterEncode(t *testing.T, file *File) {
	var specs []Spec
	for _, x := range file.tensors {
		specs = append(specs, Spec{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	header, tensors, size, err := Encode(specs, file.metadata)
	if err != nil {
		t.Fatalf("accepted, but cannot be written: %v", err)
	}
	again, err := Parse(bytes.NewReader(header), size)
	if err != nil {
		t.Fatalf("written, but refused: %v", err)
	}
	if diff := cmp.Diff(file.Metadata(), again.Metadata()); diff != "" {
		t.Errorf("metadata, before and after:\n%s", diff)
	}
	for i, x := range tensors {
		if x.Offset*8%max(x.DType.bits(), 8) != 0 && x.DType.Size() > 0 {
			t.Errorf("tensor %q of %s at the unaligned byte %d", x.Name, x.DType, x.Offset)
		}
		got, _ := again.Lookup(x.Name)
		if diff := cmp.Diff(x, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("tensor %q, Encode against Parse:\n%s", x.Name, diff)
		}
		if diff := cmp.Diff(file.tensors[i], got, cmpopts.IgnoreFields(Tensor{}, "Offset"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("tensor %q, before and after:\n%s", x.Name, diff)
		}
	}
}
