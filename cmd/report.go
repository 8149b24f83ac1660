package cmd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"ringattn/report"
	"ringattn/trace"
)

func newReport() *cobra.Command {
	var html string
	var traces []string
	c := &cobra.Command{
		Use:   "report [FILE...] [--trace FILE] [--html OUT]",
		Short: "Tables of scaling, and a page with charts, from results of bench",
		Long: `report reads what bench --output jsonl wrote, one file or several (those of a job
array, say), and prints all results, then what can be compared of them: strong
scaling (the same problem on more ranks), weak scaling (as many tokens a rank)
and sequence scaling (longer sequences on the same ranks). Each table names its
baseline. A row whose build, GPU, backend, transport or binding is another than
the baseline's is not compared, and says why. Of a wrong result no figure is
shown, and the exit code is 1. Links of bench --links have a table of their own: GB/s
are 10^9 bytes a second out of the slowest rank, and as many in. Of records of bench
--machine, predicted is the time in ms that the plan takes on that machine, and
x predicted the median of the measured times over it.

--trace reads a file of run --trace or bench --trace as well, or alone: of each rank and
pass the times, and how much of its messages kernels hid; in the page a timeline.

--html writes the same with charts as one page that needs no network and no script.
A result that is there twice with different figures is refused; of links all are
shown, in the order in which they were given. A line that was cut
off at the end of a run is left out, with a note.`,
		Example: `  ringattn bench --ranks 2 --threads 1 --seq 4096,8192 --output jsonl > two.jsonl
  ringattn report one.jsonl two.jsonl --html scaling.html
  ringattn report --trace trace.json --html timeline.html`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && len(traces) == 0 {
				return usageError("report needs a FILE of ringattn bench --output jsonl, or --trace FILE")
			}
			return nil
		},
		RunE: func(c *cobra.Command, paths []string) error {
			if html != "" {
				if err := tryPage(html, slices.Concat(paths, traces)); err != nil {
					return err
				}
			}
			study, err := readStudy(paths)
			for i := 0; err == nil && i < len(traces); i++ {
				err = addTrace(study, traces[i])
			}
			if err != nil {
				return withCode(exitUsage, err)
			}
			if html != "" {
				if err := writePage(html, study); err != nil {
					return err
				}
			}
			if err := study.Text(c.OutOrStdout()); err != nil {
				return err
			}
			if n := study.Wrong(); n > 0 {
				return &coded{exitWrong, fmt.Errorf("%s of %d wrong", plural(n, "result"), len(study.Points)+len(study.Links))}
			}
			return nil
		},
	}
	c.Flags().StringArrayVar(&traces, "trace", nil, "a file of run --trace or bench --trace")
	c.Flags().StringVar(&html, "html", "", "write a page with charts to this file")
	return c
}

func readStudy(paths []string) (*report.Study, error) {
	var files []*report.File
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		file, err := report.Read(path, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return report.Merge(files...)
}

// addTrace reads a trace, which must be such that it can have been.
func addTrace(s *report.Study, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	t, err := trace.Read(path, f)
	if err == nil {
		err = t.Check()
	}
	if err != nil {
		return fmt.Errorf("--trace %s: %w", path, err)
	}
	s.Traces = append(s.Traces, t)
	return nil
}

// tryPage refuses a page that could not be written, or would take the place of an input.
func tryPage(path string, inputs []string) error {
	for _, in := range inputs {
		if same(in, path) {
			return usageError("--html: %s is one of the files that are read", path)
		}
	}
	return tryAside("--html", path)
}

// writePage writes the page beside path, then renames it: it appears complete or not at all.
func writePage(path string, study *report.Study) error {
	var page bytes.Buffer
	if err := study.HTML(&page); err != nil {
		return withCode(exitInternal, err)
	}
	return writeAside("--html", path, func(out io.Writer) error {
		_, err := out.Write(page.Bytes())
		return err
	})
}
