package cmd

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"

	"ringattn/report"
)

// benchPrinter shows a bench in some format: head once for each number of ranks, then each
// point when it is done: links, then shapes.
type benchPrinter interface {
	head(meta metaRecord, ranks []rankRecord) error
	link(x linkRecord) error
	point(samples []sampleRecord, result resultRecord) error
	end() error
}

// benchPrinters make the formats of --output.
var benchPrinters = map[string]func(w *world, repeats int) benchPrinter{
	"table": func(w *world, repeats int) benchPrinter { return &benchTable{world: w, repeats: repeats} },
	"jsonl": func(w *world, _ int) benchPrinter { return benchLines{w.out} },
	"csv":   func(w *world, _ int) benchPrinter { return &benchCSV{out: csv.NewWriter(w.out)} },
	"go":    func(w *world, _ int) benchPrinter { return benchGo{w.out} },
}

// benchTable is for people.
type benchTable struct {
	world   *world
	repeats int
	table   *tabwriter.Writer
	links   []report.Link
	results []resultRecord
}

func (t *benchTable) head(meta metaRecord, ranks []rankRecord) error {
	w := t.world
	if err := t.end(); err != nil {
		return err
	}
	of := plural(len(ranks), "rank")
	if len(ranks) < w.Size() {
		of = fmt.Sprintf("%d of %s", len(ranks), plural(w.Size(), "rank"))
	}
	fmt.Fprintf(w.out, "# %s, %s (%s)%s\n# transport %s\n", versionLine(), of, w.launch, w.placeText(len(ranks)), meta.Transport)
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
	fmt.Fprintf(w.out, "# time of the slowest rank, %s; FLOPs 4 x heads x head_dim x visible pairs, backward 2.5 x that\n", plural(t.repeats, "repeat"))
	t.table = tabwriter.NewWriter(w.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t.table, "mask\tS\tB\theads\tD\tdtype\tlayout\tschedule\tranks\tpass\tmin ms\tmedian\tp95\tmax\t%skernel\texposed\t%%overlap\tGFLOP/s/rank\t%%peak\ttokens/s\tmJ/token\tsent\tGB/s/link\tmemory\t#wrong\t\n", t.predicted("pred ms"))
	return nil
}

// predicted is the column of predicted times: none without --machine.
func (t *benchTable) predicted(text string) string {
	if t.world.options.machine == "" {
		return ""
	}
	return text + "\t"
}

func (t *benchTable) link(x linkRecord) error {
	t.links = append(t.links, x.Link)
	return nil
}

func (t *benchTable) point(_ []sampleRecord, x resultRecord) error {
	t.results = append(t.results, x)
	fmt.Fprintf(t.table, "%s\t%d\t%d\t%d/%d\t%d\t%s\t%s\t%s\t%d\t%s\t",
		x.Mask, x.Seq, x.Batch, x.Heads, x.KVHeads, x.HeadDim, x.DType, x.Layout, x.Exchange(), x.Ranks, x.Pass)
	if x.TimeS == nil {
		fmt.Fprintf(t.table, "-\t-\t-\t-\t%s-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t%d\t\n", t.predicted("-"), x.Wrong)
		return nil
	}
	percent := func(x *float64) string {
		if x == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f", 100**x)
	}
	energy := "-"
	if x.EnergyJPerToken != nil {
		energy = fmt.Sprintf("%.3g", *x.EnergyJPerToken*1e3)
	}
	predicted := ""
	if x.PredictedS != nil {
		predicted = t.predicted(fmt.Sprintf("%.2f", *x.PredictedS*1e3))
	}
	s, peak := x.TimeS, percent(x.PeakFraction)
	fmt.Fprintf(t.table, "%.2f\t%.2f\t%.2f\t%.2f\t%s%.2f\t%.2f\t%s\t%.2f\t%s\t%.0f\t%s\t%s\t%.3f\t%s\t%d\t\n", s.Min*1e3, s.Median*1e3, s.P95*1e3, s.Max*1e3,
		predicted, x.KernelS*1e3, x.ExposedS*1e3, percent(x.Overlap), x.TFLOPSPerRank*1e3, peak, x.TokensPerS, energy,
		report.FormatBytes(x.BytesSent), x.LinkGBPerS, report.FormatBytes(x.MemoryBytes), x.Wrong)
	return nil
}

