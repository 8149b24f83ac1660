package report

import (
	"fmt"
	"strings"
	"testing"
)

// linkLine is a record of messages between two ranks that take so many seconds; 0: wrong ones.
func linkLine(bytes int, seconds float64) string {
	figures := `"time_s":null,"gb_per_s":0,"median_rank_gb_per_s":0,"repeat_s":null,"rank_s":null,"wrong":1`
	if seconds > 0 {
		rate := float64(bytes) / seconds / 1e9
		figures = fmt.Sprintf(`"time_s":{"min":%g,"median":%g,"p95":%g,"max":%g},"gb_per_s":%g,"median_rank_gb_per_s":%g,"repeat_s":[%g],"rank_s":[%g,%g],"wrong":0`,
			seconds/2, seconds, 2*seconds, 2*seconds, rate, 2*rate, seconds, seconds, seconds)
	}
	return fmt.Sprintf(`{"type":"link","key":"k","bytes":%d,"ranks":2,"backend":"cpu avx2","transport":"host",%s,"later":1}`+"\n", bytes, figures)
}

// Links have a table of their own, with results and without.
func TestLinksAreShown(t *testing.T) {
	head := run{ranks: 2}.records(t)
	results := run{ranks: 2, timed: []timed{{seq: 1024, seconds: 1}}}.records(t)
	for name, c := range map[string]struct {
		text, summary string
	}{
		"alone":          {head, "# 3 link records, 0 results of 1 run, 1 wrong"},
		"beside results": {results, "# 3 link records, 1 result of 1 run, 1 wrong"},
	} {
		s := merged(t, c.text+linkLine(1<<20, 1e-3)+linkLine(3000, 1e-5)+linkLine(5, 0))
		var text strings.Builder
		if err := s.Text(&text); err != nil {
			t.Fatal(err)
		}
		page := htmlOf(t, s)
		elements(t, page)
		for _, want := range []string{
			c.summary, "\n  1 MiB  2  1  cpu avx2  host  0.500  1.000  2.000  1.049  0.5243  2.097  2.097  0\n",
			"\n  3000 B  2  1  cpu avx2  host  0.005  0.010  0.020  0.3  0.15  0.6  0.6  0\n", "\n  5 B  2  1  cpu avx2  host  wrong  -  -  -  -  -  -  1\n",
		} {
			if got := squeezed(text.String()); !strings.Contains(got, squeezed(want)) {
				t.Errorf("%s: no %q in\n%s", name, want, text.String())
			}
		}
		if !strings.Contains(page, "<h2>Links</h2>") || !strings.Contains(page, "<td>3000 B</td>") || !strings.Contains(page, `<td class="wrong">wrong</td>`) {
			t.Errorf("%s: the page has no links", name)
		}
		if got, want := strings.Contains(text.String(), "\nresults\n"), name != "alone"; got != want {
			t.Errorf("%s: are there results? %v", name, got)
		}
	}
}

