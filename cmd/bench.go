package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ringattn/cases"
	"ringattn/kernels"
	"ringattn/mpi"
	"ringattn/ring"
)

func newBench() *cobra.Command {
	var o options
	var shape shapeFlags
	b := benchOptions{}
	c := &cobra.Command{
		Use:   "bench --seq N[,N..] [--mask PARTS]..",
		Short: "Time a shape, or a sweep of shapes; the result is checked first",
		Long: `bench runs each shape once and holds the result against a closed form; of a wrong
result it prints no figure, and exits 1. Then it times each pass, on random numbers of
a normal distribution: the ranks start together, and the time of a repeat is that of
the slowest rank. FLOPs are 4 x heads x head_dim x visible pairs forward and 2.5 times
that backward, whatever a kernel executes; peak is what the CPUs of the rank reach with
nothing but the multiply-adds that its kernels make of the dtype, measured in the same
run (not known of a GPU).`,
		Example: `  mpirun -n 4 ringattn bench --seq 8192 --heads 8/2 --head-dim 128
  ringattn bench --ranks 2 --seq 4096,8192 --mask causal --mask window:512 --output jsonl`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			shapes, err := shape.list(c.Flags(), o.override)
			if err != nil {
				return err
			}
			if err := b.validate(); err != nil {
				return err
			}
			return runWorld(c, &o, func(ctx context.Context, w *world) error { return w.bench(ctx, &b, shapes) })
		},
	}
	f := c.Flags()
	shape.add(f)
	f.StringVar(&b.pass, "pass", "forward,backward", "the passes to time")
	f.IntVar(&b.warmup, "warmup", 1, "repeats before them that are not timed")
	f.IntVar(&b.repeats, "repeats", 7, "timed repeats")
	f.StringVar(&b.output, "output", "table", "table, or jsonl: JSON Lines as docs/bench.schema.json describes them")
	o.override = map[string]string{}
	o.addLayout(f, "run N ranks inside this process, without MPI")
	o.addRuntime(f)
	return c
}

// benchOptions are the flags of bench alone.
type benchOptions struct {
	pass, output    string
	warmup, repeats int
	passes          []ring.Pass
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
	switch {
	case len(b.passes) > 2 || len(b.passes) == 2 && b.passes[0] == b.passes[1]:
		return usageError("--pass is %q, want forward, backward or both, each once", b.pass)
	case b.warmup < 0:
		return usageError("--warmup is %d, want at least 0", b.warmup)
	case b.repeats < 1:
		return usageError("--repeats is %d, want at least 1", b.repeats)
	case b.output != "table" && b.output != "jsonl":
		return usageError("--output is %q, want table or jsonl", b.output)
	}
	return nil
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
}

// bench times the shapes, one after another.
func (w *world) bench(ctx context.Context, b *benchOptions, shapes []cases.Shape) error {
	if err := w.agreeShapes(ctx, shapes, fact{"--pass", b.pass}, fact{"--warmup", fmt.Sprint(b.warmup)}, fact{"--repeats", fmt.Sprint(b.repeats)},
		fact{"--output", b.output}); err != nil {
		return err
	}
	r := benchReport{world: w, options: b}
	wrong := false
	for i := range shapes {
		closed, err := cases.Classes(shapes[i])
		if err != nil {
			return withCode(exitUsage, err)
		}
		p := valuedProblem(&closed.Shape, closed)
		p.backward = slices.Contains(b.passes, ring.Backward)
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
		if err := r.begin(ctx, a); err != nil {
			return err
		}
		wrong = wrong || len(failed) > 0
		for _, text := range failed {
			if w.Rank() == 0 {
				w.log.Error().Msgf("%s: %s", shapes[i].Name, text)
			}
		}
		// The backward needs out and lse of the numbers that it is timed on.
		if len(failed) == 0 {
			if err := a.randomise(); err != nil {
				return err
			}
			if _, err := a.passes(ctx); err != nil {
				return err
			}
		}
		for _, p := range b.passes {
			stats, err := a.time(ctx, p, b, len(failed) == 0)
			if err != nil {
				return err
			}
			if err := r.add(ctx, a, &shapes[i], p, stats, failed); err != nil {
				return err
			}
		}
		a.close()
	}
	if err := r.end(); err != nil {
		return err
	}
	if wrong {
		return errWrong
	}
	return nil
}

