package cases

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ringattn/segments"
)

func TestParseMask(t *testing.T) {
	for spec, want := range map[string]struct {
		mask      MaskSpec
		canonical string
	}{
		"causal":                           {MaskSpec{}, "causal"},
		"full":                             {MaskSpec{Full: true}, "full"},
		"window:5":                         {MaskSpec{Window: 5}, "causal,window:5"},
		"window:5,full":                    {MaskSpec{Full: true, Window: 5}, "full,window:5"},
		"docs:a/b:c.txt":                   {MaskSpec{DocsFile: "a/b:c.txt"}, "causal,docs:a/b:c.txt"},
		"docs:./lognormal:1":               {MaskSpec{DocsFile: "./lognormal:1"}, "causal,docs:./lognormal:1"},
		"docs:lognormal.txt":               {MaskSpec{DocsFile: "lognormal.txt"}, "causal,docs:lognormal.txt"},
		"docs:lognormal:1e3:.5":            {MaskSpec{Median: 1000, Sigma: .5}, "causal,docs:lognormal:1000:0.5"},
		"images:3x256,causal":              {MaskSpec{ImageCount: 3, ImageTokens: 256}, "causal,images:3x256"},
		"images:1x1,docs:f,window:2,full":  {MaskSpec{Full: true, Window: 2, DocsFile: "f", ImageCount: 1, ImageTokens: 1}, "full,window:2,docs:f,images:1x1"},
		"docs:lognormal:8:0,window:000012": {MaskSpec{Median: 8, Window: 12}, "causal,window:12,docs:lognormal:8:0"},
	} {
		got, err := ParseMask(spec)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		if diff := cmp.Diff(want.mask, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", spec, diff)
		}
		if got.String() != want.canonical {
			t.Errorf("%s is written %s, want %s", spec, got, want.canonical)
		}
		if again, err := ParseMask(got.String()); err != nil || again != got {
			t.Errorf("%s reads back as %+v, %v", got, again, err)
		}
	}
}

func TestBadMasksAreRefused(t *testing.T) {
	for spec, want := range map[string]string{
		"":                               "there are causal, full, window:W",
		"causal,":                        "unknown",
		"sliding:4":                      `part "sliding:4": unknown; there are causal, full, window:W, docs:FILE`,
		"Causal":                         "unknown",
		" causal":                        "unknown",
		"causal:1":                       "takes no value",
		"full:":                          "takes no value",
		"causal,full":                    "exclude each other",
		"full,causal,window:2":           "exclude each other",
		"causal,causal":                  `"causal" is there twice`,
		"window:4,window:5":              `"window" is there twice`,
		"docs:a,docs:lognormal:8:1":      `"docs" is there twice`,
		"window":                         `got "", want a whole number >= 1`,
		"window:0":                       `got "0"`,
		"window:-1":                      `got "-1"`,
		"window:+1":                      `got "+1"`,
		"window:1.5":                     "1.5",
		"window:99999999999999999999":    "9999",
		"docs":                           "want docs:FILE",
		"docs:":                          "want docs:FILE",
		"docs:lognormal":                 "MEDIAN > 0",
		"docs:lognormal:5":               "MEDIAN > 0",
		"docs:lognormal:0:1":             "MEDIAN > 0",
		"docs:lognormal:5:-1":            "SIGMA >= 0",
		"docs:lognormal:5:1:2":           "SIGMA >= 0",
		"docs:lognormal:NaN:1":           "MEDIAN > 0",
		"docs:lognormal:Inf:1":           "MEDIAN > 0",
		"docs:lognormal:1:Inf":           "MEDIAN > 0",
		"images:3":                       "COUNTxTOKENS",
		"images:0x3":                     `got "0"`,
		"images:3x":                      `got ""`,
		"images:3x4x5":                   `got "4x5"`,
		"images:3X4":                     `got "3X4"`,
		"window:5,images:2x2,images:2x2": `"images" is there twice`,
	} {
		if got, err := ParseMask(spec); err == nil || !strings.Contains(err.Error(), want) || got != (MaskSpec{}) {
			t.Errorf("%q: want an error with %q, got %+v, %v", spec, want, got, err)
		}
	}
}

func build(t *testing.T, spec string, tokens, rows int) (segments.Mask, error) {
	t.Helper()
	m, err := ParseMask(spec)
	if err != nil {
		t.Fatal(err)
	}
	return m.Build(tokens, rows)
}

func lengthsOf(m segments.Mask, row int) []int {
	var out []int
	for _, d := range m.Rows[row].Docs {
		out = append(out, d.Len())
	}
	return out
}

