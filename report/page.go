package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"command": commandOf,
	"worst":   worstClock,
}).Parse(pageText))

// mostBalances is the most charts of ranks' times; the table of times has all.
const mostBalances = 12

// page is what the template lays out.
type page struct {
	*Study
	Summary     string
	Definitions string
	Kinds       []kindSection
	All         grid
	LinkAbout   string
	LinkTable   grid
	Breakdown   []breakdownRow
	Breakdowns  []figure // of the longest
	Balance     []balanceRow
	Balances    []figure // of the least even
	Timelines   []figure // of the first passes

	BreakdownCharts int // that there could be
	TimelineCount   int
	TimelineTable   grid
}

// figure is a chart with its caption and legend.
type figure struct {
	Caption string
	Note    string
	SVG     template.HTML
	Legend  []legend
}

type legend struct {
	Name string
	Mark string // a class of the style sheet: what the line looks like
}

type kindSection struct {
	Title, About string
	Figures      []figure
	Tables       []section
}

// section is a table of scaling with what stands above it.
type section struct {
	Heading, Baseline string
	Grid              grid
}

// grid is a table of texts; Name is for those who do not see it.
type grid struct {
	Name string
	Head []cell
	Rows [][]cell
}

// cell is a text, and the class of the style sheet that it has.
type cell struct{ Text, Class string }

// newGrid marks what is wrong, and the last column where that has words.
func newGrid(name string, head []string, rows [][]string, words bool) grid {
	mark := func(row []string) []cell {
		cells := make([]cell, len(row))
		for i, text := range row {
			cells[i].Text = text
			switch {
			case words && i == len(row)-1:
				cells[i].Class = "words"
			case strings.HasPrefix(text, wrongWord):
				cells[i].Class = "wrong"
			}
		}
		return cells
	}
	g := grid{Name: name, Head: mark(head)}
	for _, row := range rows {
		g.Rows = append(g.Rows, mark(row))
	}
	return g
}

type balanceRow struct {
	Point                     string
	Min, Mean, Max, Imbalance string
	Slowest                   int
}

// HTML writes the study as one page that needs nothing else: no script, no font, no file.
func (s *Study) HTML(out io.Writer) error {
	p := page{Study: s, Summary: s.summary(), Definitions: s.definitions()}
	head, rows := s.resultColumns()
	p.All = newGrid("all results", head, rows, false)
	p.LinkAbout, p.LinkTable = linkAbout, newGrid("links", linkHead, linkCells(s.Links), false)
	for _, k := range kinds {
		section, err := s.kind(k)
		if err != nil {
			return err
		}
		if len(section.Tables) > 0 {
			p.Kinds = append(p.Kinds, section)
		}
	}
	if err := p.addBreakdown(); err != nil {
		return err
	}
	if err := p.addBalance(); err != nil {
		return err
	}
	if err := p.addTimelines(); err != nil {
		return err
	}
	if err := pageTemplate.Execute(out, &p); err != nil {
		return fmt.Errorf("report: page: %w", err)
	}
	return nil
}

// kind is the tables of a kind, with a chart for those that differ in the pass alone.
func (s *Study) kind(k Kind) (kindSection, error) {
	title := k.String()
	all := kindSection{Title: strings.ToUpper(title[:1]) + title[1:] + " scaling", About: k.about()}
	index := map[string]int{}
	var charts [][]*Table
	for _, t := range s.Tables {
		if t.Kind != k {
			continue
		}
		head, rows := t.columns()
		all.Tables = append(all.Tables, section{t.Fixed + ", " + t.Pass, t.baseline(), newGrid(t.title(), head, rows, true)})
		if t.Base == nil {
			continue
		}
		key := fmt.Sprint(t.Fixed, t.Base.environment(), t.Base.Ranks)
		i, ok := index[key]
		if !ok {
			i = len(charts)
			index[key] = i
			charts = append(charts, nil)
		}
		charts[i] = append(charts[i], t)
	}
	for _, tables := range charts {
		lines := curves(tables)
		if len(lines) == 0 {
			continue
		}
		f := figure{Caption: tables[0].Fixed, Note: tables[0].Base.setting()}
		text := k.String() + " scaling of " + tables[0].Fixed + ": "
		text += map[Kind]string{Strong: "speedup against ranks", Weak: "rate per rank against ranks", Sequence: "rate per rank against sequence length"}[k]
		for _, c := range lines {
			mark := map[tone]string{series1: "circle", series2: "square", muted: "dashed"}[c.tone]
			f.Legend = append(f.Legend, legend{c.name, mark})
		}
		var err error
		if f.SVG, err = scalingChart(k, lines, text+"; the table below has the numbers"); err != nil {
			return all, err
		}
		all.Figures = append(all.Figures, f)
	}
	return all, nil
}

// setting is where the point ran, in short.
func (x *Point) setting() string {
	var parts []string
	for _, f := range x.environment() {
		if (f.name == "GPU" && f.value != "none") || f.name == "backend" || f.name == "binding" {
			parts = append(parts, f.value)
		}
	}
	return strings.Join(append(parts, "transport "+x.Transport), ", ")
}

func (p *page) addBalance() error {
	type uneven struct {
		point     *Point
		times     []float64
		imbalance float64
	}
	var all []uneven
	for _, x := range p.Points {
		times := x.RankTimes()
		if !x.Right() || len(times) < 2 {
			continue
		}
		mean := 0.0
		for _, t := range times {
			mean += t / float64(len(times))
		}
		slowest := slices.Max(times)
		all = append(all, uneven{x, times, slowest / mean})
		p.Balance = append(p.Balance, balanceRow{
			Point: x.text(),
			Min:   formatMS(slices.Min(times)), Mean: formatMS(mean), Max: formatMS(slowest), Imbalance: fmt.Sprintf("%.3f", slowest/mean),
			Slowest: slices.Index(times, slowest),
		})
	}
	slices.SortStableFunc(all, func(a, b uneven) int {
		switch {
		case a.imbalance > b.imbalance:
			return -1
		case a.imbalance < b.imbalance:
			return 1
		}
		return 0
	})
	for _, u := range all[:min(len(all), mostBalances)] {
		f := figure{Caption: u.point.text(), Note: fmt.Sprintf("max/mean %.3f", u.imbalance)}
		svg, each, err := balanceChart(u.times, "time by rank of "+f.Caption+", "+f.Note)
		if err != nil {
			return err
		}
		if each > 1 {
			f.Note += fmt.Sprintf("; a bar is the slowest of %d ranks", each)
		}
		f.SVG = svg
		p.Balances = append(p.Balances, f)
	}
	return nil
}

// Command is how the run was called, as a shell would take it.
func (r *Run) Command() string { return commandOf(r.Args) }

func commandOf(args []string) string {
	words := []string{"ringattn"}
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " \t\n\"'\\$`*?[]{}()<>|&;#~!") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