// time runs a pass again and again; of a wrong result nothing is timed.
func (a *attention) time(ctx context.Context, p ring.Pass, b *benchOptions, right bool) ([]ring.Stats, error) {
	var stats []ring.Stats
	for i := 0; right && i < b.warmup+b.repeats; i++ {
		if err := a.world.Barrier(ctx); err != nil {
			return nil, err
		}
		s, err := a.exec.Run(ctx, p)
		if err != nil {
			return nil, err
		}
		if i >= b.warmup {
			stats = append(stats, s)
		}
	}
	return stats, nil
}

// benchReport prints the records of a bench, on rank 0.
type benchReport struct {
	world   *world
	options *benchOptions
	begun   bool
	peak    float64 // FLOP/s, mean over ranks
	mine    rankRecord
	table   *tabwriter.Writer
}

// begin measures the peak on all ranks at once and prints the heading.
func (r *benchReport) begin(ctx context.Context, a *attention) error {
	if r.begun {
		return nil
	}
	r.begun = true
	w := r.world
	threads, _ := a.threads()
	r.mine = rankRecord{
		Type: "rank", Rank: w.Rank(), Host: w.host.Host, CPUs: formatList(w.host.CPUs), Threads: threads, Backend: a.backend.Name(),
		GPU: a.readGPU(),
	}
	r.mine.GPUShared = r.mine.GPU != nil && gpuSharers(w.hosts, w.Rank()) > 1
	if err := w.Barrier(ctx); err != nil {
		return err
	}
	// Threads that share a CPU would each be measured while they have it to themselves.
	if w.options.backend != "ref" && a.gpu == nil && w.crowded == "" {
		r.mine.PeakTFLOPS = kernels.PeakFLOPS(w.threads, os.Getenv("RINGATTN_TEST_ISA"), a.shape.DType) / 1e12
	}
	ranks, err := gatherAll(ctx, w, r.mine)
	if err != nil || w.Rank() != 0 {
		return err
	}
	known := true
	for _, x := range ranks {
		r.peak += x.PeakTFLOPS * 1e12 / float64(len(ranks))
		known = known && x.PeakTFLOPS > 0
	}
	if !known {
		r.peak = 0
	}
	meta := metaRecord{
		Type: "meta", Version: version, Revision: revision(), MPI: mpi.Version(), Launch: w.launch, Transport: a.links.describe(w),
		Args: os.Args[1:], Started: time.Now().UTC().Format(time.RFC3339),
	}
	if r.options.output == "jsonl" {
		if err := r.print(meta); err != nil {
			return err
		}
		for _, x := range ranks {
			if err := r.print(x); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprintf(w.out, "# %s, %s (%s)\n# transport %s\n", versionLine(), plural(w.Size(), "rank"), w.launch, meta.Transport)
	for _, x := range ranks {
		if x.GPU != nil {
			fmt.Fprintf(w.out, "# rank %d: %s, CPUs %s, %s\n", x.Rank, x.Host, x.CPUs, x.GPU.text(gpuSharers(w.hosts, x.Rank)))
			continue
		}
		peak := "not known"
		if x.PeakTFLOPS > 0 {
			peak = fmt.Sprintf("%.1f GFLOP/s", x.PeakTFLOPS*1e3)
		}
		fmt.Fprintf(w.out, "# rank %d: %s, CPUs %s, %s, peak %s\n", x.Rank, x.Host, x.CPUs, x.Backend, peak)
	}
	fmt.Fprintf(w.out, "# time of the slowest rank, %d repeats; FLOPs 4 x heads x head_dim x visible pairs, backward 2.5 x that\n", r.options.repeats)
	r.table = tabwriter.NewWriter(w.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(r.table, "mask\tS\tB\theads\tD\tdtype\tlayout\tpass\tmin ms\tmedian\tp95\tmax\tkernel\texposed\tGFLOP/s/rank\t%%peak\tsent\tmemory\t#wrong\t\n")
	return nil
}

func (r *benchReport) print(record any) error { return json.NewEncoder(r.world.out).Encode(record) }

// add prints one pass of one shape.
func (r *benchReport) add(ctx context.Context, a *attention, shape *cases.Shape, p ring.Pass, stats []ring.Stats, failed []string) error {
	w := r.world
	ranks, err := gatherAll(ctx, w, benchRank{r.mine, a.need, stats})
	if err != nil || w.Rank() != 0 {
		return err
	}
	s := a.shape
	key := resultKey{
		Seq: a.tokens, Batch: a.batch, Heads: s.Heads, KVHeads: s.KVHeads, HeadDim: s.HeadDim, DType: s.DType.String(), Mask: shape.Name,
		Pass: p.String(), Layout: a.job.Batch.Layout.Name, Schedule: a.job.Schedule, Ranks: w.Size(), Backend: r.mine.Backend, Transport: a.links.kind(w),
	}
	result := resultRecord{Type: "result", resultKey: key, Wrong: len(failed)}
	var slowest []float64
	var pairs int64
	n := float64(len(ranks) * len(stats))
	for i := range stats {
		sample := sampleRecord{Type: "sample", resultKey: key, Repeat: i}
		for _, x := range ranks {
			sample.TimeS = append(sample.TimeS, x.Stats[i].Wall.Seconds())
			result.KernelS += x.Stats[i].Kernel.Seconds() / n
			result.ExposedS += x.Stats[i].Exposed.Seconds() / n
			if i == 0 {
				result.BytesSent += x.Stats[i].BytesSent
				pairs += x.Stats[i].Pairs
			}
		}
		slowest = append(slowest, slices.Max(sample.TimeS))
		if r.options.output == "jsonl" {
			if err := r.print(sample); err != nil {
				return err
			}
		}
	}
	for _, x := range ranks {
		result.MemoryBytes = max(result.MemoryBytes, x.Need)
	}
	if len(stats) > 0 {
		result.TimeS = newQuantiles(slowest)
		rate := passFLOPs(s, pairs, p) / float64(w.Size()) / result.TimeS.Median
		result.TFLOPSPerRank = rate / 1e12
		if r.peak > 0 {
			fraction := rate / r.peak
			result.PeakFraction = &fraction
		}
	}
	if r.options.output == "jsonl" {
		return r.print(result)
	}
	fmt.Fprintf(r.table, "%s\t%d\t%d\t%d/%d\t%d\t%s\t%s\t%s\t", key.Mask, key.Seq, key.Batch, key.Heads, key.KVHeads, key.HeadDim, key.DType, key.Layout, key.Pass)
	if result.TimeS == nil {
		fmt.Fprintf(r.table, "-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t%d\t\n", result.Wrong)
		return nil
	}
	peak := "-"
	if result.PeakFraction != nil {
		peak = fmt.Sprintf("%.1f", 100**result.PeakFraction)
	}
	t := result.TimeS
	fmt.Fprintf(r.table, "%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t%d\t\n", t.Min*1e3, t.Median*1e3, t.P95*1e3, t.Max*1e3,
		result.KernelS*1e3, result.ExposedS*1e3, result.TFLOPSPerRank*1e3, peak, bytesText(result.BytesSent), bytesText(result.MemoryBytes), result.Wrong)
	return nil
}

func (r *benchReport) end() error {
	if r.table == nil {
		return nil
	}
	return r.table.Flush()
}
