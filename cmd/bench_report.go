package cmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"ringattn/cases"
	"ringattn/kernels"
	"ringattn/mpi"
	"ringattn/report"
	"ringattn/ring"
)

// benchReport makes the records of a bench, and on rank 0 shows them.
type benchReport struct {
	whole    *world // all ranks
	world    *world // those that are measured; nil before the first are
	options  *benchOptions
	printers []benchPrinter
	done     map[string]bool // by key: points that were there, and whether their results were wrong
	begun    bool
	peak     float64 // FLOP/s, mean over ranks
	mine     rankRecord
	threads  []int // of the ranks that are measured
	wrong    int   // tensors beyond their bounds
	progress *progress
	missed   int // results that miss an expectation
	traced   *tracer
}

// open opens the file of results, on rank 0, and tells all ranks what is in it.
func (r *benchReport) open(ctx context.Context) error {
	w, b := r.whole, r.options
	if b.out == "" {
		if w.Rank() == 0 {
			r.printers = []benchPrinter{benchPrinters[b.output](w, b.repeats)}
		}
		return nil
	}
	interruptOf(ctx).patient.Store(true)
	done, err := fromRoot(ctx, w, func() (map[string]bool, error) {
		file, err := openBenchFile(b.out, b.resume)
		if err != nil {
			return nil, err
		}
		r.printers = []benchPrinter{benchPrinters[b.output](w, b.repeats), file}
		return file.done, nil
	})
	if err != nil {
		return err
	}
	r.done = done
	if len(r.done) > 0 && w.Rank() == 0 {
		w.log.Info().Msgf("%s has %s", b.out, plural(len(r.done), "point"))
	}
	return nil
}

// stop reports whether a rank has had a signal.
func (r *benchReport) stop(ctx context.Context) (bool, error) {
	if r.options.out == "" {
		return false, nil
	}
	mine := 0.0
	if interruptOf(ctx).requested.Load() {
		mine = 1
	}
	all, err := r.whole.AllReduceMax(ctx, []float64{mine, float64(r.progress.done)})
	if err != nil || all[0] == 0 {
		return false, err
	}
	r.progress.done = int(all[1])
	return true, nil
}

// stopped is the error of a sweep that all ranks end because one of them has had a signal.
func (r *benchReport) stopped(stop bool) error {
	if !stop {
		return nil
	}
	return fmt.Errorf("%w after %d of %s; --resume goes on with %s", errStopped, r.progress.done, plural(r.progress.points, "point"), r.options.out)
}

// key names a point: build, shape, pass, setting, what computes, and world. What the mask's
// documents are is in it, the names of files and hosts are not: an array job that starts
// again on other nodes of the kind goes on.
func (r *benchReport) key(shape *cases.Shape, p ring.Pass) string {
	what := *shape
	what.Name = ""
	return r.keyOf(fmt.Sprintf("%+v|%s", what, p), shape.HeadDim)
}

