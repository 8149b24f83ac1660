package backendtest

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"ringattn/half"
	"ringattn/ring"
)

// testRound checks numbers that lie between two bfloat16, halfway too, those that become
// infinite, zeros, subnormals and what is not a number.
func testRound(t *testing.T, b ring.Backend) {
	special := []uint32{
		0, 0x80000000, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0xbf808000, 0xbf818000, 0x00008000, 0x00018000,
		0x807fffff, 0x7f7fffff, 0x7f7f7fff, 0xff7f8000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff,
	}
	rng := rand.New(rand.NewPCG(3, 1))
	for _, n := range []int{0, 1, len(special), 17, 200_001} {
		x, sums := make([]float32, n), make([]float32, n)
		for i := range x {
			x[i], sums[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64())
			if i < len(special) {
				x[i] = math.Float32frombits(special[i])
			}
		}
		d := newDevice(t, b)
		rounded := d.write(make([]byte, 2*n))
		must(t, b.Round(rounded, d.floats(x), int64(n)))
		got := make([]uint16, n)
		must(t, b.Read(bytesOf(got), rounded))
		for i, h := range got {
			if y := half.BF16ToF32(h); h != half.F32ToBF16(x[i]) && !(x[i] != x[i] && y != y) {
				t.Fatalf("element %d of %d: %v (%#x) is rounded to %#x, want %#x", i, n, x[i], math.Float32bits(x[i]), h, half.F32ToBF16(x[i]))
			}
		}
		all := d.floats(sums)
		must(t, b.AddRounded(all, rounded, int64(n)))
		after := make([]float32, n)
		d.read(after, all)
		for i, y := range after {
			if want := sums[i] + half.BF16ToF32(got[i]); y != want && !(y != y && want != want) {
				t.Fatalf("element %d of %d: %v and %v are added to %v", i, n, sums[i], half.BF16ToF32(got[i]), y)
			}
		}
		d.free()
	}
}

// testMove checks rows of every alignment, wide and narrow, in order and not, copied and
// added, and that nothing beside them is touched.
func testMove(t *testing.T, b ring.Backend) {
	rng := rand.New(rand.NewPCG(4, 1))
	index := func(n, of int) []int32 {
		var all []int32
		for _, i := range rng.Perm(of)[:n] {
			all = append(all, int32(i))
		}
		return all
	}
	for _, c := range []struct {
		n, bytes, dstStride, srcStride int
		to, from, add                  bool
	}{
		{1, 1, 1, 1, false, false, false},
		{5, 2, 6, 2, false, false, false},
		{300, 256, 1024, 256, false, false, false},
		{300, 256, 256, 1024, false, true, false},
		{77, 12, 20, 12, true, false, false},
		{77, 16, 16, 48, true, true, false},
		{1000, 6, 6, 10, true, false, false},
		{3, 100_000, 100_000, 200_000, false, false, false},
		{300, 64, 128, 64, false, false, true},
		{77, 12, 12, 24, true, true, true},
	} {
		const spare = 3 // more rows than are moved
		rows := c.n + spare
		dst, src := make([]byte, rows*c.dstStride), make([]byte, rows*c.srcStride)
		for _, x := range [][]byte{dst, src} {
			for i := range x {
				x[i] = byte(rng.Uint32())
			}
			if c.add {
				for i := 0; i < len(x); i += 4 {
					*(*float32)(unsafe.Pointer(&x[i])) = float32(rng.NormFloat64())
				}
			}
		}
		d := newDevice(t, b)
		m := ring.Rearrangement{
			Dst: d.write(dst), Src: d.write(src), N: c.n, Bytes: int64(c.bytes), DstStride: int64(c.dstStride), SrcStride: int64(c.srcStride), Add: c.add,
		}
		var to, from []int32
		if c.to {
			to = index(c.n, rows)
			m.To = d.write(bytesOf(to))
		}
		if c.from {
			from = index(c.n, rows)
			m.From = d.write(bytesOf(from))
		}
		must(t, b.Move(m))
		got := make([]byte, len(dst))
		must(t, b.Read(got, m.Dst))
		for i := range c.n {
			j, k := i, i
			if c.to {
				j = int(to[i])
			}
			if c.from {
				k = int(from[i])
			}
			row := dst[j*c.dstStride:][:c.bytes]
			if !c.add {
				copy(row, src[k*c.srcStride:])
				continue
			}
			for x := 0; x < c.bytes; x += 4 {
				*(*float32)(unsafe.Pointer(&row[x])) += *(*float32)(unsafe.Pointer(&src[k*c.srcStride+x]))
			}
		}
		for i := range got {
			if got[i] != dst[i] {
				t.Fatalf("%+v: byte %d of row %d is %#x, want %#x", c, i%c.dstStride, i/c.dstStride, got[i], dst[i])
			}
		}
		d.free()
	}
	if b.Move(ring.Rearrangement{N: 2, Bytes: 8, DstStride: 4, SrcStride: 8, Dst: unsafe.Pointer(&rng), Src: unsafe.Pointer(&rng)}) == nil {
		t.Error("rows that overlap are accepted")
	}
}
