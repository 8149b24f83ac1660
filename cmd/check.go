package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ringattn/cases"
	"ringattn/shard"
	"ringattn/tensorfile"
)

func newCheck() *cobra.Command {
	var o options
	var shape shapeFlags
	var golden, in string
	c := &cobra.Command{
		Use:   "check [--golden DIR | --in FILE | --seq N --mask PARTS]",
		Short: "Hold results against right answers; exit 1 if any is wrong",
		Long: `check runs both passes over all ranks and holds every number that a rank
computes against a right answer: files that hold one (--golden, --in), the result
of one rank where the file holds none (--in; rank 0 then computes it alone and
leaves it beside the input for a while), or closed forms, which are exact at any
length (--seq, or nothing for a list of them). Numbers are held as computed, in
float32, before run would round and write them; padding is not computed.

It prints a row a case. An error is ||got-want||/||want|| over a tensor; no row of
a tensor may be beyond four times the bound. A tensor that is beyond is marked !.`,
		Example: `  mpirun -n 4 ringattn check
  mpirun -n 4 ringattn check --golden testdata/golden
  ringattn check --ranks 8 --seq 100000 --heads 8/2 --head-dim 128 --dtype bf16 --mask window:1000`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if golden != "" && in != "" {
				return usageError("give --golden or --in, not both")
			}
			shapes := defaultShapes()
			var err error
			switch {
			case golden != "" || in != "":
				err = shape.absent(c.Flags(), "a file")
			case slices.ContainsFunc(shapeFlagNames, c.Flags().Changed):
				shapes, err = shape.list(c.Flags(), o.override)
			default:
				err = noOverrides(c.Flags(), "")
			}
			if err != nil {
				return err
			}
			return runWorld(c, &o, func(ctx context.Context, w *world) error {
				return w.checkAll(ctx, golden, in, shapes)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&golden, "golden", "", "folder of safetensors files that hold the right answers")
	f.StringVar(&in, "in", "", "one safetensors file, with or without the right answers")
	shape.add(f)
	o.addMask(f, "with --in: ")
	o.addLayout(f, "run N ranks inside this process, without MPI")
	o.addRuntime(f)
	return c
}

// defaultShapes are what check runs on without being told: each kind of mask,
// dtype and a few head dimensions, at lengths that divide by nothing.
func defaultShapes() []cases.Shape {
	var shapes []cases.Shape
	for _, c := range []struct {
		mask          string
		batch, tokens int
		heads, kv, d  int
		dtype         string
	}{
		{"causal", 1, 1009, 4, 2, 64, "f32"},
		{"full", 1, 503, 4, 4, 80, "f32"},
		{"window:100", 1, 1009, 4, 1, 64, "f32"},
		{"full,window:100", 1, 503, 2, 2, 64, "f32"},
		{"docs:lognormal:60:1", 2, 1009, 4, 2, 64, "f32"},
		{"window:64,docs:lognormal:100:1,images:5x90", 1, 1009, 2, 1, 256, "f32"},
		{"causal", 1, 509, 2, 1, 512, "f32"},
		{"causal", 1, 1009, 4, 2, 128, "bf16"},
		{"docs:lognormal:60:1", 1, 509, 4, 2, 128, "f16"},
	} {
		spec, err := cases.ParseMask(c.mask)
		if err != nil {
			panic(err)
		}
		mask, err := spec.Build(c.tokens, c.batch)
		if err != nil {
			panic(err)
		}
		shapes = append(shapes, cases.Shape{
			Name: spec.String(), Batch: c.batch, Tokens: c.tokens, Heads: c.heads, KVHeads: c.kv, HeadDim: c.d, DType: c.dtype, Mask: mask,
		})
	}
	return shapes
}

// checkAll runs the cases and fails if any of them does.
func (w *world) checkAll(ctx context.Context, golden, in string, shapes []cases.Shape) error {
	c := &checker{world: w, table: tabwriter.NewWriter(w.out, 0, 0, 2, ' ', tabwriter.AlignRight)}
	fmt.Fprintf(w.out, "%s, %s (%s)%s%s%s\n", versionLine(), plural(w.Size(), "rank"), w.launch, w.placeText(w.Size()), exchangeText(w.options.ulysses, w.options.wire), w.onGPU())
	fmt.Fprint(c.table, "case\tS\theads\tD\tdtype\tlayout\tschedule\tout\tlse\tdq\tdk\tdv\tresult\t\n")
	var err error
	switch {
	case golden != "":
		err = c.folder(ctx, golden)
	case in != "":
		err = c.file(ctx, in)
	default:
		err = c.closedForms(ctx, shapes)
	}
	if err != nil && c.cases == 0 {
		return err // no table without a row
	}
	if err := errors.Join(err, c.table.Flush()); err != nil {
		return err
	}
	for _, text := range c.wrong {
		fmt.Fprintln(w.out, text)
	}
	fmt.Fprintf(w.out, "%d passed, %d failed\n", c.cases-c.failed, c.failed)
	if c.failed > 0 {
		return errWrong
	}
	return nil
}

// checker collects the rows of a check.
type checker struct {
	world         *world
	table         *tabwriter.Writer
	cases, failed int
	wrong         []string // what is wrong, a line a tensor
}

func (c *checker) folder(ctx context.Context, dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(paths) == 0 {
		err = usageError("--golden %s: there is no safetensors file in it", dir)
	}
	if err := c.world.allOrNone(ctx, err); err != nil {
		return err
	}
	for _, path := range paths {
		if err := c.file(ctx, path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// file checks one file: against the answers in it, or else against one rank.
func (c *checker) file(ctx context.Context, path string) error {
	w := c.world
	in, err := w.openInput(ctx, path)
	if err != nil {
		return err
	}
	defer in.File.Close()
	p, err := w.openProblem(ctx, in)
	if err != nil {
		return err
	}
	name := filepath.Base(path)
	name = name[:len(name)-len(filepath.Ext(name))]
	if _, ok := in.File.Lookup("out"); ok {
		for _, m := range maskFlags {
			if _, given := w.options.override[m.key]; given {
				return known(usageError("%s holds the answers for what it says itself; --%s would ask for another problem", path, m.flag))
			}
		}
		if err := w.agreed(ctx, in.Answers()); err != nil {
			return err
		}
		return c.run(ctx, name, p, fileAnswer{in})
	}
	if _, err := w.newJob(ctx, p); err != nil { // before rank 0 computes it all
		return err
	}
	one, remove, err := w.oneRank(ctx, in)
	if err != nil {
		return err
	}
	defer remove()
	defer one.File.Close()
	return c.run(ctx, name+" (one rank)", p, fileAnswer{one})
}

// oneRank lets rank 0 compute the whole problem alone and gives every rank the
// file of its float32 results.
func (w *world) oneRank(ctx context.Context, in *shard.Input) (*shard.Input, func(), error) {
	patient := *w
	patient.Timeout = 0 // the others wait for as long as rank 0 computes
	// In bytes: a name need not be UTF-8.
	name, err := fromRoot(ctx, &patient, func() ([]byte, error) {
		dir, err := os.MkdirTemp(filepath.Dir(in.Path), ".ringattn-check-")
		if err != nil {
			return nil, withInput(err)
		}
		name := filepath.Join(dir, "one-rank.safetensors")
		alone := *w.options
		alone.shards, alone.expectRanks, alone.ulysses = "", 0, 1
		err = runInProcess(ctx, &alone, w.out, 1, "alone", func(ctx context.Context, one *world) error {
			return one.computeTo(ctx, in, name)
		})
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		return []byte(name), nil
	})
	if err != nil {
		return nil, nil, err
	}
	path := string(name)
	f, err := tensorfile.Open(path)
	// No rank goes on, and perhaps removes the file, before all have it open.
	if err := w.allOrNone(ctx, err); err != nil {
		return nil, nil, err
	}
	answers := *in
	answers.File, answers.Path = f, path
	return &answers, func() {
		if w.Rank() != 0 {
			return
		}
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			w.log.Warn().Err(err).Msg("a temporary folder stays")
		}
	}, nil
}

// computeTo runs a file's problem and writes the results in float32.
func (w *world) computeTo(ctx context.Context, in *shard.Input, path string) error {
	p, err := w.openProblem(ctx, in)
	if err != nil {
		return err
	}
	a, err := newAttention(ctx, w, p)
	if err != nil {
		return err
	}
	if _, err := a.passes(ctx); err != nil {
		return err
	}
	defer a.close()
	return a.write(ctx, in, path, true)
}

func (c *checker) closedForms(ctx context.Context, shapes []cases.Shape) error {
	if err := c.world.agreeShapes(ctx, shapes); err != nil {
		return err
	}
	for _, s := range shapes {
		for _, form := range []struct {
			name string
			make func(cases.Shape) (*cases.Problem, error)
		}{{"uniform", cases.Uniform}, {"classes", cases.Classes}} {
			closed, err := form.make(s)
			if err != nil {
				return known(withCode(exitUsage, err))
			}
			if err := c.run(ctx, s.Name+" "+form.name, valuedProblem(&closed.Shape, closed), closedAnswer{closed}); err != nil {
				return err
			}
		}
	}
	return nil
}

// run runs one case on all ranks and adds its row.
func (c *checker) run(ctx context.Context, name string, p *problem, want answer) error {
	w := c.world
	start := time.Now()
	a, err := newAttention(ctx, w, p)
	if err != nil {
		return err
	}
	if _, err := a.passes(ctx); err != nil {
		return err
	}
	defer a.close()
	errs := map[string]string{}
	failed, err := a.holdEach(ctx, want, func(tensor string, m *cases.Measure, wrong error) {
		errs[tensor] = fmt.Sprintf("%.1e", m.Tensor())
		if wrong != nil {
			errs[tensor] += " !"
		}
	})
	if err != nil {
		return err
	}
	c.cases++
	result := "pass"
	if len(failed) > 0 {
		result = "FAIL"
		c.failed++
	}
	for _, text := range failed {
		c.wrong = append(c.wrong, name+": "+text)
	}
	s := p.shape
	fmt.Fprintf(c.table, "%s\t%d\t%d/%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, p.tokens, s.Heads, s.KVHeads, s.HeadDim, s.DType,
		a.job.Batch.Layout.Name, a.job.Schedule, errs["out"], errs["lse"], errs["dq"], errs["dk"], errs["dv"], result)
	w.log.Debug().Str("case", name).Dur("took", time.Since(start)).Msg("checked")
	return nil
}
