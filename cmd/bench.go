package cmd

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ringattn/cases"
	"ringattn/ring"
)

func newBench() *cobra.Command {
	var o options
	var shape shapeFlags
	b := benchOptions{}
	c := &cobra.Command{
		Use:   "bench (--seq N[,N..] [--mask PARTS].. | --links SIZE[,SIZE..] | --config FILE)",
		Short: "Time a shape, or a sweep of shapes; the result is checked first",
		Long: `bench runs each shape once and holds the result against a closed form, then again on
random numbers of a normal distribution, of which it holds up to 16 rows of out, lse and
dq against float64; of a wrong result it prints no figure, and exits 1. Then it times each
pass, on those random numbers: the ranks start together, and the time of a repeat is that of
the slowest rank. FLOPs are 4 x heads x head_dim x visible pairs forward and 2.5 times
that backward, whatever a kernel executes; peak is what the CPUs of the rank reach with
nothing but the multiply-adds that its kernels make of the dtype, measured in the same
run (not known of a GPU).

--links measures what the links between ranks carry: each sends messages to the next rank
and receives from the one before, at once, in the memory and by the transport of the job's
messages. GB/s are 10^9 bytes a second out of the slowest rank, and as many in. What comes is
checked. It goes before the shapes, or without them.

pred ms is the time that the plan of a pass takes on the machine that --machine describes.
mJ/token is the energy of all GPUs a token, where the timed repeats take 2 s together.`,
		Example: `  mpirun -n 4 ringattn bench --seq 8192 --heads 8/2 --head-dim 128
  mpirun -n 4 ringattn bench --config hostfiles/sweep.yaml --out sweep.jsonl --resume
  mpirun -n 4 ringattn bench --links 1MiB,256MiB
  ringattn bench --ranks 2 --seq 4k,8k --mask causal --mask window:512 --output jsonl`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if b.config != "" {
				if err := readConfig(b.config, c.Flags()); err != nil {
					return err
				}
			}
			shapes, err := b.shapes(c.Flags(), &shape, &o)
			if err != nil {
				return err
			}
			if err := b.validate(); err != nil {
				return err
			}
			for i := range shapes {
				for j := range shapes[:i] {
					x, y := shapes[i], shapes[j]
					if x.Name = y.Name; reflect.DeepEqual(x, y) {
						return usageError("S %d with --mask %s is there twice (%s): its results could not be told apart", x.Tokens, shapes[i].Name, y.Name)
					}
				}
			}
			for _, in := range append(shape.files(), b.config) {
				if o.trace != "" && same(o.trace, in) {
					return usageError("--trace %s is read as well", o.trace)
				}
			}
			if b.ranksSweep != "" && o.shards != "" {
				return usageError("--shards is for one number of ranks, and does not go with --ranks-sweep")
			}
			return runWorld(c, &o, func(ctx context.Context, w *world) error { return w.bench(ctx, &b, shapes) })
		},
	}
	f := c.Flags()
	shape.add(f)
	f.Var(&b.links, "links", "sizes of messages in bytes, like 4096, 64KiB or 256MiB, that the links between ranks are measured with")
	f.StringVar(&b.pass, "pass", "forward,backward", "the passes to time")
	f.IntVar(&b.warmup, "warmup", 1, fmt.Sprintf("repeats before the timed ones; of --links at least %d", linkWarmup))
	f.IntVar(&b.repeats, "repeats", 7, "timed repeats")
	f.StringVar(&b.output, "output", "table", "table; jsonl: JSON Lines as docs/bench.schema.json describes them; csv; go: for benchstat")
	f.StringVar(&b.config, "config", "", "YAML file of NAME: VALUE, named after these flags, with lists where a flag takes several; flags of the command line come first")
	f.StringVar(&b.ranksSweep, "ranks-sweep", "", "numbers of ranks to measure on, one after another, as in --ranks-sweep=1,2,4; alone: 1, 2, 4 .. all. "+
		"The first ranks are taken, the others sleep")
	f.Lookup("ranks-sweep").NoOptDefVal = doubling
	f.StringVar(&b.out, "out", "", "file, not there yet unless with --resume, that gets the JSON Lines of each point when it is done; a signal ends the sweep after the shape, or size of --links, at hand")
	f.BoolVar(&b.resume, "resume", false, "go on with the file of --out: points of this build, shape, world and setting that it has are left out")
	f.StringVar(&b.shard, "shard", "", "I/N: of the shapes of the sweep, and sizes of --links, counted once for each number of ranks, only each N-th, from the I-th of 0 to N-1 on, for job arrays")
	f.StringArrayVar(&b.expect, "expect", nil, "PASS.FIGURE>=NUMBER, or <=, of numbers in a result of --output jsonl, such as forward.tflops_per_rank>=0.5: exit 1 where a result of this run misses it")
	o.override = map[string]string{}
	o.addLayout(f, "run N ranks inside this process, without MPI")
	o.addRuntime(f)
	o.addTrace(f, "the last repeat of each point")
	return c
}

