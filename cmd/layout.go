package cmd

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"ringattn/ring"
	"ringattn/segments"
)

// layouts lists those that there are; auto takes an earlier one, and an earlier schedule,
// where a later one is predicted to take hardly less time.
var layouts = []string{"contiguous", "zigzag", "balanced"}

// hardly is the part of the time that a later one must stay below.
const hardly = 0.98

// autoRanks is the most ranks for which auto predicts: it makes the plans of all ranks
// for each layout and schedule.
const autoRanks = 64

// usualGPU is what auto reckons with where --machine says nothing, and what is planned
// without ranks: a large GPU that reaches half its peak, and a link of 400 Gbit/s.
var usualGPU = ring.Machine{Flops: 400e12, Link: 50e9, NodeLink: 50e9, Start: 10e-6}

// usualCPU is the same where a rank computes on CPUs: 100 GFLOP/s and 5 GB/s, for any number of
// threads, on which results must not depend.
var usualCPU = ring.Machine{Flops: 100e9, Link: 5e9, NodeLink: 5e9, Start: 10e-6}

// usualMachine is the one for rows of a head_dim on these ranks.
func (w *world) usualMachine(headDim int) ring.Machine {
	if slices.ContainsFunc(w.devices(headDim), func(d string) bool { return !strings.HasPrefix(d, "cuda ") }) {
		return usualCPU
	}
	return usualGPU
}

// addLayout adds what decides who holds and sends what.
func (o *options) addLayout(f *pflag.FlagSet, ranksUsage string) {
	f.StringVar(&o.layout, "layout", "auto", "who holds which tokens: contiguous, zigzag, balanced (documents, and spans of long ones, dealt so that visible pairs and tokens are even), auto")
	f.StringVar(&o.shards, "shards", "", "tokens of each rank by hand, e.g. 3,3,4, in place of --layout")
	f.StringVar(&o.schedule, "schedule", "auto", "how keys and values travel: ring, direct (from their owner to who needs them), two-level (round each node, and once to each other node), auto")
	f.IntVar(&o.ulysses, "ulysses", 1, "U ranks in a row, which must divide ranks and query heads, exchange heads all to all; the schedule then goes over such groups, each rank with a U-th of the heads")
	f.StringVar(&o.wire, "wire-gradients", "f32", "as what the sums of dk and dv travel on the ring: f32, or bf16, half the bytes, with an error that docs/METRICS.md tells")
	f.IntVar(&o.stageTokens, "stage-tokens", 0, "the most tokens of a stage of --schedule direct (default: half of what the fullest rank holds)")
	f.IntVar(&o.grain, "grain", 0, "tokens: --layout balanced cuts documents at multiples of it, from their start or end, alone (default 1)")
	f.IntVar(&o.perNode, "ranks-per-node", 0, "ranks of a node, as if they were placed in order (default: the hosts; of ranks that are only planned: all on one)")
	f.StringVar(&o.machine, "machine", "", "TFLOP/s of a rank, GB/s of its link, and of that between nodes, e.g. 400,50,25: what auto, and the predictions of plan and bench, reckon with")
	f.IntVar(&o.ranks, "ranks", 0, ranksUsage)
}

// readMachine is the machine that --machine describes, m without it.
func (o *options) readMachine(m ring.Machine) (ring.Machine, error) {
	if o.machine == "" {
		return m, nil
	}
	var x []float64
	for part := range strings.SplitSeq(o.machine, ",") {
		v, err := strconv.ParseFloat(part, 64)
		if err != nil || !(v >= 1e-9 && v <= 1e9) {
			return m, usageError("--machine is %q, want numbers from 1e-9 to 1e9, like 400,50 or 400,50,25", o.machine)
		}
		x = append(x, v)
	}
	if len(x) < 2 || len(x) > 3 {
		return m, usageError("--machine is %q, want two numbers or three, like 400,50 or 400,50,25", o.machine)
	}
	m.Flops, m.Link, m.NodeLink = x[0]*1e12, x[1]*1e9, x[len(x)-1]*1e9
	return m, nil
}

// choice names a layout and a schedule.
type choice struct{ Layout, Schedule string }

func (o *options) chosen() (c choice, ok bool) {
	c = choice{o.layout, o.schedule}
	if o.shards != "" {
		c.Layout = "shards"
	}
	return c, c.Layout != "auto" && c.Schedule != "auto"
}