// squeezed has one space for many.
func squeezed(text string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestLinksThatAreRefused(t *testing.T) {
	head, good := run{ranks: 2}.records(t), linkLine(1000, 1)
	for name, c := range map[string]struct{ text, want string }{
		"no run":          {good, "file0:1: a link before any meta"},
		"no size":         {head + strings.Replace(good, `"bytes":1000`, `"bytes":0`, 1), "file0:4: a link without bytes"},
		"one rank":        {head + strings.Replace(good, `"ranks":2`, `"ranks":1`, 1), "less than two ranks"},
		"ranks of others": {head + strings.Replace(good, `"ranks":2`, `"ranks":3`, 1), "a link of 3 ranks in a run with the records of 2"},
		"a wrong rate": {
			head + strings.Replace(good, `"gb_per_s":1e-06,"median`, `"gb_per_s":1.001e-06,"median`, 1), "figures do not fit together",
		},
		"a wrong greatest time": {head + strings.Replace(good, `"max":2`, `"max":0`, 1), "figures do not fit together"},
		"a slow median rank": {
			head + strings.Replace(good, `"median_rank_gb_per_s":2e-06`, `"median_rank_gb_per_s":9e-07`, 1), "figures do not fit together",
		},
		"no time": {head + strings.Replace(linkLine(1000, 0), `"wrong":1`, `"wrong":0`, 1), "a link that is not wrong, and has no time"},
	} {
		if _, err := merge(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if s := merged(t, head+good, head+good); len(s.Links) != 1 || len(s.Notes) != 1 {
		t.Errorf("the same file twice: %d links, notes %q", len(s.Links), s.Notes)
	}
	if s := merged(t, head+good, head+linkLine(1000, 2)); len(s.Links) != 2 {
		t.Errorf("two measurements: %d links", len(s.Links))
	}
	// Of a wrong one no figure is shown that its record may have.
	for _, wrong := range []string{"1", "-1"} {
		s := merged(t, head+strings.Replace(good, `"wrong":0`, `"wrong":`+wrong, 1))
		if row := strings.Join(linkCells(s.Links)[0], " "); s.Wrong() != 1 || row != "1000 B 2 1 cpu avx2 host wrong - - - - - - "+wrong {
			t.Errorf("%d wrong: %q", s.Wrong(), row)
		}
	}
	// What two links stand on is told apart.
	if s := merged(t, head+good, strings.Replace(head, `"host":"`, `"host":"other`, 1)+good); len(s.Links) != 2 || s.Links[0].Hosts != 1 || s.Links[1].Hosts != 2 {
		t.Errorf("ranks of one host and of two: %+v", s.Links)
	}
	if s := merged(t, head+good+good[:20]); len(s.Links) != 1 || len(s.Notes) != 1 {
		t.Errorf("a link that is cut off: %d links, notes %q", len(s.Links), s.Notes)
	}
}

// Predicted times stand beside measured ones where any result of the table has one.
func TestPredictionsAreShown(t *testing.T) {
	predicted := `"predicted_s":0.5,"machine":{"tflops":1,"link_gb_per_s":2,"node_link_gb_per_s":3,"start_s":0},`
	one := strings.Replace(run{ranks: 1, timed: []timed{{seq: 1024, seconds: 2}}}.records(t), `"type":"result"`, predicted+`"type":"result"`, 1)
	two := run{ranks: 2, timed: []timed{{seq: 1024, seconds: 1.5}, {seq: 2048, wrong: 1}}}.records(t)
	for name, text := range map[string]string{"with": one + two, "without": two} {
		s := merged(t, text)
		var out strings.Builder
		if err := s.Text(&out); err != nil {
			t.Fatal(err)
		}
		got := squeezed(out.String())
		rows := map[string]string{
			"the result":                "\ncausal 1024 1 4/2 64 f32 zigzag ring 1 cpu avx2 host forward 2000.00 2000.00 2000.00 2000.00 500.00 4.00 0.00 ",
			"a result without":          "\ncausal 1024 1 4/2 64 f32 zigzag ring 2 cpu avx2 host forward 1500.00 1500.00 1500.00 1500.00 - - 0.00 ",
			"a wrong result":            "\ncausal 2048 1 4/2 64 f32 zigzag ring 2 cpu avx2 host forward wrong - - - - - - ",
			"what that is":              " predicted is the plan's time in ms ",
			"the scaling table":         "\nranks S time ms predicted x predicted TFLOP/s/rank ",
			"its row":                   "\n1 1024 2000.00 500.00 4.00 ",
			"its row of another result": "\n2 1024 1500.00 - - ",
		}
		if name == "without" {
			rows = map[string]string{"the heading": "\nmask S B heads D dtype layout schedule ranks backend transport pass min ms median p95 max kernel "}
		}
		for what, want := range rows {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s: no %q in\n%s", name, what, want, out.String())
			}
		}
		if page := htmlOf(t, s); strings.Contains(page, "x predicted") != (name == "with") || strings.Contains(page, "the plan&#39;s time in ms") != (name == "with") {
			t.Errorf("%s: the page has other columns", name)
		}
	}
}

func TestPredictionsThatAreRefused(t *testing.T) {
	text := run{ranks: 1, timed: []timed{{seq: 1024, seconds: 2}}}.records(t)
	for predicted, want := range map[string]string{"0": "predicted to take 0 s", "-0.5": "predicted to take -0.5 s", "null": "", "0.5": ""} {
		_, err := merge(strings.Replace(text, `"type":"result"`, `"predicted_s":`+predicted+`,"type":"result"`, 1))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", predicted, err, want)
		}
	}
}