// benchOptions are the flags of bench alone.
type benchOptions struct {
	pass, output    string
	warmup, repeats int
	out, shard      string
	ranksSweep      string
	config          string
	resume          bool
	expect          []string
	links           sizes

	passes         []ring.Pass
	common         ring.Shape // dtype and head_dim of all shapes
	shardI, shardN int
	expectations   []expectation
}

func (b *benchOptions) validate() error {
	for _, name := range strings.Split(b.pass, ",") {
		switch name {
		case "forward":
			b.passes = append(b.passes, ring.Forward)
		case "backward":
			b.passes = append(b.passes, ring.Backward)
		default:
			return usageError("--pass is %q, want forward, backward or both", b.pass)
		}
	}
	b.shardN = 1
	if b.shard != "" {
		n, err := fmt.Sscanf(b.shard, "%d/%d", &b.shardI, &b.shardN)
		if err != nil || n != 2 || b.shardI < 0 || b.shardI >= b.shardN || b.shard != fmt.Sprintf("%d/%d", b.shardI, b.shardN) {
			return usageError("--shard is %q, want I/N with 0 <= I < N", b.shard)
		}
	}
	if _, err := b.rankCounts(0); err != nil {
		return err
	}
	for _, text := range b.expect {
		e, err := parseExpectation(text)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(b.passes, func(p ring.Pass) bool { return p.String() == e.pass }) {
			return usageError("--expect %s is of a pass that --pass %s does not time", text, b.pass)
		}
		b.expectations = append(b.expectations, e)
	}
	switch {
	case len(b.passes) > 2 || len(b.passes) == 2 && b.passes[0] == b.passes[1]:
		return usageError("--pass is %q, want forward, backward or both, each once", b.pass)
	case b.warmup < 0:
		return usageError("--warmup is %d, want at least 0", b.warmup)
	case b.repeats < 1:
		return usageError("--repeats is %d, want at least 1", b.repeats)
	case benchPrinters[b.output] == nil:
		return usageError("--output is %q, want table, jsonl, csv or go", b.output)
	case b.resume && b.out == "":
		return usageError("--resume goes with --out FILE")
	}
	return b.validateLinks()
}

// passFLOPs counts the work of a pass; docs/METRICS.md has the convention.
func passFLOPs(s ring.Shape, pairs int64, p ring.Pass) float64 {
	flops := 4 * float64(s.Heads) * float64(s.HeadDim) * float64(pairs)
	if p == ring.Backward {
		flops *= 2.5
	}
	return flops
}

// benchRank is what a rank tells of its part of a bench.
type benchRank struct {
	Rank  rankRecord
	Need  int64
	Stats []ring.Stats // of one pass, by repeat

	Rounds  []ring.RoundStats // of one pass, over repeats
	EnergyJ *float64          // of all repeats; nil: not known, or they were too short
}

