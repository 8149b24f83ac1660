// Package half converts between float32 and the two 16-bit formats of tensors,
// bfloat16 and IEEE binary16. To 16 bit it rounds to the nearest, ties to even;
// NaN stays NaN, and what is too large becomes infinite.
package half

import "math"

// BF16ToF32 widens a bfloat16, exactly.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 rounds to bfloat16.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40 // a quiet NaN, whatever is cut off
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// F16ToF32 widens an IEEE binary16, exactly.
func F16ToF32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero or subnormal: frac x 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// F32ToF16 rounds to IEEE binary16.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000: // NaN
		return sign | 0x7e00 | uint16(b>>13&0x1ff)
	case b >= 0x477ff000: // 65520 and more round to infinity
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: a multiple of 2^-24
		// Adding 0.5 leaves the fraction rounded in the lowest bits.
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-0x3f000000)
	}
	return sign | uint16((b-112<<23+0xfff+b>>13&1)>>13)
}
