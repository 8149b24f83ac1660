package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// definitions says how figures are made, below any table.
const definitions = "Time of the slowest rank, median over repeats. FLOPs are 4 x heads x head_dim x visible pairs, backward 2.5 x that. " +
	"work is pairs per rank, speedup FLOP/s of all ranks, efficiency FLOP/s per rank, each over the baseline's."

// predictedAbout says what withPredicted adds.
const predictedAbout = " predicted is the plan's time in ms on the machine of bench --machine, x predicted the measured one over it."

// definitions are those of the figures that are shown.
func (s *Study) definitions() string {
	if !slices.ContainsFunc(s.Points, predicted) {
		return definitions
	}
	return definitions + predictedAbout
}

// predicted reports whether a point has a predicted time.
func predicted(x *Point) bool { return x.PredictedS != nil }

// Text prints the study as tables.
func (s *Study) Text(out io.Writer) error {
	w := &textWriter{out: out}
	for _, t := range s.Traces {
		if err := TraceText(out, t); err != nil {
			return err
		}
	}
	if len(s.Runs) == 0 {
		return nil
	}
	if len(s.Traces) > 0 {
		w.printf("\n")
	}
	w.printf("# %s\n", s.summary())
	for _, r := range s.Runs {
		w.printf("# %s: %s, %s, %s (%s), transport %s\n", r.Where, r.Started, r.build(), plural(len(r.Ranks), "rank"), r.Launch, r.Transport)
		for _, line := range r.Places() {
			w.printf("#   %s\n", line)
		}
	}
	w.printf("# %s\n", s.definitions())
	for _, note := range s.Notes {
		w.printf("# note: %s\n", note)
	}
	if len(s.Links) > 0 {
		w.printf("\nlinks: %s\n", linkAbout)
		w.table(linkHead, linkCells(s.Links), false)
	}
	if len(s.Points) == 0 && len(s.Links) > 0 {
		return w.err
	}
	w.printf("\nresults\n")
	head, rows := s.resultColumns()
	w.table(head, rows, false)
	for _, k := range kinds {
		first := true
		for _, t := range s.Tables {
			if t.Kind != k {
				continue
			}
			w.printf("\n%s\n", t.title())
			if first && k != Strong {
				w.printf("  %s\n", k.about())
			}
			first = false
			w.printf("  %s\n", t.baseline())
			head, rows := t.columns()
			w.table(head, rows, true)
		}
	}
	if len(s.Tables) == 0 {
		w.printf("\nno scaling: no two results differ in ranks, in sequence length, or in both with as many tokens a rank, and in nothing else\n")
	}
	return w.err
}

func (s *Study) summary() string {
	if len(s.Runs) == 0 {
		return plural(len(s.Traces), "trace")
	}
	text := plural(len(s.Points), "result") + " of " + plural(len(s.Runs), "run")
	if n := len(s.Links); n > 0 {
		text = plural(n, "link record") + ", " + text
	}
	if n := len(s.Traces); n > 0 {
		text += ", " + plural(n, "trace")
	}
	if n := s.Wrong(); n > 0 {
		text += fmt.Sprintf(", %d wrong: they have no figures", n)
	}
	return text
}

// textWriter keeps the first error.
type textWriter struct {
	out io.Writer
	err error
}

func (w *textWriter) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format, args...)
	}
}

