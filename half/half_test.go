package half_test

import (
	"math"
	"testing"

	"ringattn/half"
)

type format struct {
	name   string
	widen  func(uint16) float32
	narrow func(float32) uint16
	top    uint16 // the largest finite value
}

var formats = []format{
	{"bf16", half.BF16ToF32, half.F32ToBF16, 0x7f7f},
	{"f16", half.F16ToF32, half.F32ToF16, 0x7bff},
}

func TestEveryValueComesBack(t *testing.T) {
	for _, f := range formats {
		for h := range 1 << 16 {
			x := f.widen(uint16(h))
			got := f.narrow(x)
			if x != x {
				if y := f.widen(got); y == y {
					t.Errorf("%s %#04x: NaN became %v", f.name, h, y)
				}
				continue
			}
			if got != uint16(h) {
				t.Errorf("%s %#04x: came back as %#04x by %v", f.name, h, got, x)
			}
		}
	}
}

// Between two neighbours the nearer wins, and of equally near ones the even.
func TestRounding(t *testing.T) {
	for _, f := range formats {
		for h := uint16(0); h < f.top; h++ {
			a, b := f.widen(h), f.widen(h+1)
			middle := float32((float64(a) + float64(b)) / 2) // exact in float32
			even := h + h&1
			for _, c := range []struct {
				x    float32
				want uint16
			}{
				{math.Nextafter32(middle, a), h},
				{middle, even},
				{math.Nextafter32(middle, b), h + 1},
			} {
				if got := f.narrow(c.x); got != c.want {
					t.Fatalf("%s: %v became %#04x, want %#04x", f.name, c.x, got, c.want)
				}
				if got := f.narrow(-c.x); got != c.want|0x8000 {
					t.Fatalf("%s: %v became %#04x, want %#04x", f.name, -c.x, got, c.want|0x8000)
				}
			}
		}
	}
}

func TestEdges(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		got, want uint16
	}{
		{half.F32ToF16(65504), 0x7bff},
		{half.F32ToF16(65519.996), 0x7bff},
		{half.F32ToF16(65520), 0x7c00},
		{half.F32ToF16(inf), 0x7c00},
		{half.F32ToF16(-inf), 0xfc00},
		{half.F32ToF16(0x1p-25), 0},
		{half.F32ToF16(0x1.8p-25), 1},
		{half.F32ToF16(math.SmallestNonzeroFloat32), 0},
		{half.F32ToF16(1 + 0x1p-10), 0x3c01},
		{half.F32ToBF16(inf), 0x7f80},
		{half.F32ToBF16(math.MaxFloat32), 0x7f80},
		{half.F32ToBF16(261.25), 0x4383},
	} {
		if c.got != c.want {
			t.Errorf("got %#04x, want %#04x", c.got, c.want)
		}
	}
}
