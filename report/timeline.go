package report

import (
	"fmt"
	"html/template"
	"io"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"ringattn/trace"
)

// Timeline is one pass of a trace: what its ranks did beside each other.
type Timeline struct {
	Label string
	Ranks []RankTimeline
	Arrow []Arrow
}

// RankTimeline is a rank's part of it; ranges of ns since the pass began on the first rank.
type RankTimeline struct {
	Pass     Range
	Busy     []Range // some kernel was in flight
	Waits    []Range // of the rest: the rank waited
	Messages []Range // some message was under way
	Copies   []Range // some copy between device and host memory was
	Args     trace.Args
}

// Range is from Begin to before End, in ns.
type Range struct{ Begin, End int64 }

// Arrow is a message, from when it was sent on a rank until it was there on another.
type Arrow struct {
	From, To   int
	Begin, End int64
}

// Timelines are the passes of a trace in their order.
func Timelines(t *trace.Trace) []*Timeline {
	var all []*Timeline
	index := map[int]int{} // by the number of a pass
	for _, s := range t.Spans {
		if _, ok := index[s.Args.Number]; !ok && s.Kind == trace.Pass {
			index[s.Args.Number] = len(all)
			all = append(all, &Timeline{Label: s.Args.Label, Ranks: make([]RankTimeline, len(t.Info.Ranks))})
		}
	}
	sends := map[int]trace.Span{} // by message
	begins := make([]int64, len(all))
	known := make([]bool, len(all))
	for _, s := range t.Spans {
		i, ok := index[s.Args.Number]
		if !ok {
			continue
		}
		if s.Kind == trace.Pass && (!known[i] || s.Begin < begins[i]) {
			begins[i], known[i] = s.Begin, true
		}
		if s.Kind == trace.Send {
			sends[s.Args.ID] = s
		}
	}
	for _, s := range t.Spans {
		i, ok := index[s.Args.Number]
		if !ok {
			continue
		}
		x := all[i]
		r := &x.Ranks[s.Rank]
		at := Range{s.Begin - begins[i], s.End - begins[i]}
		switch s.Kind {
		case trace.Pass:
			r.Pass, r.Args = at, s.Args
		case trace.Busy:
			r.Busy = append(r.Busy, at)
		case trace.Wait:
			r.Waits = append(r.Waits, at)
		case trace.Copy:
			r.Copies = append(r.Copies, at)
		case trace.Send:
			r.Messages = append(r.Messages, at)
		case trace.Recv:
			r.Messages = append(r.Messages, at)
			if send, ok := sends[s.Args.ID]; ok {
				x.Arrow = append(x.Arrow, Arrow{send.Rank, s.Rank, send.Begin - begins[i], at.End})
			}
		}
	}
	for _, x := range all {
		for i := range x.Ranks {
			r := &x.Ranks[i]
			r.Busy, r.Messages, r.Copies = union(r.Busy), union(r.Messages), union(r.Copies)
			r.Waits = without(union(r.Waits), r.Busy)
		}
	}
	return all
}

// union joins ranges that touch, in order.
func union(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int {
		switch {
		case a.Begin < b.Begin:
			return -1
		case a.Begin > b.Begin:
			return 1
		}
		return 0
	})
	var all []Range
	for _, r := range ranges {
		if n := len(all); n > 0 && r.Begin <= all[n-1].End {
			all[n-1].End = max(all[n-1].End, r.End)
		} else {
			all = append(all, r)
		}
	}
	return all
}

// without leaves out of ranges what others cover; both as union gives them.
func without(ranges, others []Range) []Range {
	var all []Range
	for _, r := range ranges {
		for _, o := range others {
			if o.End <= r.Begin || o.Begin >= r.End {
				continue
			}
			if o.Begin > r.Begin {
				all = append(all, Range{r.Begin, o.Begin})
			}
			r.Begin = min(o.End, r.End)
		}
		if r.Begin < r.End {
			all = append(all, r)
		}
	}
	return all
}

// end is when the last rank was done.
func (x *Timeline) end() int64 {
	end := int64(0)
	for _, r := range x.Ranks {
		end = max(end, r.Pass.End)
	}
	return end
}

// overlap is the part of the time with messages that kernels hid.
func overlapText(hidden, exposed int64) string {
	if hidden+exposed <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", 100*float64(hidden)/float64(hidden+exposed))
}

var timelineHead = []string{"pass", "rank", "time ms", "kernel", "exposed", "staging", "%overlap"}

// cells is the text of the timeline, by column of timelineHead.
func (x *Timeline) cells() [][]string {
	var all [][]string
	ms := func(ns int64) string { return formatMS(float64(ns) * 1e-9) }
	for rank, r := range x.Ranks {
		a := r.Args
		all = append(all, []string{
			x.Label, fmt.Sprint(rank), ms(r.Pass.End - r.Pass.Begin), ms(a.KernelNS), ms(a.ExposedNS), ms(a.StagingNS), overlapText(a.HiddenNS, a.ExposedNS),
		})
	}
	return all
}

