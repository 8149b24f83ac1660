package report

import (
	"bytes"
	"fmt"
	"html"
	"html/template"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// tone is a colour of the page, whose style sheet says what it looks like in light, in dark
// and on paper. While a chart is drawn it stands for itself as a colour that nothing else has.
type tone uint8

const (
	ink   tone = iota + 1
	muted      // axes and ideal lines
	rule       // the grid
	series1
	series2
	series3
	series4
	series5
)

var toneNames = [...]string{ink: "ink", muted: "muted", rule: "rule", series1: "series-1", series2: "series-2", series3: "series-3", series4: "series-4", series5: "series-5"}

func (t tone) color() color.Color { return color.NRGBA{R: 1, G: 1, B: uint8(t), A: 255} }

// chart size in the SVG's units, which are about a CSS pixel on a phone.
const (
	chartWidth  = 360
	chartHeight = 220
	labelSize   = 11
)

var dashes = []vg.Length{4, 3}

func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: labelSize}
	p.BackgroundColor = nil
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.Color = muted.color(), muted.color()
		axis.Label.TextStyle.Font, axis.Tick.Label.Font = sans, sans
		axis.Label.TextStyle.Color, axis.Tick.Label.Color = ink.color(), ink.color()
		axis.Width, axis.Tick.Width = 0.75, 0.75
		axis.Padding = 4
	}
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Y.Tick.Marker = roundTicks{}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color, grid.Horizontal.Width = nil, rule.color(), 0.5
	p.Add(grid)
	return p
}

// svgOf draws on a canvas and gives it as an element of the page; text is for those who do
// not see it.
func svgOf(width, height vg.Length, text string, paint func(draw.Canvas)) (template.HTML, error) {
	c := vgsvg.New(width, height)
	paint(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", fmt.Errorf("report: draw: %w", err)
	}
	_, svg, ok := strings.Cut(b.String(), "<svg")
	_, body, closed := strings.Cut(svg, ">")
	if !ok || !closed {
		return "", fmt.Errorf("report: draw: no svg element in what was drawn")
	}
	for t, name := range toneNames {
		body = strings.ReplaceAll(body, fmt.Sprintf("#0101%02X", t), "var(--"+name+")")
	}
	// The drawing escapes its texts; there is nothing of a record in it but numbers.
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %g %g" role="img" aria-label="%s">%s`,
		float64(width), float64(height), html.EscapeString(text), body)), nil
}

// curve is one line of a chart.
type curve struct {
	name  string
	parts []plotter.XYs // interrupted where a result is wrong
	tone  tone
	width vg.Length
	glyph draw.GlyphDrawer // nil: dashed, without points
}

// curves is what one chart shows: tables that differ in the pass alone.
func curves(tables []*Table) []curve {
	var all []curve
	k := tables[0].Kind
	most := 0.0
	for i, t := range tables {
		// The first is wider, to be seen beneath the other.
		c := curve{name: t.Pass, tone: series1, width: 3, glyph: draw.CircleGlyph{}}
		if i > 0 {
			c.tone, c.width, c.glyph = series2, 1.5, draw.BoxGlyph{}
		}
		var part plotter.XYs
		points := 0
		for _, r := range t.Rows {
			if !r.Right() && len(part) > 0 {
				c.parts, part = append(c.parts, part), nil
			}
			if !r.Compared {
				continue
			}
			y := r.TFLOPSPerRank
			if k == Strong {
				y = math.Log2(r.Speedup)
			}
			part = append(part, plotter.XY{X: math.Log2(float64(k.x(r.Point))), Y: y})
			points++
		}
		if len(part) > 0 {
			c.parts = append(c.parts, part)
		}
		if points > 1 {
			all = append(all, c)
			last := c.parts[len(c.parts)-1]
			most = max(most, last[len(last)-1].X)
		}
	}
	if k == Strong && len(all) > 0 {
		base := math.Log2(float64(tables[0].Base.Ranks))
		all = append(all, curve{name: "ideal", tone: muted, width: 1, parts: []plotter.XYs{{{X: base}, {X: most, Y: most - base}}}})
	}
	return all
}