func TestDocumentsFromAFile(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		file := filepath.Join(dir, "a:b.txt")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	file := write("3\n\n  5\r\n2")
	for tokens, want := range map[int][]int{1: {1}, 3: {3}, 8: {3, 5}, 10: {3, 5, 2}, 25: {3, 5, 2, 3, 5, 2, 3, 2}} {
		m, err := build(t, "docs:"+file+",window:7", tokens, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Validate(tokens); err != nil || !m.Causal || m.Window != 7 || m.Vision {
			t.Errorf("%d tokens: %+v, %v", tokens, m, err)
		}
		for row := range 2 {
			if got := lengthsOf(m, row); !slices.Equal(got, want) {
				t.Errorf("%d tokens: row %d has documents of %v, want %v", tokens, row, got, want)
			}
		}
	}
	for text, want := range map[string]string{
		"3\n0\n":                           `a:b.txt:2: document length: got "0", want a whole number >= 1`,
		"3\n\n4 5\n":                       `a:b.txt:3: document length: got "4 5"`,
		"-3":                               "a:b.txt:1",
		"# lengths\n":                      "a:b.txt:1",
		"\n\n":                             "no document lengths",
		"":                                 "no document lengths",
		"1\n" + strings.Repeat("7", 1<<17): "reading document lengths",
	} {
		if _, err := build(t, "docs:"+write(text), 10, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: want an error with %q, got %v", text, want, err)
		}
	}
	if _, err := build(t, "docs:"+dir+"/none", 10, 1); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := build(t, "full", 0, 1); err == nil {
		t.Error("a row of no tokens passes")
	}
}

func TestDrawnDocuments(t *testing.T) {
	const tokens = 1_000_000
	m, err := build(t, "docs:lognormal:500:1", tokens, 1)
	if err != nil {
		t.Fatal(err)
	}
	got := lengthsOf(m, 0)
	// Every machine and version draws these.
	if want := []int{185, 1674, 1143, 993}; !slices.Equal(got[:4], want) {
		t.Errorf("the first documents have %v tokens, want %v", got[:4], want)
	}
	slices.Sort(got)
	if median := got[len(got)/2]; median < 450 || median > 550 {
		t.Errorf("the median of %d documents is %d, want about 500", len(got), median)
	}
	var mean, m2 float64
	for _, n := range got {
		mean += math.Log(float64(n)) / float64(len(got))
	}
	for _, n := range got {
		m2 += math.Pow(math.Log(float64(n))-mean, 2) / float64(len(got))
	}
	if sigma := math.Sqrt(m2); sigma < 0.9 || sigma > 1.1 {
		t.Errorf("sigma is %v, want about 1", sigma)
	}
	again, _ := build(t, "docs:lognormal:500:1", tokens, 1)
	if diff := cmp.Diff(m, again); diff != "" {
		t.Error("drawn twice, the documents differ")
	}
	for spec, want := range map[string]int{"docs:lognormal:7:0": 7, "docs:lognormal:0.1:0": 1, "docs:lognormal:1e300:50": 1000} {
		m, err := build(t, spec, 1000, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := lengthsOf(m, 0)[0]; got != want {
			t.Errorf("%s: the first document has %d tokens, want %d", spec, got, want)
		}
	}
}

func TestImagesAreSpread(t *testing.T) {
	m, err := build(t, "images:3x4,full", 24, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := []segments.Span{{Start: 2, End: 6}, {Start: 10, End: 14}, {Start: 17, End: 21}}
	if diff := cmp.Diff(want, m.Rows[0].Images); diff != "" || !m.Vision || m.Causal {
		t.Errorf("%+v (-want +got):\n%s", m, diff)
	}
	for spec, tokens := range map[string]int{"images:3x4": 13, "images:1x5": 4, "images:9000000000000000000x9000000000000000000": 10, "images:2x9223372036854775807": 10} {
		if _, err := build(t, spec, tokens, 1); err == nil || !strings.Contains(err.Error(), "do not fit") {
			t.Errorf("%s in %d tokens: %v", spec, tokens, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		count, size := rapid.IntRange(1, 9).Draw(t, "count"), rapid.IntRange(1, 9).Draw(t, "size")
		least := count*(size+1) - 1
		tokens := least + rapid.IntRange(0, 100).Draw(t, "more")
		blocks, err := spread(tokens, count, size)
		if err != nil || len(blocks) != count {
			t.Fatal(blocks, err)
		}
		at, gap := -1, (tokens-least)/(count+1)
		for _, s := range blocks {
			// Before the first block a gap has one token less.
			if between := s.Start - at - 1; s.Len() != size || between < gap || between > gap+1 {
				t.Fatalf("%d blocks of %d in %d tokens: %v", count, size, tokens, blocks)
			}
			at = s.End
		}
		if behind := tokens - at; behind < gap || behind > gap+1 {
			t.Fatalf("%d blocks of %d in %d tokens: %v", count, size, tokens, blocks)
		}
		if _, err := spread(least-1, count, size); err == nil {
			t.Fatalf("%d blocks of %d fit into %d tokens", count, size, least-1)
		}
	})
}