// bench times the shapes, one after another. A point is a shape and a pass, or a size of messages.
func (w *world) bench(ctx context.Context, b *benchOptions, shapes []cases.Shape) error {
	if err := w.agreeShapes(ctx, shapes, fact{"--pass", b.pass}, fact{"--warmup", fmt.Sprint(b.warmup)}, fact{"--repeats", fmt.Sprint(b.repeats)},
		fact{"--output", b.output}, fact{"--out", b.out}, fact{"--resume", fmt.Sprint(b.resume)}, fact{"--shard", b.shard},
		fact{"--ranks-sweep", b.ranksSweep}, fact{"--expect", strings.Join(b.expect, " ")}, fact{"--links", b.links.String()}); err != nil {
		return err
	}
	switch o := w.options.trace; {
	case o == "":
	case b.ranksSweep != "":
		return known(usageError("--trace and --ranks-sweep: a trace is of one number of ranks"))
	case b.out != "" && samePath(o, b.out):
		return known(usageError("--trace and --out are both %s", o))
	}
	counts, err := b.rankCounts(w.Size())
	if err != nil {
		return known(err)
	}
	if len(b.links) > 0 && slices.Max(counts) < 2 {
		return known(usageError("--links: of one rank there is no link; there is --ranks N, or a launcher that starts more"))
	}
	for _, n := range counts {
		if u := w.options.ulysses; b.ranksSweep != "" && u > 0 && n%u != 0 {
			return known(usageError("--ulysses %d does not divide the %s of --ranks-sweep", u, plural(n, "rank")))
		}
	}
	r := benchReport{whole: w, options: b}
	if r.traced, err = w.startTrace(ctx); err != nil { // before --out makes a file
		return err
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	places := b.places(counts, shapes)
	points, cost := b.points(places)
	r.progress = newProgress(w, points, cost)
	defer r.progress.end()
	for _, p := range places {
		switch stop, err := r.stop(ctx); {
		case err != nil:
			return err
		case stop:
			return errors.Join(r.end(ctx), r.stopped(stop))
		}
		if err := r.measure(ctx, p); err != nil {
			return errors.Join(err, r.print())
		}
	}
	if err := r.end(ctx); err != nil {
		return err
	}
	// What one rank knows of wrong results and missed expectations, all must.
	sums, err := w.AllReduceMax(ctx, []float64{float64(r.missed), float64(r.wrong)})
	switch {
	case err != nil:
		return err
	case sums[1] > 0:
		return errWrong
	case sums[0] > 0:
		return known(withCode(exitWrong, fmt.Errorf("--expect: missed by %s", plural(int(sums[0]), "result"))))
	}
	return nil
}

// shape times what passes of a shape are to be done.
func (r *benchReport) shape(ctx context.Context, shape *cases.Shape) error {
	w, b := r.world, r.options
	keys := map[ring.Pass]string{}
	var passes []ring.Pass
	for _, p := range b.passes {
		keys[p] = r.key(shape, p)
		if wrong, done := r.done[keys[p]]; done {
			if wrong {
				r.wrong++
			}
			r.progress.step(cost(shape, p, w.Size()))
			continue
		}
		passes = append(passes, p)
	}
	if len(passes) == 0 {
		return nil
	}
	closed, err := cases.Classes(*shape)
	if err != nil {
		return known(withCode(exitUsage, err))
	}
	p := valuedProblem(&closed.Shape, closed)
	p.backward = slices.Contains(passes, ring.Backward)
	a, err := newAttention(ctx, w, p)
	if err != nil {
		return err
	}
	if _, err := a.passes(ctx); err != nil {
		return err
	}
	failed, err := a.hold(ctx, closedAnswer{closed})
	if err != nil {
		return err
	}
	// The backward needs out and lse of the numbers that it is timed on.
	if len(failed) == 0 {
		if err := a.randomise(); err != nil {
			return err
		}
		if _, err := a.passes(ctx); err != nil {
			return err
		}
		if failed, err = a.holdSamples(ctx); err != nil {
			return err
		}
	}
	if err := r.begin(ctx, &a.hardware); err != nil {
		return err
	}
	r.wrong += len(failed)
	for _, text := range failed {
		if w.Rank() == 0 {
			w.log.Error().Msgf("%s: %s", shape.Name, text)
		}
	}
	r.traced.record(a)
	for _, p := range passes {
		timed, err := a.time(ctx, p, b, len(failed) == 0, r.traced)
		if err != nil {
			return err
		}
		r.traced.keep(fmt.Sprintf("%s, S %d, ", shape.Name, a.tokens))
		if err := r.add(ctx, a, shape, p, keys[p], timed, failed); err != nil {
			return err
		}
	}
	a.close()
	return nil
}

// time runs a pass again and again; of a wrong result nothing is timed.
func (a *attention) time(ctx context.Context, p ring.Pass, b *benchOptions, right bool, traced *tracer) (x benchRank, err error) {
	var before energyReading
	for i := 0; right && i < b.warmup+b.repeats; i++ {
		if i == b.warmup {
			before = a.energy()
		}
		if err := a.together(ctx); err != nil {
			return x, err
		}
		traced.forget()
		s, err := a.exec.Run(ctx, p)
		if err != nil {
			return x, err
		}
		if i >= b.warmup {
			x.Stats = append(x.Stats, s)
			x.Rounds = addRounds(x.Rounds, a.exec.Rounds())
		}
	}
	if err := a.together(ctx); err != nil { // who shares a GPU may still compute
		return x, err
	}
	x.EnergyJ = a.energy().since(before)
	return x, nil
}