// scalingChart draws speedup against ranks, both logarithmic, or the rate per rank.
func scalingChart(k Kind, all []curve, text string) (template.HTML, error) {
	p := newPlot("ranks", "TFLOP/s per rank")
	if k == Sequence {
		p.X.Label.Text = "sequence length S"
	}
	var xs, ys []float64
	for _, c := range all {
		for _, xy := range slices.Concat(c.parts...) {
			xs, ys = append(xs, xy.X), append(ys, xy.Y)
		}
	}
	p.X.Min, p.X.Max = slices.Min(xs), slices.Max(xs)
	p.Y.Min, p.Y.Max = 0, slices.Max(ys)*1.1
	if k == Strong {
		p.Y.Label.Text = "speedup"
		p.Y.Min, p.Y.Max = math.Floor(slices.Min(ys)), math.Ceil(slices.Max(ys))
		p.Y.Tick.Marker = powerTicks(p.Y.Min, p.Y.Max)
	}
	p.X.Tick.Marker = valueTicks(xs)
	for _, c := range all {
		for _, part := range c.parts {
			line, err := plotter.NewLine(part)
			if err != nil {
				return "", fmt.Errorf("report: draw: %w", err)
			}
			line.Color, line.Width = c.tone.color(), c.width
			p.Add(line)
			if c.glyph == nil {
				line.Dashes = dashes
				continue
			}
			dots, err := plotter.NewScatter(part)
			if err != nil {
				return "", fmt.Errorf("report: draw: %w", err)
			}
			dots.GlyphStyle = draw.GlyphStyle{Color: c.tone.color(), Radius: c.width/2 + 2, Shape: c.glyph}
			p.Add(dots)
		}
	}
	return svgOf(chartWidth, chartHeight, text, p.Draw)
}

// valueTicks marks the values that there are, and labels as many as have room; they are
// logarithms of base 2.
func valueTicks(xs []float64) plot.ConstantTicks {
	xs = slices.Compact(slices.Sorted(slices.Values(xs)))
	const room = chartWidth - 60 // of the axis
	span := xs[len(xs)-1] - xs[0]
	var ticks plot.ConstantTicks
	free := math.Inf(-1) // from here on
	for _, x := range xs {
		tick := plot.Tick{Value: x}
		at := 0.0
		if span > 0 {
			at = (x - xs[0]) / span * room
		}
		label := formatCount(math.Round(math.Exp2(x)))
		half := float64(len(label)) * labelSize * 0.3
		if at-half >= free {
			tick.Label, free = label, at+half+labelSize*0.6
		}
		ticks = append(ticks, tick)
	}
	return ticks
}

// roundTicks labels at most six multiples of 1, 2 or 5 times a power of 10.
type roundTicks struct{}

func (roundTicks) Ticks(low, high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/5)))
	for _, by := range []float64{2, 2.5, 2} {
		if (high-low)/step > 5 {
			step *= by
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'g', 4, 64)})
	}
	return ticks
}

// powerTicks labels at most eight powers of 2 between two exponents.
func powerTicks(low, high float64) plot.ConstantTicks {
	step := max(1, math.Ceil((high-low)/8))
	var ticks plot.ConstantTicks
	for e := low; e <= high; e += step {
		ticks = append(ticks, plot.Tick{Value: e, Label: strconv.FormatFloat(math.Exp2(e), 'g', 4, 64)})
	}
	return ticks
}

// formatCount has k for 1024, as sequence lengths are spoken of.
func formatCount(n float64) string {
	if n >= 1024 && math.Mod(n, 1024) == 0 {
		return strconv.FormatFloat(n/1024, 'f', 0, 64) + "k"
	}
	return strconv.FormatFloat(n, 'f', 0, 64)
}

// mostBars is the most bars of a chart; more ranks are shown several a bar.
const mostBars = 64

// balanceChart draws the ranks' times in milliseconds, and their mean as a dashed line. each
// is how many ranks a bar stands for, by its slowest.
func balanceChart(times []float64, text string) (svg template.HTML, each int, err error) {
	each = (len(times) + mostBars - 1) / mostBars
	var bars plotter.Values
	mean := 0.0
	for chunk := range slices.Chunk(times, each) {
		bars = append(bars, slices.Max(chunk)*1e3)
	}
	for _, t := range times {
		mean += t * 1e3 / float64(len(times))
	}
	p := newPlot("rank", "time ms")
	p.Y.Min, p.Y.Max = 0, slices.Max(bars)*1.1
	p.X.Min, p.X.Max = -0.5, float64(len(bars))-0.5
	var ticks plot.ConstantTicks
	for i := 0; i < len(bars); i += 1 + (len(bars)-1)/8 {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: strconv.Itoa(i * each)})
	}
	p.X.Tick.Marker = ticks
	chart, err := plotter.NewBarChart(bars, vg.Length(min(24, 0.7*(chartWidth-60)/float64(len(bars)))))
	if err != nil {
		return "", 0, fmt.Errorf("report: draw: %w", err)
	}
	chart.Color, chart.LineStyle.Width = series1.color(), 0
	line, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: mean}, {X: float64(len(bars)) - 0.5, Y: mean}})
	if err != nil {
		return "", 0, fmt.Errorf("report: draw: %w", err)
	}
	line.Color, line.Width, line.Dashes = ink.color(), 1, dashes
	p.Add(chart, line)
	svg, err = svgOf(chartWidth, chartHeight*2/3, text, p.Draw)
	return svg, each, err
}
