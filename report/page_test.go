package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gonum.org/v1/plot/plotter"
)

// pageOf is the page of the golden records.
func pageOf(t *testing.T) string {
	t.Helper()
	return htmlOf(t, merged(t, goldenRecords(t)...))
}

func htmlOf(t *testing.T, s *Study) string {
	t.Helper()
	var page strings.Builder
	if err := s.HTML(&page); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// elements reads the page as XML, which it is as well: every element is closed where it
// should be, and every attribute quoted.
func elements(t *testing.T, page string) []xml.StartElement {
	t.Helper()
	var all []xml.StartElement
	for d := xml.NewDecoder(strings.NewReader(page)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			line, column := d.InputPos()
			t.Fatalf("the page is not well formed at %d:%d: %v", line, column, err)
		}
		if e, ok := token.(xml.StartElement); ok {
			all = append(all, e.Copy())
		}
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// The page needs nothing but itself: no script, no font, no image, no request.
func TestPageStandsAlone(t *testing.T) {
	page := pageOf(t)
	count := map[string]int{}
	for _, e := range elements(t, page) {
		count[e.Name.Local]++
		if slices.Contains([]string{"script", "link", "img", "image", "iframe", "object", "embed", "base", "a", "use", "form", "video", "audio", "source"}, e.Name.Local) {
			t.Errorf("the page has an element %s", e.Name.Local)
		}
		for _, a := range e.Attr {
			if name := a.Name.Local; slices.Contains([]string{"src", "srcset", "href", "action", "data", "poster", "background"}, name) || strings.HasPrefix(name, "on") {
				t.Errorf("%s has an attribute %s", e.Name.Local, name)
			}
		}
	}
	for _, text := range []string{"://", "url(", "@import", "javascript:"} {
		if strings.Contains(page, text) {
			t.Errorf("the page has %q", text)
		}
	}
	if !strings.Contains(page, `content="default-src 'none'; style-src 'unsafe-inline'"`) {
		t.Error("the page does not forbid requests")
	}
	// A chart a strong, weak and sequence study, and of ranks' times; a bar a timed result.
	if count["svg"] < 20 || count["figure"] < 8 || count["figcaption"] != count["figure"] {
		t.Errorf("%d svg, %d figures, %d captions", count["svg"], count["figure"], count["figcaption"])
	}
}

// Charts say what they show to those who do not see them, and have the colours of the page,
// in light and in dark.
func TestCharts(t *testing.T) {
	page := pageOf(t)
	inside, texts := false, 0
	for _, e := range elements(t, page) {
		switch e.Name.Local {
		case "svg":
			inside = true
			if attribute(e, "role") != "img" || attribute(e, "aria-label") == "" || attribute(e, "viewBox") == "" {
				t.Errorf("a chart without role, label or viewBox: %v", e.Attr)
			}
			continue
		case "g", "path", "text":
		default:
			inside = false
		}
		if e.Name.Local == "text" {
			texts++
		}
		if style := attribute(e, "style"); inside && strings.Contains(style, "#") {
			t.Errorf("%s has a colour of its own: %s", e.Name.Local, style)
		}
	}
	if texts == 0 {
		t.Error("no chart has a label")
	}
	names := regexp.MustCompile(`var\(--([a-z0-9-]+)\)`).FindAllStringSubmatch(page, -1)
	// In light, in dark and on paper.
	for _, name := range names {
		if n := strings.Count(page, "--"+name[1]+":"); n != 3 {
			t.Errorf("the style sheet says %d times what --%s is, want 3", n, name[1])
		}
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Error("a chart or table has no number where it should")
	}
}

// A curve has what is compared alone, and does not lead across what is wrong.
func TestCurvesAreInterrupted(t *testing.T) {
	x := only(t, study(t,
		run{ranks: 1, timed: []timed{{seq: 4096, seconds: 8}}}, run{ranks: 2, timed: []timed{{seq: 4096, seconds: 4}}},
		run{ranks: 4, timed: []timed{{seq: 4096, wrong: 1}}}, run{ranks: 8, timed: []timed{{seq: 4096, seconds: 2}}},
		run{ranks: 16, mpi: "MPICH", timed: []timed{{seq: 4096, seconds: 0.5}}}), Strong)
	all := curves([]*Table{x})
	if len(all) != 2 || all[1].name != "ideal" {
		t.Fatalf("%d curves, want forward and ideal", len(all))
	}
	want := []plotter.XYs{{{X: 0, Y: 0}, {X: 1, Y: 1}}, {{X: 3, Y: 2}}}
	if diff := cmp.Diff(want, all[0].parts, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]plotter.XYs{{{X: 0, Y: 0}, {X: 3, Y: 3}}}, all[1].parts); diff != "" {
		t.Errorf("the ideal (-want +got):\n%s", diff)
	}
}

// Labels of an axis keep apart, however many values there are.
func TestTicksDoNotOverlap(t *testing.T) {
	var xs []float64
	for ranks := range 64 {
		xs = append(xs, float64(ranks)/10)
	}
	ticks := valueTicks(xs)
	if len(ticks) != len(xs) || ticks[0].Label == "" {
		t.Fatalf("%d ticks, the first labelled %q", len(ticks), ticks[0].Label)
	}
	end, labels := math.Inf(-1), 0
	for _, tick := range ticks {
		if tick.Label == "" {
			continue
		}
		labels++
		at, half := tick.Value/6.3*(chartWidth-60), float64(len(tick.Label))*labelSize*0.3
		if at-half < end {
			t.Errorf("the label %s overlaps the one before", tick.Label)
		}
		end = at + half
	}
	if labels < 8 {
		t.Errorf("%d labels", labels)
	}
	for _, high := range []float64{1e-6, 0.0113, 1, 3, 4.4, 700, 2750, 1e9} {
		if n := len(roundTicks{}.Ticks(0, high)); n < 3 || n > 6 {
			t.Errorf("%d ticks from 0 to %g", n, high)
		}
	}
}

// Texts of records are texts of the page, whatever they say.
func TestTextsAreEscaped(t *testing.T) {
	const name = `docs:<script>alert("1")</script>&amp`
	page := htmlOf(t, study(t,
		run{ranks: 1, mask: name, mpi: name, build: name, timed: []timed{{seq: 1024, seconds: 1}}},
		run{ranks: 2, mask: name, mpi: name, build: name, timed: []timed{{seq: 1024, seconds: 0.5}}}))
	labels := 0
	for _, e := range elements(t, page) {
		if e.Name.Local == "script" {
			t.Error("a mask became an element")
		}
		if strings.Contains(attribute(e, "aria-label"), name) {
			labels++
		}
	}
	if labels == 0 {
		t.Error("the mask's name is in no label as it is")
	}
}

// A study with one result, or with wrong ones alone, has a page too.
func TestPageWithoutScaling(t *testing.T) {
	for _, x := range []timed{{seq: 1024, seconds: 1}, {seq: 1024, wrong: 2}} {
		elements(t, htmlOf(t, study(t, run{ranks: 2, timed: []timed{x}})))
	}
	s := study(t, run{ranks: 1, timed: []timed{{seq: 1024, wrong: 1}}}, run{ranks: 2, timed: []timed{{seq: 1024, wrong: 1}}})
	if x := only(t, s, Strong); x.Base != nil || !strings.HasPrefix(x.baseline(), "no baseline") {
		t.Errorf("wrong results have the baseline %s", x.baseline())
	}
	elements(t, htmlOf(t, s))
}

func TestCommandIsQuoted(t *testing.T) {
	r := Run{Meta: Meta{Args: []string{"bench", "--mask", "docs:my lengths.txt", "it's", ""}}}
	if got, want := r.Command(), `ringattn bench --mask 'docs:my lengths.txt' 'it'\''s' ''`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Many ranks are a bar for several.
func TestManyRanksAreFewBars(t *testing.T) {
	times := make([]float64, 1000)
	for i := range times {
		times[i] = 1
	}
	svg, each, err := balanceChart(times, "x")
	if err != nil || each != 16 || strings.Count(string(svg), "var(--series-1)") != 63 {
		t.Errorf("%d ranks a bar, %d bars, %v", each, strings.Count(string(svg), "var(--series-1)"), err)
	}
}
