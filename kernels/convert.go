package kernels

import "math"

// BF16ToF32 widens a bfloat16, the upper half of a float32. Exact.
func BF16ToF32(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }

// F32ToBF16 rounds to the nearest bfloat16, ties to even. A NaN stays a NaN of the
// same sign; values beyond the largest bfloat16 become Inf.
func F32ToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40 // quiet, so that cutting the fraction cannot leave Inf
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// F16ToF32 widens an IEEE 754 half: 1 sign, 5 exponent and 10 fraction bits. Exact.
func F16ToF32(x uint16) float32 {
	sign, rest := uint32(x&0x8000)<<16, uint32(x&0x7fff)<<13
	if rest >= 0x0f800000 { // Inf and NaN
		return math.Float32frombits(sign | rest | 0x7f800000)
	}
	// The fields in place of a float32's are the value times 2^-112, subnormals too.
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(rest)*0x1p112))
}

// F32ToF16 rounds to the nearest half, ties to even. A NaN stays a NaN of the same
// sign; values from 65520 up become Inf, small ones subnormal or zero.
func F32ToF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, abs := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00 | uint16(abs>>13&0x3ff)
	case abs >= 0x477ff000: // 65520
		return sign | 0x7c00
	case abs < 0x38800000: // below 2^-14: 0.5 has an ulp of 2^-24, the unit of subnormals
		return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)&0x7ff)
	}
	abs += 0xfff + abs>>13&1
	return sign | uint16((abs-112<<23)>>13)
}
