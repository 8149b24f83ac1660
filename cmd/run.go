package cmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ringattn/report"
	"ringattn/ring"
	"ringattn/shard"
	"ringattn/tensorfile"
)

func newRun() *cobra.Command {
	var o options
	var in, out, outDType string
	c := &cobra.Command{
		Use:   "run --in FILE --out FILE",
		Short: "Attention of the tensors in a file: forward, and backward if dout is there",
		Long: `run reads q, k, v and, if there, dout, packed_seq_ids, mm_token_type_ids and
padding_mask from a safetensors file, each rank its own tokens, computes
attention over all ranks, and writes out and lse, and with dout also dq, dk and
dv. The output appears complete or not at all.`,
		Example: `  mpirun -n 4 ringattn run --in layer.safetensors --out result.safetensors
  ringattn run --ranks 4 --in layer.safetensors --out result.safetensors`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f32, err := parseOutDType(outDType)
			if err != nil {
				return err
			}
			if in == "" || out == "" {
				return usageError("run needs --in FILE and --out FILE")
			}
			if filepath.Ext(out) == ".npy" {
				return usageError("--out %s: npy files are not there yet; the output is safetensors", out)
			}
			return runWorld(c, &o, func(ctx context.Context, w *world) error {
				return w.runFile(ctx, in, out, f32)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&in, "in", "", "safetensors file with the inputs")
	f.StringVar(&out, "out", "", "safetensors file to write")
	f.StringVar(&outDType, "out-dtype", "", "f32: write out, dq, dk, dv as F32, whatever the input's dtype")
	o.addMask(f, "")
	o.addLayout(f, "run N ranks inside this process, without MPI")
	o.addRuntime(f)
	o.addTrace(f, "both passes")
	return c
}

func parseOutDType(text string) (f32 bool, err error) {
	switch text {
	case "":
		return false, nil
	case "f32":
		return true, nil
	}
	return false, usageError("--out-dtype is %q, want f32", text)
}

// runFile is the main job on one rank.
func (w *world) runFile(ctx context.Context, inPath, outPath string, f32 bool) error {
	start := time.Now()
	in, err := w.openInput(ctx, inPath)
	if err != nil {
		return err
	}
	defer in.File.Close()
	if same(inPath, outPath) {
		return known(usageError("--out %s is the input file", outPath))
	}
	if o := w.options.trace; o != "" && (same(inPath, o) || samePath(outPath, o)) {
		return known(usageError("--trace %s is the input or the output file", o))
	}
	if err := w.agree(ctx, fact{"--out", outPath}, fact{"--out-dtype f32", fmt.Sprint(f32)}); err != nil {
		return err
	}
	if err := w.tryOutputs(ctx, outPath); err != nil {
		return err
	}
	p, err := w.openProblem(ctx, in)
	if err != nil {
		return err
	}
	a, err := newAttention(ctx, w, p)
	if err != nil {
		return err
	}
	traced, err := w.startTrace(ctx)
	if err != nil {
		return err
	}
	traced.record(a)
	loaded := time.Now()
	stats, err := a.passes(ctx)
	if err != nil {
		return err
	}
	traced.keep("")
	computed := time.Now()
	if err := a.write(ctx, in, outPath, f32); err != nil {
		return err
	}
	stored := time.Now()
	if err := traced.end(ctx); err != nil {
		return err
	}
	threads, why := a.threads()
	r := rankReport{
		Host: w.host.Host, CPUs: formatList(w.host.CPUs), Backend: a.backend.Name(), Threads: threads, Why: why, GPU: a.readGPU(), Tokens: a.x.Tokens,
		Need: a.need, Peak: peakMemory() - w.host.StartMemory,
		Load: loaded.Sub(start), Store: stored.Sub(computed), Passes: stats,
	}
	if err := w.reportRun(ctx, a, r, inPath, outPath); err != nil {
		return err
	}
	a.close()
	return nil
}

// tryOutputs refuses files that run could not write, before anything is computed.
func (w *world) tryOutputs(ctx context.Context, outPath string) error {
	_, err := fromRoot(ctx, w, func() (bool, error) {
		err := tryAside("--out", outPath)
		if o := w.options.trace; err == nil && o != "" {
			err = tryAside("--trace", o)
		}
		return true, err
	})
	return err
}

// withInput gives errors about a named file the exit code of bad input.
func withInput(err error) error {
	if err == nil || exitCode(err) != exitRuntime {
		return err
	}
	return withCode(exitUsage, err)
}

// samePath is same of files that need not be there yet.
func samePath(a, b string) bool {
	return same(a, b) || filepath.Base(a) == filepath.Base(b) && same(filepath.Dir(a), filepath.Dir(b))
}

func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// write stores the results of all ranks in one file, beside its name first.
func (a *attention) write(ctx context.Context, in *shard.Input, path string, f32 bool) (err error) {
	w := a.world
	layout := "BHSD"
	if in.BSHD {
		layout = "BSHD"
	}
	header, tensors, size, err := tensorfile.Encode(in.Outputs(a.backward, f32), map[string]string{shard.KeyLayout: layout})
	if err != nil {
		return err
	}
	temp := ""
	// Whichever rank fails first removes the file: its abort may end the others
	// before they get to it.
	defer func() {
		if err != nil && temp != "" {
			err = errors.Join(err, tensorfile.Abort(temp))
		}
	}()
	// In bytes: a name need not be UTF-8.
	name, err := fromRoot(ctx, w, func() ([]byte, error) {
		var err error
		temp, err = tensorfile.CreateTemp(path, header, size)
		return []byte(temp), withInput(err)
	})
	if err != nil {
		return err
	}
	temp = string(name)
	if err := a.store(in, temp, tensors); err != nil {
		return err
	}
	if err := w.Barrier(ctx); err != nil {
		return err
	}
	if w.Rank() == 0 {
		if err := tensorfile.Commit(temp, path); err != nil {
			return err
		}
	}
	temp = "" // it is the output now
	// No rank leaves, and none reports success, before the file is there.
	return w.Barrier(ctx)
}

func (a *attention) store(in *shard.Input, temp string, tensors []tensorfile.Tensor) (err error) {
	out, err := tensorfile.OpenForWrite(temp, tensors)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	mover := shard.NewMover(in, a.job.Batch, a.world.Rank())
	for _, h := range a.memory {
		if !slices.Contains(a.outputs(), h.names[0]) {
			continue
		}
		for window := range mover.Windows(h.window()) {
			err := h.read(window.At, func(memory []byte, at []int32) error {
				window.At = at
				for _, t := range tensors {
					if !slices.Contains(h.names, t.Name) {
						continue
					}
					fill := float32(0)
					if t.Name == "lse" {
						fill = float32(math.Inf(-1))
					}
					if err := mover.StoreWindow(out, t, window, memory, h.place(t.Name), fill); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return out.Sync()
}

// rankReport is what a rank tells rank 0 of its run.
type rankReport struct {
	Host, CPUs  string
	Backend     string
	Threads     int
	Why         string     // so many threads
	GPU         *gpuRecord // nil: none
	Tokens      int
	Need, Peak  int64
	Load, Store time.Duration
	Passes      []ring.Stats
}

// reportRun prints who ran where and where the time went.
func (w *world) reportRun(ctx context.Context, a *attention, mine rankReport, inPath, outPath string) error {
	ranks, err := gatherAll(ctx, w, mine)
	if err != nil || w.Rank() != 0 {
		return err
	}
	s := a.shape
	fmt.Fprintf(w.out, "%s\n", versionLine())
	fmt.Fprintf(w.out, "input      %s: %d x %d tokens, %s, %s, head_dim %d, %s\n",
		inPath, a.batch, a.tokens, plural(s.Heads, "query head"), plural(s.KVHeads, "KV head"), s.HeadDim, s.DType)
	fmt.Fprintf(w.out, "mask       %s\n", maskText(a.mask, a.tokens))
	fmt.Fprintf(w.out, "ranks      %d (%s)%s, layout %s, schedule %s%s\n", w.Size(), w.launch, w.placeText(w.Size()), a.job.Batch.Layout.Name, a.job.Schedule, exchangeText(a.job.Members(), a.job.Wire.String()))
	fmt.Fprintf(w.out, "transport  %s\n", a.links.describe(w))
	fmt.Fprintf(w.out, "backend    %s (%s)\n", mine.Backend, mine.Why)
	for r, x := range ranks {
		if x.Backend != mine.Backend {
			fmt.Fprintf(w.out, "           but rank %d: %s\n", r, x.Backend)
		}
	}
	for r, x := range ranks {
		if x.GPU != nil && firstOfGPU(w.hosts, r) {
			fmt.Fprintf(w.out, "gpu        %s: %s\n", x.Host, x.GPU.text(gpuSharers(w.hosts, r)))
		}
	}
	fmt.Fprintln(w.out)
	t := tabwriter.NewWriter(w.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "rank\thost\tCPUs\tthreads\ttokens\tpass\ttime\tkernel\texposed wait\tsent\tpairs\tmemory\t\n")
	for r, x := range ranks {
		for i, p := range x.Passes {
			memory := report.FormatBytes(x.Need)
			if i > 0 {
				memory = "\""
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%v\t%s\t%s\t%s\t%s\t%d\t%s\t\n", r, x.Host, x.CPUs, x.Threads, x.Tokens, a.passList()[i],
				millis(p.Wall), millis(p.Kernel), millis(p.Exposed), report.FormatBytes(p.BytesSent), p.Pairs, memory)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w.out)
	var load, store time.Duration
	var peak, need int64
	for _, x := range ranks {
		load, store = max(load, x.Load), max(store, x.Store)
		peak, need = max(peak, x.Peak), max(need, x.Need)
	}
	var total time.Duration
	for i, p := range a.passList() {
		var slowest time.Duration
		var pairs int64
		for _, x := range ranks {
			slowest = max(slowest, x.Passes[i].Wall)
			pairs += x.Passes[i].Pairs
		}
		total += slowest
		flops := passFLOPs(s, pairs, p)
		fmt.Fprintf(w.out, "%-10v %s, slowest rank; %.2f GFLOP, %.2f GFLOP/s per rank\n", p, millis(slowest), flops/1e9,
			flops/1e9/slowest.Seconds()/float64(w.Size()))
	}
	fmt.Fprintf(w.out, "load %s, compute %s, store %s (slowest rank of each)\n", millis(load), millis(total), millis(store))
	where := ""
	if a.gpu != nil {
		where = " on the GPU"
	}
	who := "fullest rank"
	if w.shared {
		who, need = "all ranks", 0
		for _, x := range ranks {
			need += x.Need
		}
	}
	fmt.Fprintf(w.out, "memory     %s: %s of tensors and buffers planned%s, %s (%d bytes) resident at the peak\n", who, report.FormatBytes(need), where, report.FormatBytes(peak), peak)
	fmt.Fprintf(w.out, "wrote      %s\n", outPath)
	if w.options.trace != "" {
		fmt.Fprintf(w.out, "wrote      %s\n", w.options.trace)
	}
	return nil
}

func millis(d time.Duration) string { return secondsText(d.Seconds()) }
