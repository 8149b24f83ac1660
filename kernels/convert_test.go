package kernels

import (
	"math"
	"testing"
)

// Every 16-bit value widens and comes back unchanged; a NaN comes back as a NaN of
// the same sign.
func TestConvertAllValues(t *testing.T) {
	for i := 0; i <= 0xffff; i++ {
		x := uint16(i)
		f := BF16ToF32(x)
		if y := F32ToBF16(f); y != x && !(f != f && BF16ToF32(y) != BF16ToF32(y) && y>>15 == x>>15) {
			t.Fatalf("bf16 %#04x to %v to %#04x", x, f, y)
		}
		f = F16ToF32(x)
		if y := F32ToF16(f); y != x && !(f != f && F16ToF32(y) != F16ToF32(y) && y>>15 == x>>15) {
			t.Fatalf("f16 %#04x to %v to %#04x", x, f, y)
		}
		if want := halfValue(x); f != want && !(f != f && want != want) {
			t.Fatalf("f16 %#04x is %v, want %v", x, f, want)
		}
	}
}

// halfValue is a half's value by its definition.
func halfValue(x uint16) float32 {
	e, frac := int(x>>10&31), float64(x&1023)
	v := math.Ldexp(1024+frac, e-25)
	switch {
	case e == 31 && frac == 0:
		v = math.Inf(1)
	case e == 31:
		v = math.NaN()
	case e == 0:
		v = math.Ldexp(frac, -24)
	}
	if x>>15 == 1 {
		v = -v
	}
	return float32(v)
}

// Between two neighbours everything goes to the nearer one, the middle to the even.
func TestConvertRounds(t *testing.T) {
	kinds := []struct {
		name   string
		widen  func(uint16) float32
		narrow func(float32) uint16
		last   uint16 // largest finite
	}{{"bf16", BF16ToF32, F32ToBF16, 0x7f7f}, {"f16", F16ToF32, F32ToF16, 0x7bff}}
	for _, k := range kinds {
		for x := uint16(0); x < k.last; x++ {
			a, b := k.widen(x), k.widen(x+1)
			middle := float32((float64(a) + float64(b)) / 2)
			even := x + x&1
			for _, c := range []struct {
				f    float32
				want uint16
			}{
				{middle, even}, {math.Nextafter32(middle, a), x}, {math.Nextafter32(middle, b), x + 1},
			} {
				if got := k.narrow(c.f); got != c.want {
					t.Fatalf("%s: %v to %#04x, want %#04x", k.name, c.f, got, c.want)
				}
				if got := k.narrow(-c.f); got != c.want|0x8000 {
					t.Fatalf("%s: %v to %#04x, want %#04x", k.name, -c.f, got, c.want|0x8000)
				}
			}
		}
		inf := k.last + 1
		if got := k.narrow(math.MaxFloat32); got != inf {
			t.Errorf("%s: MaxFloat32 to %#04x, want Inf %#04x", k.name, got, inf)
		}
	}
	if got := F32ToF16(65519.996); got != 0x7bff {
		t.Errorf("f16: just below 65520 to %#04x, want 0x7bff", got)
	}
	if got := F32ToF16(65520); got != 0x7c00 {
		t.Errorf("f16: 65520 to %#04x, want Inf", got)
	}
	if y := F32ToBF16(math.Float32frombits(0x7f800001)); BF16ToF32(y) == BF16ToF32(y) {
		t.Errorf("bf16: a signalling NaN became %#04x", y)
	}
}