// keyOf is the key of whatever is measured, where a head_dim says what computes.
func (r *benchReport) keyOf(what string, headDim int) string {
	w, o := r.world, r.world.options
	nodes := map[string]int{}
	for _, h := range w.hosts {
		nodes[h.Host]++
	}
	text := fmt.Sprintf("%s %s %s|%s|%s %s %s %d %s %s %v|%q|%d %d|%d of %d %v", version, revision(), kernels.CUDAArchive(), what,
		o.layout, o.schedule, o.shards, o.perNode, o.machine, o.transport, r.threads, w.devices(headDim), r.options.warmup, r.options.repeats,
		w.Size(), r.whole.Size(), slices.Sorted(maps.Values(nodes)))
	text += fmt.Sprintf("|%d %s %d %d|%t", o.ulysses, o.wire, o.stageTokens, o.grain, o.trace != "")
	messages := mpi.Version()
	if w.shared {
		messages = "one process"
	}
	text += "|" + messages
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// begin measures the peak on all ranks at once and shows the heading.
func (r *benchReport) begin(ctx context.Context, h *hardware) error {
	if r.begun {
		return nil
	}
	r.begun = true
	w := r.world
	threads, _ := h.threads()
	r.mine = rankRecord{
		Type: "rank", Rank: w.Rank(), Host: w.host.Host, CPUs: formatList(w.host.CPUs), Threads: threads, Backend: h.backend.Name(),
		GPU: h.readGPU(),
	}
	r.mine.GPUShared = r.mine.GPU != nil && gpuSharers(w.hosts, w.Rank()) > 1
	if err := w.Barrier(ctx); err != nil {
		return err
	}
	// Threads that share a CPU would each be measured while they have it to themselves.
	if w.options.backend != "ref" && h.gpu == nil && w.crowded == "" {
		r.mine.PeakTFLOPS = kernels.PeakFLOPS(w.threads, testISA(), r.options.common.DType) / 1e12
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
	meta := metaRecord{"meta", report.Meta{
		Version: version, Revision: revision(), MPI: mpi.Version(), Launch: w.launch, Transport: h.links.describe(w),
		World: r.whole.Size(), Args: os.Args[1:], Started: time.Now().UTC().Format(time.RFC3339),
	}}
	r.progress.clear()
	for _, p := range r.printers {
		if err := p.head(meta, ranks); err != nil {
			return err
		}
	}
	return nil
}

// add shows one pass of one shape.
func (r *benchReport) add(ctx context.Context, a *attention, shape *cases.Shape, p ring.Pass, key string, timed benchRank, failed []string) error {
	w, stats := r.world, timed.Stats
	timed.Rank, timed.Need = r.mine, a.need
	ranks, err := gatherAll(ctx, w, timed)
	if err != nil || w.Rank() != 0 {
		return err
	}
	r.progress.clear()
	defer r.progress.step(cost(shape, p, w.Size()))
	s := a.shape
	what := report.Key{
		Key: key, Seq: a.tokens, Batch: a.batch, Heads: s.Heads, KVHeads: s.KVHeads, HeadDim: s.HeadDim, DType: s.DType.String(), Mask: shape.Name,
		Pass: p.String(), Layout: a.job.Batch.Layout.Name, Schedule: a.job.Schedule, Ulysses: a.job.Members(), Wire: a.job.Wire.String(), Ranks: w.Size(), Backend: r.mine.Backend, Transport: a.links.kind(w),
	}
	result := resultRecord{"result", report.Result{Key: what, Wrong: len(failed)}}
	if err := a.predict(&result.Result, p); err != nil {
		return err
	}
	var samples []sampleRecord
	var slowest []float64
	var pairs int64
	n := float64(len(ranks) * len(stats))
	for i := range stats {
		sample := sampleRecord{"sample", report.Sample{Key: what, Repeat: i}}
		for _, x := range ranks {
			sample.TimeS = append(sample.TimeS, x.Stats[i].Wall.Seconds())
			result.KernelS += x.Stats[i].Kernel.Seconds() / n
			result.ExposedS += x.Stats[i].Exposed.Seconds() / n
			if i == 0 {
				result.BytesSent += x.Stats[i].BytesSent
				pairs += x.Stats[i].Pairs
			}
		}
		samples, slowest = append(samples, sample), append(slowest, sample.slowest())
	}
	var most int64 // bytes that a rank sends
	for _, x := range ranks {
		result.MemoryBytes = max(result.MemoryBytes, x.Need)
		if len(stats) > 0 {
			most = max(most, x.Stats[0].BytesSent)
		}
	}
	if len(stats) > 0 {
		result.TimeS = newQuantiles(slowest)
		result.Breakdown = newBreakdown(ranks)
		addOverlap(&result.Result, ranks)
		rate := passFLOPs(s, pairs, p) / float64(w.Size()) / result.TimeS.Median
		result.TFLOPSPerRank = rate / 1e12
		tokens := a.batch * a.tokens
		result.TokensPerS, result.LinkGBPerS = float64(tokens)/result.TimeS.Median, float64(most)/result.TimeS.Median/1e9
		result.EnergyJPerToken = perToken(ranks, len(stats)*tokens)
		if r.peak > 0 {
			fraction := rate / r.peak
			result.PeakFraction = &fraction
		}
	}
	for _, e := range r.options.expectations {
		if why := e.misses(&result); why != "" {
			r.missed++
			w.log.Error().Msgf("%s, S %d, %s: %s", shape.Name, a.tokens, p, why)
		}
	}
	for _, p := range r.printers {
		if err := p.point(samples, result); err != nil {
			return err
		}
	}
	return nil
}

// predict adds the time of a pass on the machine of the flags, where they describe one.
func (a *attention) predict(result *report.Result, p ring.Pass) error {
	w, o := a.world, a.world.options
	if o.machine == "" {
		return nil
	}
	m, err := o.readMachine(usualGPU)
	if err != nil {
		return err
	}
	time := a.job.Predict(p, a.shape, m, o.nodesOf(w.Size(), w.nodes())).Time
	result.PredictedS = &time
	result.Machine = &report.Machine{TFLOPS: m.Flops / 1e12, LinkGBPerS: m.Link / 1e9, NodeLinkGBPerS: m.NodeLink / 1e9, StartS: m.Start}
	return nil
}

// end writes what is left to be written.
func (r *benchReport) end(ctx context.Context) error {
	return errors.Join(r.traced.end(ctx), r.print())
}

// print writes what printers have kept.
func (r *benchReport) print() (err error) {
	r.progress.end()
	for _, p := range r.printers {
		err = errors.Join(err, p.end())
	}
	return err
}