// newJob cuts a problem for the ranks and solves its schedule. What is left to choose rank
// 0 chooses for all.
func (w *world) newJob(ctx context.Context, p *problem) (*ring.Job, error) {
	o, nodes := w.options, w.nodes()
	c, ok := o.chosen()
	if !ok {
		var err error
		if c, err = fromRoot(ctx, w, func() (choice, error) { return o.choose(p, w.Size(), nodes, w.usualMachine(p.shape.HeadDim)) }); err != nil {
			return nil, err
		}
	}
	job, err := o.jobOf(c, p, w.Size(), nodes)
	return job, known(err)
}

// planJob is newJob without ranks.
func (o *options) planJob(p *problem) (*ring.Job, error) {
	c, ok := o.chosen()
	if !ok {
		var err error
		if c, err = o.choose(p, o.ranks, nil, usualGPU); err != nil {
			return nil, err
		}
	}
	return o.jobOf(c, p, o.ranks, nil)
}

// nodesOf are the nodes that --ranks-per-node says; without it those given.
func (o *options) nodesOf(ranks int, nodes ring.Nodes) ring.Nodes {
	if o.perNode > 0 {
		return ring.NodesOf(ranks, o.perNode)
	}
	return nodes
}

func (o *options) jobOf(c choice, p *problem, ranks int, nodes ring.Nodes) (*ring.Job, error) {
	batch, err := o.batch(c.Layout, p, ranks)
	if err != nil {
		return nil, err
	}
	return o.schedules(batch, c.Schedule, p, nodes)
}

// batch cuts a problem by the layout of a name.
func (o *options) batch(layout string, p *problem, ranks int) (*segments.Batch, error) {
	l, err := o.cut(layout, p.tokens, ranks, p.mask)
	if err != nil {
		return nil, err
	}
	batch, err := segments.NewBatch(l, p.mask)
	return batch, withCode(exitUsage, err)
}

func (o *options) schedules(batch *segments.Batch, schedule string, p *problem, nodes ring.Nodes) (*ring.Job, error) {
	job, err := ring.NewJob(batch, schedule, o.nodesOf(len(batch.Layout.Spans), nodes), o.jobOptions(p)...)
	return job, withCode(exitUsage, err)
}

// wires are as what gradients travel, by what --wire-gradients says.
var wires = []string{ring.F32.String(), ring.BF16.String()}

// jobOptions is what the flags say of a job besides its layout and schedule.
func (o *options) jobOptions(p *problem) (list []ring.Option) {
	if o.ulysses > 1 {
		list = append(list, ring.Ulysses(o.ulysses, p.shape.Heads, p.shape.KVHeads))
	}
	if o.wire == ring.BF16.String() {
		list = append(list, ring.GradientsAs(ring.BF16))
	}
	return append(list, ring.StageTokens(o.stageTokens))
}

// exchangeText names what is not the usual of a job's exchange, behind other words.
func exchangeText(members int, wire string) (text string) {
	if members > 1 {
		text = fmt.Sprintf(", ulysses %d", members)
	}
	if wire != "" && wire != ring.F32.String() {
		text += ", gradients travel as " + wire
	}
	return text
}

// placeText says on how many nodes the first so many ranks are, and what flags say of the
// layout and schedule besides their names, behind other words.
func (w *world) placeText(ranks int) string {
	o := w.options
	counts := map[int]int{} // ranks, by node
	for _, node := range o.nodesOf(ranks, w.nodes()[:ranks]) {
		counts[node]++
	}
	each := slices.Sorted(maps.Values(counts))
	text := " on " + plural(len(each), "node")
	switch least, most := each[0], each[len(each)-1]; {
	case len(each) == 1:
	case least == most:
		text += " of " + plural(most, "rank")
	default:
		text += fmt.Sprintf(" of %d to %s", least, plural(most, "rank"))
	}
	if o.perNode > 0 {
		text += " (--ranks-per-node)"
	}
	if o.shards != "" {
		text += ", --shards " + o.shards
	}
	if o.stageTokens > 0 {
		text += fmt.Sprintf(", --stage-tokens %d", o.stageTokens)
	}
	if o.grain > 0 {
		text += fmt.Sprintf(", --grain %d", o.grain)
	}
	return text
}

