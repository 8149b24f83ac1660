package tensorfile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"
)

// Spec is a tensor to be written.
type Spec struct {
	Name  string
	DType DType
	Shape []int64 // elements, slowest dimension first
}

// Encode lays out a file. It returns the file's first bytes (the 8-byte length
// and the JSON, padded with spaces so that the data begin at a multiple of 8),
// the tensors in the order of specs with their places, and the size of the
// whole file in bytes. The same arguments give the same bytes on every rank:
// names stand in the header in the order of specs, metadata keys are sorted.
// The data lie in the order of falling element size, as other writers of the
// format do it, so that every tensor is aligned to its element.
//
// It fails, naming the tensor, for an unknown dtype, a shape that is negative or
// overflows, a name that is used twice, reserved or not UTF-8, and for a header
// that Open would refuse as too large.
func Encode(specs []Spec, metadata map[string]string) (header []byte, tensors []Tensor, size int64, err error) {
	tensors = make([]Tensor, len(specs))
	seen := map[string]bool{}
	for i, s := range specs {
		n, err := byteSize(s.DType, s.Shape)
		switch {
		case err != nil:
		case s.Name == metadataKey:
			err = errors.New("reserved name")
		case !utf8.ValidString(s.Name):
			err = errors.New("name is not UTF-8")
		case seen[s.Name]:
			err = errors.New("duplicate name")
		}
		if err != nil {
			return nil, nil, 0, fmt.Errorf("tensorfile: encode tensor %s: %w", quote(s.Name), err)
		}
		seen[s.Name] = true
		tensors[i] = Tensor{Name: s.Name, DType: s.DType, Shape: slices.Clone(s.Shape), Bytes: n}
	}
	data, err := place(tensors)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("tensorfile: encode: %w", err)
	}
	header, err = encodeHeader(tensors, metadata)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("tensorfile: encode: %w", err)
	}
	begin := int64(len(header))
	if data > math.MaxInt64-begin {
		return nil, nil, 0, fmt.Errorf("tensorfile: encode: %d bytes of tensors overflow the size of a file", data)
	}
	for i := range tensors {
		tensors[i].Offset += begin
	}
	if _, err := parse(bytes.NewReader(header), begin+data, "(encoded)"); err != nil {
		return nil, nil, 0, fmt.Errorf("tensorfile: encode: the header would be refused: %w", err)
	}
	return header, tensors, begin + data, nil
}

// place sets each tensor's Offset from the start of the data and returns the
// data's length in bytes.
func place(tensors []Tensor) (int64, error) {
	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(tensors[b].DType.bits(), tensors[a].DType.bits())
	})
	var at int64
	for _, i := range order {
		if tensors[i].Bytes > math.MaxInt64-at {
			return 0, fmt.Errorf("tensor %s: the tensors up to it overflow the size of a file", quote(tensors[i].Name))
		}
		tensors[i].Offset = at
		at += tensors[i].Bytes
	}
	return at, nil
}

// encodeHeader writes the length, the JSON and the padding. Offsets of tensors
// are from the start of the data.
func encodeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	b := append(make([]byte, 8), '{')
	if len(metadata) > 0 {
		b = append(appendString(b, metadataKey), ":{"...)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			value := metadata[key]
			if !utf8.ValidString(key) || !utf8.ValidString(value) {
				return nil, fmt.Errorf("metadata %s is not UTF-8", quote(key))
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(append(appendString(b, key), ':'), value)
		}
		b = append(b, '}')
	}
	for i, t := range tensors {
		if i > 0 || len(metadata) > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, t.Name), `:{"dtype":`...)
		b = append(appendString(b, string(t.DType)), `,"shape":[`...)
		for j, n := range t.Shape {
			if j > 0 {
				b = append(b, ',')
			}
			b = fmt.Append(b, n)
		}
		b = fmt.Appendf(b, `],"data_offsets":[%d,%d]}`, t.Offset, t.Offset+t.Bytes)
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	return b, nil
}

// appendString appends s, which is UTF-8, as a JSON string.
func appendString(b []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic("tensorfile: a string did not encode: " + err.Error())
	}
	return append(b, quoted...)
}