// table prints cells, aligned right; a last column of words is left as it is.
func (w *textWriter) table(head []string, rows [][]string, words bool) {
	t := tabwriter.NewWriter(w.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range slices.Concat([][]string{head}, rows) {
		last := ""
		if words {
			row, last = row[:len(row)-1], row[len(row)-1]
		}
		line := strings.Join(row, "\t") + "\t"
		if last != "" {
			line += "  " + last
		}
		if _, err := fmt.Fprintln(t, line); err != nil && w.err == nil {
			w.err = err
		}
	}
	if err := t.Flush(); err != nil && w.err == nil {
		w.err = err
	}
}

var resultHead = []string{
	"mask", "S", "B", "heads", "D", "dtype", "layout", "schedule", "ranks", "backend", "transport", "pass", "min ms", "median", "p95", "max",
	"kernel", "exposed", "%overlap", "TFLOP/s/rank", "%peak", "sent", "memory", "#wrong",
}

// resultCells is the text of all points, by column of resultHead.
func (s *Study) resultCells() [][]string {
	var all [][]string
	for _, x := range s.Points {
		row := []string{
			x.Mask, fmt.Sprint(x.Seq), fmt.Sprint(x.Batch), fmt.Sprintf("%d/%d", x.Heads, x.KVHeads), fmt.Sprint(x.HeadDim), x.DType,
			x.Layout, x.Exchange(), fmt.Sprint(x.Ranks), x.Backend, x.Transport, x.Pass,
		}
		if !x.Right() {
			row = append(row, wrongWord, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", fmt.Sprint(x.Wrong))
			all = append(all, row)
			continue
		}
		percent := func(x *float64) string {
			if x == nil {
				return "-"
			}
			return fmt.Sprintf("%.1f", 100**x)
		}
		all = append(all, append(row, formatMS(x.TimeS.Min), formatMS(x.TimeS.Median), formatMS(x.TimeS.P95), formatMS(x.TimeS.Max),
			formatMS(x.KernelS), formatMS(x.ExposedS), percent(x.Overlap),
			formatRate(x.TFLOPSPerRank), percent(x.PeakFraction), FormatBytes(x.BytesSent), FormatBytes(x.MemoryBytes), "0"))
	}
	return all
}

// resultColumns are the cells below their heads, with predictions where there are any.
func (s *Study) resultColumns() (head []string, rows [][]string) {
	return withPredicted(s.Points, "kernel", resultHead, s.resultCells())
}

// withPredicted adds the predicted times, and the median times over them, before the column of a
// name, where any of the points of the rows has one.
func withPredicted(points []*Point, column string, head []string, rows [][]string) ([]string, [][]string) {
	if !slices.ContainsFunc(points, predicted) {
		return head, rows
	}
	at := slices.Index(head, column)
	for i, x := range points {
		time, ratio := "-", "-"
		if p := x.PredictedS; p != nil && x.Right() {
			time, ratio = formatMS(*p), fmt.Sprintf("%.2f", x.TimeS.Median / *p)
		}
		rows[i] = slices.Insert(rows[i], at, time, ratio)
	}
	return slices.Insert(slices.Clone(head), at, "predicted", "x predicted"), rows
}

// Places says where the ranks of a run ran, a line for ranks in a row that are alike but for
// the numbers of their CPUs and GPUs.
func (r *Run) Places() []string {
	var lines []string
	for first := 0; first < len(r.Ranks); {
		end := first
		var cpus, gpus []string
		for ; end < len(r.Ranks) && r.Ranks[end].place() == r.Ranks[first].place(); end++ {
			x := &r.Ranks[end]
			if !slices.Contains(cpus, x.CPUs) {
				cpus = append(cpus, x.CPUs)
			}
			if x.GPU != nil && !slices.Contains(gpus, x.GPU.UUID) {
				gpus = append(gpus, x.GPU.UUID)
			}
		}
		name := fmt.Sprintf("rank %d", first)
		if end-first > 1 {
			name = fmt.Sprintf("ranks %d-%d", first, end-1)
		}
		line := fmt.Sprintf("%s: %s; CPUs %s", name, r.Ranks[first].place(), strings.Join(cpus, " | "))
		if len(gpus) > 0 {
			line += "; GPUs " + strings.Join(gpus, " | ")
		}
		lines = append(lines, line)
		first = end
	}
	return lines
}

func (r *Rank) place() string {
	text := fmt.Sprintf("%s, %s, %s", r.Host, r.binding(), r.kernels())
	if g := r.GPU; g != nil {
		if !strings.Contains(text, g.Name) {
			text += ", " + g.Name
		}
		if g.NVML.Driver != nil {
			text += ", driver " + *g.NVML.Driver
		}
		if r.GPUShared {
			text += ", shared"
		}
	}
	return text
}

// FormatBytes is a size for people, in binary units.
func FormatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for value >= unit && prefix < 4 {
		value, prefix = value/unit, prefix+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[prefix])
}
