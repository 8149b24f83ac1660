package cmd

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ringattn/report"
	"ringattn/ring"
)

// compare prints a row for each problem and each layout and schedule that the flags
// leave.
func (o *options) compare(c *cobra.Command, shape *shapeFlags, in string) error {
	problems, err := compareProblems(c, o, shape, in)
	if err != nil {
		return err
	}
	machine, err := o.readMachine(usualGPU)
	if err != nil {
		return err
	}
	nodes := o.nodesOf(o.ranks, nil)
	var text strings.Builder // nothing is printed of what is refused
	fmt.Fprintf(&text, "%s; predicted for %.4g TFLOP/s a rank, %.4g GB/s a link, %.4g GB/s between nodes; sent: in parts of what a ring of whole chunks moves forward\n\n",
		plural(o.ranks, "rank"), machine.Flops/1e12, machine.Link/1e9, machine.NodeLink/1e9)
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "mask\ttokens\tlayout\tschedule\tpairs max/mean\ttokens max/mean\tsent forward\tbackward\tbetween nodes\tmemory\tforward\tbackward\t\n")
	for _, p := range problems {
		for _, choice := range o.candidates(nodes) {
			for _, c := range o.withAndWithoutUlysses() {
				if err := c.compareRow(t, p, choice); err != nil {
					return err
				}
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(c.OutOrStdout(), text.String())
	return err
}

// withAndWithoutUlysses are the flags with one rank a group, and with as many as they say.
func (o *options) withAndWithoutUlysses() []options {
	if o.ulysses <= 1 {
		return []options{*o}
	}
	without := *o
	without.ulysses = 1
	return []options{without, *o}
}

// compareRow prints one layout and schedule of one problem.
func (o *options) compareRow(out io.Writer, p *problem, c choice) error {
	job, err := o.jobOf(c, p, o.ranks, nil)
	if err != nil {
		return err
	}
	r, err := newPlanReport(job, p, o.perNode)
	if err != nil {
		return err
	}
	if err := r.predict(job, p, o); err != nil {
		return err
	}
	// A ring of whole chunks sends each token to all others.
	plain := float64(p.batch) * float64(p.tokens) * float64(p.shape.KVTokenBytes()) * float64(max(o.ranks-1, 1))
	schedule := c.Schedule
	if job.Members() > 1 {
		schedule += fmt.Sprintf(", ulysses %d", job.Members())
	}
	if job.Wire != ring.F32 {
		schedule += ", " + job.Wire.String()
	}
	_, err = fmt.Fprintf(out, "%s\t%d\t%s\t%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%s\t%s\t%s\t\n", maskText(p.mask, p.tokens), p.tokens, c.Layout, schedule,
		r.Forward.PairsMaxOverMean, r.Forward.TokensMaxOverMean, total(r.Forward.BytesSent)/plain, total(r.Backward.BytesSent)/plain,
		total(r.Forward.BytesBetweenNodes)/plain, report.FormatBytes(most(r.Backward.MemoryBytes)),
		secondsText(r.predicted[ring.Forward].Time), secondsText(r.predicted[ring.Backward].Time))
	return err
}

// compareProblems are the shapes of the flags, or the problem of a file.
func compareProblems(c *cobra.Command, o *options, shape *shapeFlags, in string) (problems []*problem, err error) {
	if in != "" {
		p, err := planProblem(c, o, shape, in)
		return []*problem{p}, err
	}
	shapes, err := shape.list(c.Flags(), o.override)
	for i := range shapes {
		problems = append(problems, shapeProblem(&shapes[i]))
	}
	return problems, err
}

func total(x []int64) (sum float64) {
	for _, v := range x {
		sum += float64(v)
	}
	return sum
}

func most(x []int64) (most int64) {
	for _, v := range x {
		most = max(most, v)
	}
	return most
}

func secondsText(s float64) string { return fmt.Sprintf("%.2f ms", s*1e3) }
