package ring_test

import (
	"testing"

	"ringattn/ring"
)

func TestSpanOf(t *testing.T) {
	lo, hi := make([]int32, 300), make([]int32, 300)
	if span := ring.SpanOf(lo, hi); span != 0 {
		t.Errorf("rows that see nothing have a span of %d", span)
	}
	lo[3], hi[3] = 1000, 1100
	lo[127], hi[127] = 900, 901
	lo[128], hi[128] = 0, 150 // of the next 128 rows
	lo[299], hi[299] = 5000, 20
	if span := ring.SpanOf(lo, hi); span != 200 {
		t.Errorf("the span is %d, want 200, of rows 0 to 127", span)
	}
	lo[130], hi[130] = 250, 251
	if span := ring.SpanOf(lo, hi); span != 251 {
		t.Errorf("the span is %d, want 251, of rows 128 to 255", span)
	}
}
