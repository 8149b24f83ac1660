package report

import (
	"strings"
	"testing"
)

// One rank has no use for a layout or a schedule: it is the baseline of whatever more ranks
// have, where they have none of their own.
func TestOneRankIsTheBaselineOfEachLayout(t *testing.T) {
	of := func(ranks int, seconds float64, layout string) string {
		text := run{ranks: ranks, timed: []timed{{seq: 4096, seconds: seconds}}}.records(t)
		return strings.ReplaceAll(text, `"layout":"zigzag"`, `"layout":"`+layout+`"`)
	}
	s := merged(t, of(1, 8, "contiguous"), of(2, 4.4, "zigzag"), of(4, 2.5, "zigzag"), of(4, 2, "balanced"), of(1, 6, "balanced"))
	want := map[string]string{"zigzag": "1.0000 1.3636 2.4000", "balanced": "1.0000 3.0000"}
	for _, x := range s.Tables {
		if x.Kind != Strong {
			continue
		}
		for layout, speedups := range want {
			if !strings.Contains(x.Fixed, layout) {
				continue
			}
			delete(want, layout)
			if own := !strings.Contains(x.baseline(), "run as balanced, ring"); own != (layout == "balanced") {
				t.Errorf("%s: %s", layout, x.baseline())
			}
			if got := column(x, func(r Row) float64 { return r.Speedup }); got != speedups {
				t.Errorf("%s: speedups %s, want %s", layout, got, speedups)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("no table of %v", want)
	}

	// Of each build its own, and a right one before a wrong one.
	build := func(name, text string) string {
		return strings.ReplaceAll(text, `"revision":"abc"`, `"revision":"`+name+`"`)
	}
	s = merged(t, of(1, 8, "contiguous")+of(2, 4, "zigzag"), build("b", of(1, 6, "contiguous")+of(2, 2, "zigzag")))
	var got []string
	for _, x := range s.Tables {
		if x.Kind == Strong {
			got = append(got, column(x, func(r Row) float64 { return r.Speedup }))
		}
	}
	if strings.Join(got, "; ") != "1.0000 2.0000; 1.0000 3.0000" {
		t.Errorf("speedups of two builds: %q", got)
	}
	wrong := run{ranks: 1, timed: []timed{{seq: 4096, seconds: 1, wrong: 1}}}.records(t)
	two := run{ranks: 2, timed: []timed{{seq: 4096, seconds: 4}}}.records(t)
	other := strings.NewReplacer(`"layout":"zigzag"`, `"layout":"balanced"`).Replace
	if x := only(t, merged(t, other(wrong)+two, of(1, 8, "contiguous")), Strong); x.Base == nil || x.Base.Ranks != 1 || x.Base.Layout != "contiguous" {
		t.Errorf("the baseline beside a wrong one is %+v", x.Base)
	}

	// One of the same file comes before others.
	x := only(t, merged(t, of(1, 8, "balanced"), of(1, 6, "contiguous")+of(2, 3, "zigzag")), Strong)
	if got := column(x, func(r Row) float64 { return r.Speedup }); got != "1.0000 2.0000" {
		t.Errorf("speedups %s beside one rank of the same file and of another", got)
	}
}

// Nothing is said of smaller parts or greater work where neither is.
func TestNoteOfASecondOneAtTheBaseline(t *testing.T) {
	of := func(key string, seq int, seconds float64) string {
		return run{ranks: 2, key: key, timed: []timed{{seq: seq, seconds: seconds}}}.records(t)
	}
	x := only(t, merged(t, of("a", 1024, 2), of("b", 1024, 1), of("c", 2048, 3)), Sequence)
	want := []string{"baseline", "over 1: the baseline is slow; a second one at the baseline's length", "over 1: a rank is faster at its greater work"}
	for i, r := range x.Rows {
		if !strings.HasPrefix(r.Note, want[i]) || i < 2 && r.Note != want[i] {
			t.Errorf("row %d: %q, want %q", i, r.Note, want[i])
		}
	}
}
