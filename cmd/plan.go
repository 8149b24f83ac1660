package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ringattn/report"
	"ringattn/ring"
	"ringattn/segments"
	"ringattn/shard"
)

// proofRanks is the most ranks for which plan runs the checker, whose time grows
// with the square of the ranks.
const proofRanks = 256

func newPlan() *cobra.Command {
	var o options
	var shape shapeFlags
	var in string
	var asJSON, steps, compare bool
	c := &cobra.Command{
		Use:   "plan --ranks N (--in FILE | --seq N --mask PARTS)",
		Short: "The schedule: who attends to what and sends what to whom",
		Long: `plan prints what each rank would do, without doing it and without MPI: the
tokens it holds, its visible pairs, the bytes it sends against the least that
the mask needs, its memory (tensors, buffers, intervals); with --steps every step.
For up to 256 ranks the plan is proved first. With --machine it predicts the time:
kernels and messages of a rank take what their FLOPs and bytes take there.
--compare sets layouts and schedules side by side, for one mask or several: those that
--layout and --schedule leave.`,
		Example: `  ringattn plan --ranks 8 --seq 65536 --heads 32/4 --head-dim 128 --dtype bf16 --mask causal
  ringattn plan --ranks 4 --in layer.safetensors --layout zigzag --steps
  ringattn plan --ranks 64 --seq 1048576 --mask causal --mask docs:lengths.txt --compare`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.validate(c.Flags()); err != nil {
				return err
			}
			if o.ranks == 0 {
				return usageError("plan needs --ranks N")
			}
			if compare {
				if asJSON || steps {
					return usageError("--compare prints a table, and goes with neither --json nor --steps")
				}
				return o.compare(c, &shape, in)
			}
			p, err := planProblem(c, &o, &shape, in)
			if err != nil {
				return err
			}
			job, err := o.planJob(p)
			if err != nil {
				return err
			}
			report, err := newPlanReport(job, p, o.perNode)
			if err == nil && o.machine != "" {
				err = report.predict(job, p, &o)
			}
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				return e.Encode(report)
			}
			if _, ok := o.chosen(); !ok && o.machine == "" && o.ranks <= autoRanks {
				fmt.Fprintf(c.OutOrStdout(), "auto: for GPUs of %.4g TFLOP/s and links of %.4g GB/s; --machine says others\n", usualGPU.Flops/1e12, usualGPU.Link/1e9)
			}
			return report.print(c.OutOrStdout(), job, p, steps)
		},
	}
	f := c.Flags()
	f.StringVar(&in, "in", "", "plan for the masks of this file")
	shape.add(f)
	o.addMask(f, "with --in: ")
	o.addLayout(f, "ranks to plan for")
	f.BoolVar(&asJSON, "json", false, "as one JSON document")
	f.BoolVar(&steps, "steps", false, "print every step of every rank")
	f.BoolVar(&compare, "compare", false, "a table of layouts and schedules")
	return c
}

// planProblem reads the problem that is planned for, without its tensors.
func planProblem(c *cobra.Command, o *options, shape *shapeFlags, in string) (*problem, error) {
	if in == "" {
		return shape.problem(c.Flags(), o.override)
	}
	if err := shape.absent(c.Flags(), "--in"); err != nil {
		return nil, err
	}
	input, err := shard.Open(in, o.override)
	if err != nil {
		return nil, withInput(err)
	}
	defer input.File.Close()
	rows, err := input.ReadRows()
	if err != nil {
		return nil, err
	}
	return fileProblem(input, rows), nil
}

// planReport is the document of plan --json. Slices are over ranks.
type planReport struct {
	Ranks      int        `json:"ranks"`
	Layout     string     `json:"layout"`
	Schedule   string     `json:"schedule"`
	Ulysses    int        `json:"ulysses"`
	Wire       string     `json:"wire_gradients"`
	Tokens     int        `json:"tokens"`
	Shards     [][][2]int `json:"shards"`      // token ranges of a row
	PredictedS *float64   `json:"predicted_s"` // of both passes; null without a machine
	Forward    passReport `json:"forward"`
	Backward   passReport `json:"backward"`
	Proved     bool       `json:"proved"`

	predicted []ring.Prediction // by pass; nil without a machine
}

type passReport struct {
	Pairs             []int64 `json:"pairs"`
	BytesSent         []int64 `json:"bytes_sent"`
	BytesLeast        []int64 `json:"bytes_least"`
	BytesBetweenNodes []int64 `json:"bytes_between_nodes"`
	MemoryBytes       []int64 `json:"memory_bytes"`
	Steps             []int   `json:"steps"`
	PairsMaxOverMean  float64 `json:"pairs_max_over_mean"`
	TokensMaxOverMean float64 `json:"tokens_max_over_mean"`
}