// TraceText prints what the passes of a trace come to.
func TraceText(out io.Writer, t *trace.Trace) error {
	w := &textWriter{out: out}
	w.printf("# trace of %s: %s, clocks aligned to %s us\n", t.Info.Started, plural(len(t.Info.Ranks), "rank"), worstClock(t))
	var rows [][]string
	for _, x := range Timelines(t) {
		rows = append(rows, x.cells()...)
	}
	w.table(timelineHead, rows, false)
	return w.err
}

// worstClock is by how much times of different ranks may be wrong, in us.
func worstClock(t *trace.Trace) string {
	bound := int64(0)
	for _, r := range t.Info.Ranks {
		bound = max(bound, r.Bound)
	}
	return fmt.Sprintf("%.1f", float64(bound)/1e3)
}

// What a chart of a timeline has room for.
const (
	mostTimelines = 12
	mostRows      = 16  // ranks
	mostArrows    = 200 // of the ranks shown
)

// timelineChart draws a row a rank: kernels, what was waited without them, and below them
// messages and copies.
func timelineChart(x *Timeline, text string) (template.HTML, error) {
	shown := min(len(x.Ranks), mostRows)
	p := newPlot("ms", "rank")
	p.X.Min, p.X.Max = 0, max(float64(x.end())*1e-6, 1e-6)
	p.Y.Min, p.Y.Max = -0.5, float64(shown)-0.5
	var ticks plot.ConstantTicks
	for i := range shown {
		ticks = append(ticks, plot.Tick{Value: float64(shown - 1 - i), Label: fmt.Sprint(i)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = roundTicks{}, ticks
	p.Add(lanes{x, shown})
	return svgOf(chartWidth, vg.Length(60+26*shown), text, roomy(p))
}

// lanes are the rows of timelineChart.
type lanes struct {
	*Timeline
	shown int
}

// Plot draws them.
func (l lanes) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	at := func(rank int) vg.Length { return toY(float64(l.shown - 1 - rank)) }
	x := func(ns int64) vg.Length { return toX(float64(ns) * 1e-6) }
	bars := func(t tone, ranges []Range, low, high vg.Length) {
		c.SetColor(t.color())
		for _, r := range ranges {
			// What is too short to be seen is seen.
			right := max(x(r.End), x(r.Begin)+0.3)
			c.Fill(vg.Rectangle{Min: vg.Point{X: x(r.Begin), Y: low}, Max: vg.Point{X: right, Y: high}}.Path())
		}
	}
	for rank := range l.shown {
		r, y := &l.Ranks[rank], at(rank)
		bars(rule, []Range{r.Pass}, y-1, y+8)
		bars(series1, r.Busy, y-1, y+8)
		bars(series2, r.Waits, y-1, y+8)
		bars(series3, r.Messages, y-5, y-2)
		bars(series4, r.Copies, y-8, y-6)
	}
	drawn := 0
	line := draw.LineStyle{Color: ink.color(), Width: 0.5}
	for _, a := range l.Arrow {
		if a.From >= l.shown || a.To >= l.shown || drawn >= mostArrows {
			continue
		}
		drawn++
		c.StrokeLine2(line, x(a.Begin), at(a.From)-3.5, x(a.End), at(a.To)-3.5)
		dot := vg.Point{X: x(a.End), Y: at(a.To) - 3.5}
		c.DrawGlyph(draw.GlyphStyle{Color: ink.color(), Radius: 1.2, Shape: draw.CircleGlyph{}}, dot)
	}
}

var _ plot.Plotter = lanes{}

// addTimelines makes the charts and the table of a study's traces.
func (p *page) addTimelines() error {
	var rows [][]string
	for _, t := range p.Traces {
		for _, x := range Timelines(t) {
			rows = append(rows, x.cells()...)
			if p.TimelineCount++; p.TimelineCount > mostTimelines {
				continue
			}
			f := figure{Caption: x.Label, Note: fmt.Sprintf("%s ms", formatMS(float64(x.end())*1e-9))}
			if len(x.Ranks) > mostRows {
				f.Note += fmt.Sprintf("; the first %d of %d ranks", mostRows, len(x.Ranks))
			}
			var err error
			if f.SVG, err = timelineChart(x, "what ranks did in "+x.Label+"; the table has the sums"); err != nil {
				return err
			}
			p.Timelines = append(p.Timelines, f)
		}
	}
	p.TimelineTable = newGrid("timelines", timelineHead, rows, false)
	return nil
}