func (t *benchTable) end() error {
	if t.table == nil {
		return nil
	}
	table, links, results := t.table, t.links, t.results
	t.table, t.links, t.results = nil, nil, nil
	if len(links) > 0 {
		if err := report.LinkText(t.world.out, links); err != nil {
			return err
		}
	}
	if len(results) == 0 {
		return nil // of a run of links alone, or that ended before its first point
	}
	if len(links) > 0 {
		fmt.Fprintln(t.world.out)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return printBreakdowns(t.world.out, results)
}

// benchLines is JSON Lines, as docs/bench.schema.json describes them.
type benchLines struct{ out io.Writer }

func (l benchLines) head(meta metaRecord, ranks []rankRecord) error {
	if err := l.print(meta); err != nil {
		return err
	}
	for _, x := range ranks {
		if err := l.print(x); err != nil {
			return err
		}
	}
	return nil
}

func (l benchLines) point(samples []sampleRecord, result resultRecord) error {
	for _, x := range samples {
		if err := l.print(x); err != nil {
			return err
		}
	}
	return l.print(result)
}

func (l benchLines) link(x linkRecord) error { return l.print(x) }
func (l benchLines) end() error              { return nil }
func (l benchLines) print(record any) error  { return json.NewEncoder(l.out).Encode(record) }

// benchCSV is a line a result under one of names; times in seconds. Links have none.
type benchCSV struct {
	out   *csv.Writer
	begun bool
}

func (c *benchCSV) head(metaRecord, []rankRecord) error {
	if c.begun {
		return nil
	}
	c.begun = true
	return c.write(append([]string{
		"seq", "batch", "heads", "kv_heads", "head_dim", "dtype", "mask", "pass", "layout", "schedule", "ranks", "backend", "transport",
		"min_s", "median_s", "p95_s", "max_s", "kernel_s", "exposed_s", "tflops_per_rank", "peak_fraction", "bytes_sent", "memory_bytes", "wrong",
	}, append(csvBreakdown(), "ulysses", "wire_gradients", "tokens_per_s", "link_gb_per_s", "energy_j_per_token", "predicted_s")...)...)
}

func (c *benchCSV) link(linkRecord) error { return nil }

func (c *benchCSV) point(_ []sampleRecord, x resultRecord) error {
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	fields := []string{
		strconv.Itoa(x.Seq), strconv.Itoa(x.Batch), strconv.Itoa(x.Heads), strconv.Itoa(x.KVHeads), strconv.Itoa(x.HeadDim), x.DType, x.Mask, x.Pass,
		x.Layout, x.Schedule, strconv.Itoa(x.Ranks), x.Backend, x.Transport,
	}
	times := make([]string, 8) // empty: of a wrong result, or not known
	if s := x.TimeS; s != nil {
		times = []string{number(s.Min), number(s.Median), number(s.P95), number(s.Max), number(x.KernelS), number(x.ExposedS), number(x.TFLOPSPerRank), ""}
		if x.PeakFraction != nil {
			times[7] = number(*x.PeakFraction)
		}
	}
	fields = append(append(fields, times...), strconv.FormatInt(x.BytesSent, 10), strconv.FormatInt(x.MemoryBytes, 10), strconv.Itoa(x.Wrong))
	fields = append(fields, csvBreakdownOf(&x.Result, number)...)
	rates := make([]string, 4)
	if x.TimeS != nil {
		rates[0], rates[1] = number(x.TokensPerS), number(x.LinkGBPerS)
	}
	if x.EnergyJPerToken != nil {
		rates[2] = number(*x.EnergyJPerToken)
	}
	if x.PredictedS != nil {
		rates[3] = number(*x.PredictedS)
	}
	return c.write(append(append(fields, strconv.Itoa(x.Ulysses), x.Wire), rates...)...)
}

func (c *benchCSV) end() error { return nil }

func (c *benchCSV) write(fields ...string) error {
	err := c.out.Write(fields)
	c.out.Flush()
	if err != nil {
		return err
	}
	return c.out.Error()
}

// benchGo is the format of Go benchmarks, a line a repeat, for benchstat. A wrong result
// has no line.
type benchGo struct{ out io.Writer }

func (g benchGo) head(meta metaRecord, ranks []rankRecord) error {
	_, err := fmt.Fprintf(g.out, "goos: %s\ngoarch: %s\npkg: ringattn\nversion: %s %s\nbackend: %s\ntransport: %s\n", runtime.GOOS, runtime.GOARCH,
		meta.Version, meta.Revision, ranks[0].Backend, meta.Transport)
	return err
}

func (g benchGo) link(x linkRecord) error {
	for _, s := range x.RepeatS {
		if _, err := fmt.Fprintf(g.out, "BenchmarkLink/bytes=%d/ranks=%d/transport=%s 1 %.0f ns/op %.4g GB/s\n", x.Bytes, x.Ranks, x.Transport, s*1e9, x.GBPerSOf(s)); err != nil {
			return err
		}
	}
	return nil
}

func (g benchGo) point(samples []sampleRecord, x resultRecord) error {
	if x.TimeS == nil {
		return nil
	}
	name := fmt.Sprintf("BenchmarkAttention/mask=%s/seq=%d/batch=%d/heads=%d:%d/dim=%d/dtype=%s/layout=%s/schedule=%s/ranks=%d/pass=%s",
		strings.ReplaceAll(x.Mask, "/", ":"), x.Seq, x.Batch, x.Heads, x.KVHeads, x.HeadDim, x.DType, x.Layout, x.Schedule, x.Ranks, x.Pass)
	if x.Ulysses > 1 {
		name += fmt.Sprintf("/ulysses=%d", x.Ulysses)
	}
	if x.Wire == "bf16" {
		name += "/wire=" + x.Wire
	}
	name = strings.ReplaceAll(name, " ", "_")
	for _, s := range samples {
		slowest := s.slowest()
		if _, err := fmt.Fprintf(g.out, "%s 1 %.0f ns/op %.3f GFLOP/s/rank\n", name, slowest*1e9, x.TFLOPSPerRank*1e3*x.TimeS.Median/slowest); err != nil {
			return err
		}
	}
	return nil
}

func (g benchGo) end() error { return nil }
