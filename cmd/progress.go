package cmd

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"ringattn/cases"
	"ringattn/ring"
)

// progress shows how far a sweep is: on a terminal by a bar below everything else, else by
// a line in the log now and then. It draws between points alone, never while one is timed.
type progress struct {
	bar          *progressbar.ProgressBar // nil: none
	log          zerolog.Logger           // discards on all ranks but 0
	perCost      float64                  // steps of the bar
	done, points int
	told         time.Time
}

// progressEvery is the least time between two lines in the log.
const progressEvery = 30 * time.Second

// newProgress is for so many points of some cost together. Lines of the world's log keep
// clear of the bar from then on.
func newProgress(w *world, points int, cost float64) *progress {
	p := &progress{points: points, log: zerolog.Nop(), told: time.Now()}
	if w.Rank() != 0 {
		return p
	}
	p.log = w.log
	if term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		p.draw(os.Stderr, cost, os.Getenv("NO_COLOR") == "")
		w.log = w.log.Output(zerolog.ConsoleWriter{Out: aboveBar{p, os.Stderr}, NoColor: true, TimeFormat: time.TimeOnly})
	}
	return p
}

// barSteps is what the bar counts to, and one more, so that it is not done before end.
const barSteps = 1e6

// draw starts the bar.
func (p *progress) draw(out io.Writer, cost float64, color bool) {
	theme := progressbar.Theme{Saucer: "=", SaucerHead: ">", SaucerPadding: " ", BarStart: "[", BarEnd: "]"}
	if color {
		theme.Saucer, theme.SaucerHead = "[green]=[reset]", "[green]>[reset]"
	}
	p.perCost = barSteps / max(cost, 1)
	p.bar = progressbar.NewOptions64(barSteps+1, progressbar.OptionSetWriter(out), progressbar.OptionSetTheme(theme),
		progressbar.OptionEnableColorCodes(color), progressbar.OptionUseANSICodes(true), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(true), progressbar.OptionSetWidth(30))
	p.show()
}

// cost is about how long a point takes, in pairs of a causal mask: good enough to tell how
// much of a sweep is left.
func cost(s *cases.Shape, pass ring.Pass, ranks int) float64 {
	c := float64(s.Batch) * float64(s.Tokens) * float64(s.Tokens) * float64(s.Heads) * float64(s.HeadDim) / float64(ranks)
	if pass == ring.Backward {
		c *= 2.5
	}
	return c
}

// points counts the points of a sweep, and adds up what they cost.
func (b *benchOptions) points(places []place) (n int, sum float64) {
	for _, x := range places {
		if x.shape == nil {
			n++
			sum += float64(x.bytes)
			continue
		}
		for _, p := range b.passes {
			n++
			sum += cost(x.shape, p, x.ranks)
		}
	}
	return n, sum
}

// step counts a point that is done.
func (p *progress) step(cost float64) {
	p.done++
	if p.bar != nil {
		p.show()
		_ = p.bar.Add64(int64(cost * p.perCost)) // it draws on a terminal, and nothing hangs on it
		return
	}
	if time.Since(p.told) >= progressEvery && p.done < p.points {
		p.told = time.Now()
		p.log.Info().Msgf("%d of %d points", p.done, p.points)
	}
}

func (p *progress) show() {
	p.bar.Describe(fmt.Sprintf("%d/%d points", p.done, p.points))
}

// clear takes the bar away, until the next step.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

// end takes it away for good.
func (p *progress) end() {
	p.clear()
	p.bar = nil
}

// aboveBar writes lines where the bar is.
type aboveBar struct {
	p   *progress
	out io.Writer
}

func (a aboveBar) Write(text []byte) (int, error) {
	a.p.clear()
	n, err := a.out.Write(text)
	if a.p.bar != nil {
		a.p.show()
	}
	return n, err
}
