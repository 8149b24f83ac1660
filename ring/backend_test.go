package ring_test

import (
	"testing"

	"ringattn/ring"
)

func TestSpanOf(t *testing.T) {
	lo, hi := make([]int32, 300), make([]int32, 300)
	want := func(what string, keys int, tiles int64) {
		t.Helper()
		if span, touched := ring.SpanOf(lo, hi); span != keys || touched != tiles {
			t.Errorf("%s: a span of %d keys, %d tiles, want %d, %d", what, span, touched, keys, tiles)
		}
	}
	want("rows that see nothing", 0, 0)
	lo[3], hi[3] = 1000, 1100
	lo[127], hi[127] = 900, 901
	lo[128], hi[128] = 0, 150 // of the next 128 rows
	lo[299], hi[299] = 5000, 20
	want("rows 0 to 127 have the widest span", 200, 4+3) // tiles 14 to 17, 0 to 2
	lo[130], hi[130] = 250, 257
	want("rows 128 to 255 have the widest span", 257, 4+5)
}