func newPlanReport(job *ring.Job, p *problem, perNode int) (*planReport, error) {
	ranks := job.Ranks()
	if perNode == 0 {
		perNode = ranks
	}
	layout := job.Batch.Layout
	r := &planReport{Ranks: ranks, Layout: layout.Name, Schedule: job.Schedule, Ulysses: job.Members(), Wire: job.Wire.String(), Tokens: layout.Tokens, Shards: make([][][2]int, ranks)}
	tokens := make([]int64, ranks)
	for rank, spans := range layout.Spans {
		r.Shards[rank] = [][2]int{}
		for _, s := range spans {
			r.Shards[rank] = append(r.Shards[rank], [2]int{s.Start, s.End})
		}
		tokens[rank] = int64(layout.RankTokens(rank))
	}
	if ranks <= proofRanks {
		for _, pass := range []ring.Pass{ring.Forward, ring.Backward} {
			if err := job.Check(pass, job.Plans(pass)); err != nil {
				return nil, withCode(exitInternal, err)
			}
		}
		r.Proved = true
	}
	for rank := range ranks {
		forward := job.PlanOf(rank, ring.Forward)
		backward := job.PlanOf(rank, ring.Backward)
		r.Forward.add(job, ring.Forward, rank, perNode, p.shape, forward)
		r.Backward.add(job, ring.Backward, rank, perNode, p.shape, forward, backward)
	}
	for _, report := range []*passReport{&r.Forward, &r.Backward} {
		report.PairsMaxOverMean = maxOverMean(report.Pairs)
		report.TokensMaxOverMean = maxOverMean(tokens)
	}
	return r, nil
}

// predict adds the times of both passes on the machine of the flags.
func (r *planReport) predict(job *ring.Job, p *problem, o *options) error {
	m, err := o.readMachine(usualGPU)
	if err != nil {
		return err
	}
	all := 0.0
	for _, pass := range []ring.Pass{ring.Forward, ring.Backward} {
		x := job.Predict(pass, p.shape, m, o.nodesOf(r.Ranks, nil))
		r.predicted, all = append(r.predicted, x), all+x.Time
	}
	r.PredictedS = &all
	return nil
}

// add appends what a rank does in a pass. The last of plans is that pass's.
func (report *passReport) add(job *ring.Job, pass ring.Pass, rank, perNode int, shape ring.Shape, plans ...[]ring.Step) {
	steps := plans[len(plans)-1]
	var pairs, sent, between int64
	for _, s := range steps {
		pairs += s.Pairs
		if s.Op != ring.Send {
			continue
		}
		sent += s.Bytes(shape)
		if s.Peer/perNode != rank/perNode {
			between += s.Bytes(shape)
		}
	}
	report.Pairs = append(report.Pairs, job.Share(rank, pairs))
	report.BytesSent = append(report.BytesSent, sent)
	report.BytesLeast = append(report.BytesLeast, job.LeastBytes(rank, pass, shape))
	report.BytesBetweenNodes = append(report.BytesBetweenNodes, between)
	report.MemoryBytes = append(report.MemoryBytes, job.MemoryOf(rank, shape, plans...))
	report.Steps = append(report.Steps, len(steps))
}

// maxOverMean is 1 for perfect balance; also where there is nothing at all.
func maxOverMean(x []int64) float64 {
	var sum, most int64
	for _, v := range x {
		sum += v
		most = max(most, v)
	}
	if sum == 0 {
		return 1
	}
	return float64(most) * float64(len(x)) / float64(sum)
}

// print writes the report for people.
func (r *planReport) print(out io.Writer, job *ring.Job, p *problem, steps bool) error {
	s := p.shape
	fmt.Fprintf(out, "%d x %d tokens, %s, %s, head_dim %d, %s; %s\n", p.batch, p.tokens, plural(s.Heads, "query head"), plural(s.KVHeads, "KV head"), s.HeadDim, s.DType, maskText(p.mask, p.tokens))
	proved := "proved"
	if !r.Proved {
		proved = fmt.Sprintf("not proved (more than %d ranks)", proofRanks)
	}
	fmt.Fprintf(out, "%s, layout %s, schedule %s%s; the plan is %s\n", plural(r.Ranks, "rank"), r.Layout, r.Schedule, exchangeText(r.Ulysses, r.Wire), proved)
	for pass, of := range []*passReport{&r.Forward, &r.Backward} {
		fmt.Fprintf(out, "\n%v: pairs max/mean %.3f, tokens max/mean %.3f\n", ring.Pass(pass), of.PairsMaxOverMean, of.TokensMaxOverMean)
		if r.predicted != nil {
			x := r.predicted[pass]
			fmt.Fprintf(out, "predicted %s, of it %s exposed (mean over ranks)\n", secondsText(x.Time), secondsText(x.Exposed))
		}
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(t, "rank\ttokens of a row\tpairs\tsent\tleast\tbetween nodes\tmemory\tsteps\t\n")
		for rank, pairs := range of.Pairs {
			fmt.Fprintf(t, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t\n", rank, spansText(job.Batch.Layout.Spans[rank]), pairs,
				report.FormatBytes(of.BytesSent[rank]), report.FormatBytes(of.BytesLeast[rank]), report.FormatBytes(of.BytesBetweenNodes[rank]),
				report.FormatBytes(of.MemoryBytes[rank]), of.Steps[rank])
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if !steps {
			continue
		}
		for rank := range r.Ranks {
			fmt.Fprintf(out, "\nrank %d, %v\n", rank, ring.Pass(pass))
			for step := range job.Plan(rank, ring.Pass(pass)) {
				fmt.Fprintf(out, "  %3d  %v\n", step.Round, step)
			}
		}
	}
	return nil
}

func spansText(spans []segments.Span) string {
	if len(spans) == 0 {
		return "none"
	}
	text := ""
	for i, s := range spans {
		if i == 4 {
			return fmt.Sprintf("%s and %d more", text, len(spans)-i)
		}
		if i > 0 {
			text += " "
		}
		text += s.String()
	}
	return text
}
