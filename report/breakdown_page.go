package report

import (
	"fmt"
	"html/template"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// entryTones are what the entries look like, in their order.
var entryTones = []tone{series1, series2, series4, series5, series3}

// breakdownRow is where the time of a result goes.
type breakdownRow struct {
	Point string
	SVG   template.HTML
	Parts []breakdownPart
}

// breakdownPart is one part: ms over ranks, and percent of the pass.
type breakdownPart struct {
	Name, Min, Mean, Max, Imbalance, Percent string
}

// timePart is one part of a pass's time; nothing but its mean is known of old records.
type timePart struct {
	entry int
	Spread
	spread bool
}

// parts says where the time of a pass goes; nil where that is not known.
func (x *Point) parts() []timePart {
	if x.Breakdown != nil {
		var all []timePart
		for i, s := range x.Breakdown.List() {
			all = append(all, timePart{i, *s, true})
		}
		return all
	}
	other, ok := x.Other()
	if !ok {
		return nil
	}
	return []timePart{{entry: 0, Spread: Spread{Mean: x.KernelS}}, {entry: 1, Spread: Spread{Mean: x.ExposedS}}, {entry: 4, Spread: Spread{Mean: other}}}
}

// addBreakdown makes the table, and charts of what takes longest.
func (p *page) addBreakdown() error {
	type chart struct {
		point *Point
		parts []timePart
		whole float64
	}
	var charts []chart
	for _, x := range p.Points {
		parts := x.parts()
		whole := 0.0
		for _, part := range parts {
			whole += part.Mean
		}
		if !x.Right() || !(whole > 0) {
			continue
		}
		row := breakdownRow{Point: x.text()}
		text := ""
		for _, part := range parts {
			if part.spread && part.Max == 0 {
				continue
			}
			cells := breakdownPart{Entries[part.entry], "-", formatMS(part.Mean), "-", "-", fmt.Sprintf("%.1f", 100*part.Mean/whole)}
			if part.spread {
				cells.Min, cells.Max = formatMS(part.Min), formatMS(part.Max)
			}
			if part.Imbalance != nil {
				cells.Imbalance = fmt.Sprintf("%.3f", *part.Imbalance)
			}
			row.Parts = append(row.Parts, cells)
			text += fmt.Sprintf("%s %s%%, ", cells.Name, cells.Percent)
		}
		var err error
		if row.SVG, err = shareBar(parts, whole, text[:len(text)-2]); err != nil {
			return err
		}
		p.Breakdown = append(p.Breakdown, row)
		if x.Breakdown != nil {
			charts = append(charts, chart{x, parts, whole})
		}
	}
	p.BreakdownCharts = len(charts)
	slices.SortStableFunc(charts, func(a, b chart) int {
		switch {
		case a.whole > b.whole:
			return -1
		case a.whole < b.whole:
			return 1
		}
		return 0
	})
	for _, c := range charts[:min(len(charts), mostBalances)] {
		f := figure{Caption: c.point.text(), Note: fmt.Sprintf("pass %s ms", formatMS(c.whole))}
		if o := c.point.Overlap; o != nil {
			f.Note += fmt.Sprintf(", overlap %.0f%%", 100**o)
		}
		var err error
		if f.SVG, err = breakdownChart(c.parts, "where the time goes of "+f.Caption+"; the table has the numbers"); err != nil {
			return err
		}
		p.Breakdowns = append(p.Breakdowns, f)
	}
	return nil
}

// breakdownChart draws a bar a part: the mean over ranks, and a line from the least to the most.
func breakdownChart(parts []timePart, text string) (template.HTML, error) {
	p := newPlot("ms", "")
	p.X.Min, p.X.Max = 0, 0
	p.Y.Min, p.Y.Max = -0.5, float64(len(parts))-0.5
	var ticks plot.ConstantTicks
	for i, part := range parts {
		p.X.Max = max(p.X.Max, part.Max*1e3*1.05)
		// The first stands on top.
		ticks = append(ticks, plot.Tick{Value: float64(len(parts) - 1 - i), Label: Entries[part.entry]})
	}
	p.X.Max = max(p.X.Max, 1e-6)
	p.X.Tick.Marker, p.Y.Tick.Marker = roundTicks{}, ticks
	p.Add(spreadBars(parts))
	return svgOf(chartWidth, chartHeight*2/3, text, roomy(p))
}

// roomy draws a plot with room for half the last label of its x axis.
func roomy(p *plot.Plot) func(draw.Canvas) {
	return func(c draw.Canvas) { p.Draw(draw.Crop(c, 0, -14, 0, 0)) }
}

// spreadBars are the bars of breakdownChart.
type spreadBars []timePart

// Plot draws them.
func (parts spreadBars) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	for i, part := range parts {
		y := toY(float64(len(parts) - 1 - i))
		const half = 7
		c.SetColor(entryTones[part.entry].color())
		c.Fill(vg.Rectangle{Min: vg.Point{X: toX(0), Y: y - half}, Max: vg.Point{X: toX(part.Mean * 1e3), Y: y + half}}.Path())
		if part.Max <= 0 {
			continue
		}
		low, high := toX(part.Min*1e3), toX(part.Max*1e3)
		line := draw.LineStyle{Color: ink.color(), Width: 1}
		c.StrokeLine2(line, low, y, high, y)
		for _, x := range []vg.Length{low, high} {
			c.StrokeLine2(line, x, y-3, x, y+3)
		}
	}
}

var _ plot.Plotter = spreadBars{}

// shareBar draws parts of a whole, side by side.
func shareBar(parts []timePart, whole float64, text string) (template.HTML, error) {
	const width, height = 240, 14
	return svgOf(width, height, text, func(c draw.Canvas) {
		at := vg.Length(0)
		for _, part := range parts {
			w := vg.Length(part.Mean / whole * width)
			c.SetColor(entryTones[part.entry].color())
			c.Fill(vg.Rectangle{Min: vg.Point{X: at}, Max: vg.Point{X: at + w, Y: height}}.Path())
			at += w
		}
	})
}