// cut makes the layout of a name.
func (o *options) cut(name string, tokens, ranks int, m segments.Mask) (segments.Layout, error) {
	switch name {
	case "contiguous":
		return segments.Contiguous(tokens, ranks), nil
	case "zigzag":
		return segments.Zigzag(tokens, ranks), nil
	case "balanced":
		l, err := segments.BalancedPieces(tokens, ranks, max(o.grain, 1), m)
		return l, withCode(exitUsage, err)
	}
	var lengths []int
	for part := range strings.SplitSeq(o.shards, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return segments.Layout{}, usageError("--shards is %q, want token counts like 3,3,4", o.shards)
		}
		lengths = append(lengths, n)
	}
	if len(lengths) != ranks {
		return segments.Layout{}, usageError("--shards gives %d lengths, there are %d ranks", len(lengths), ranks)
	}
	l, err := segments.Shards(tokens, lengths)
	if err != nil {
		return l, usageError("--shards: %w", err)
	}
	return l, nil
}

// alike reports whether there are several nodes of equally many ranks, or of equally many
// groups of ranks.
func (o *options) alike(nodes ring.Nodes) bool {
	groups, err := nodes.Groups(max(o.ulysses, 1))
	return err == nil && groups.Alike()
}

// candidates are the choices that the flags leave, for ranks on such nodes.
func (o *options) candidates(nodes ring.Nodes) (list []choice) {
	c, _ := o.chosen()
	of, by := []string{c.Layout}, []string{c.Schedule}
	if c.Layout == "auto" {
		of = layouts
	}
	if c.Schedule == "auto" {
		by = slices.DeleteFunc(slices.Clone(ring.Schedules), func(s string) bool { return s == "two-level" && !o.alike(nodes) })
	}
	for _, layout := range of {
		for _, schedule := range by {
			list = append(list, choice{layout, schedule})
		}
	}
	return list
}

// choose finds the choice whose plans are predicted to take the least time, on the machine
// of the flags, or the usual one.
func (o *options) choose(p *problem, ranks int, nodes ring.Nodes, usual ring.Machine) (best choice, err error) {
	nodes = o.nodesOf(ranks, nodes)
	if ranks > autoRanks {
		return o.usual(p.mask, nodes), nil
	}
	machine, err := o.readMachine(usual)
	if err != nil {
		return choice{}, err
	}
	least := math.Inf(1)
	var batch *segments.Batch
	var seen []segments.Layout
	for i, c := range o.candidates(nodes) {
		if i == 0 || c.Layout != batch.Layout.Name {
			if batch, err = o.batch(c.Layout, p, ranks); err != nil {
				return choice{}, err
			}
			seen = append(seen, batch.Layout)
		}
		if slices.ContainsFunc(seen[:len(seen)-1], func(s segments.Layout) bool { return sameSpans(s, batch.Layout) }) {
			continue
		}
		job, err := o.schedules(batch, c.Schedule, p, nodes)
		if err != nil {
			return choice{}, err
		}
		if time := predict(job, p, machine, nodes); time < hardly*least {
			best, least = c, time
		}
	}
	return best, nil
}

func sameSpans(a, b segments.Layout) bool {
	return slices.EqualFunc(a.Spans, b.Spans, slices.Equal[[]segments.Span])
}

// predict is the time of the passes of a problem in seconds.
func predict(job *ring.Job, p *problem, m ring.Machine, nodes ring.Nodes) float64 {
	time := job.Predict(ring.Forward, p.shape, m, nodes).Time
	if p.backward {
		time += job.Predict(ring.Backward, p.shape, m, nodes).Time
	}
	return time
}

// usual is what mostly is best, for ranks so many that predictions would take long.
func (o *options) usual(m segments.Mask, nodes ring.Nodes) choice {
	c, _ := o.chosen()
	packed := slices.ContainsFunc(m.Rows, func(r segments.Row) bool {
		return slices.ContainsFunc(r.Docs, func(d segments.DocRun) bool { return d.Doc != r.Docs[0].Doc })
	})
	if c.Layout == "auto" {
		switch {
		case packed:
			c.Layout = "balanced"
		case m.Causal && m.Window == 0:
			c.Layout = "zigzag"
		default:
			c.Layout = "contiguous"
		}
	}
	if c.Schedule == "auto" {
		switch {
		case packed:
			c.Schedule = "direct"
		case o.alike(nodes):
			c.Schedule = "two-level"
		default:
			c.Schedule = "ring"
		}
	}
	return c
}
