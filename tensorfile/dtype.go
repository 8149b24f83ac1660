package tensorfile

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// DType is an element type, spelled as in the file.
type DType string

// The element types that Go code here is likely to name. A file may use any
// other dtype of the format (8-bit and smaller floats, complex) as well.
const (
	F64  DType = "F64"
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	I64  DType = "I64"
	I32  DType = "I32"
	I16  DType = "I16"
	I8   DType = "I8"
	U64  DType = "U64"
	U32  DType = "U32"
	U16  DType = "U16"
	U8   DType = "U8"
	BOOL DType = "BOOL"
)

// bits is the number of bits of one element, 0 for a dtype that the format does
// not have.
func (d DType) bits() int64 {
	switch d {
	case F64, I64, U64, "C64":
		return 64
	case F32, I32, U32:
		return 32
	case F16, BF16, I16, U16:
		return 16
	case I8, U8, BOOL, "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ":
		return 8
	case "F6_E2M3", "F6_E3M2":
		return 6
	case "F4":
		return 4
	}
	return 0
}

// Size is the number of bytes of one element; 0 for an unknown dtype and for
// those whose elements are smaller than a byte.
func (d DType) Size() int64 { return d.bits() / 8 }

// byteSize is the number of bytes of a tensor. The product of the dimensions
// other than 0 must fit as well, so that a caller's strides cannot overflow.
func byteSize(d DType, shape []int64) (int64, error) {
	if d.bits() == 0 {
		return 0, fmt.Errorf("unknown dtype %s", quote(string(d)))
	}
	if len(shape) > maxRank {
		return 0, fmt.Errorf("shape of %d dimensions, at most %d are allowed", len(shape), maxRank)
	}
	total, empty := uint64(d.bits()), false
	for _, n := range shape {
		if n < 0 {
			return 0, fmt.Errorf("negative dimension %d in shape %v", n, shape)
		}
		if n == 0 {
			empty = true
			continue
		}
		hi, lo := bits.Mul64(total, uint64(n))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("shape %v of %s overflows 64 bits", shape, d)
		}
		total = lo
	}
	if empty {
		return 0, nil
	}
	if total%8 != 0 {
		return 0, fmt.Errorf("shape %v of %s is not a whole number of bytes", shape, d)
	}
	return int64(total / 8), nil
}

// DecodeInt returns the elements of p, which holds I64, I32, U8 or BOOL
// elements in little-endian order, in a new slice; values are as stored (a BOOL
// other than 0 counts as true). It fails for any other dtype and when p is not
// a whole number of elements.
func DecodeInt(d DType, p []byte) ([]int64, error) {
	switch d {
	case I64, I32, U8, BOOL:
	default:
		return nil, fmt.Errorf("tensorfile: decode integers: dtype %s, want I64, I32, U8 or BOOL", quote(string(d)))
	}
	size := int(d.Size())
	if len(p)%size != 0 {
		return nil, fmt.Errorf("tensorfile: decode integers: %d bytes are not a whole number of %s elements", len(p), d)
	}
	v := make([]int64, len(p)/size)
	switch d {
	case I64:
		for i := range v {
			v[i] = int64(binary.LittleEndian.Uint64(p[8*i:]))
		}
	case I32:
		for i := range v {
			v[i] = int64(int32(binary.LittleEndian.Uint32(p[4*i:])))
		}
	default:
		for i, b := range p {
			v[i] = int64(b)
		}
	}
	return v, nil
}
