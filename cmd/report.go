package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"ringattn/report"
)

func newReport() *cobra.Command {
	var html string
	c := &cobra.Command{
		Use:   "report FILE... [--html OUT]",
		Short: "Tables of scaling, and a page with charts, from results of bench",
		Long: `report reads what bench --output jsonl wrote, one file or several (those of a job
array, say), and prints all results, then what can be compared of them: strong
scaling (the same problem on more ranks), weak scaling (as many tokens a rank)
and sequence scaling (longer sequences on the same ranks). Each table names its
baseline. A row whose build, GPU, backend, transport or binding is another than
the baseline's is not compared, and says why. Of a wrong result no figure is
shown, and the exit code is 1.

--html writes the same with charts as one page that needs no network and no script.
A point that is there twice with different results is refused. A line that was cut
off at the end of a run is left out, with a note.`,
		Example: `  ringattn bench --ranks 2 --threads 1 --seq 4096,8192 --output jsonl > two.jsonl
  ringattn report one.jsonl two.jsonl --html scaling.html`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("report needs a FILE of ringattn bench --output jsonl")
			}
			return nil
		},
		RunE: func(c *cobra.Command, paths []string) error {
			study, err := readStudy(paths)
			if err != nil {
				return withCode(exitUsage, err)
			}
			if c.Flags().Changed("html") {
				if err := writePage(html, paths, study); err != nil {
					return err
				}
			}
			if err := study.Text(c.OutOrStdout()); err != nil {
				return err
			}
			if n := study.Wrong(); n > 0 {
				return &coded{exitWrong, fmt.Errorf("%s of %d wrong", plural(n, "result"), len(study.Points))}
			}
			return nil
		},
	}
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

// writePage writes the page beside path, then renames it: it appears complete or not at all.
func writePage(path string, inputs []string, study *report.Study) error {
	if info, err := os.Stat(path); err == nil {
		if !info.Mode().IsRegular() {
			return usageError("--html: %s is no regular file", path)
		}
		for _, in := range inputs {
			if of, err := os.Stat(in); err == nil && os.SameFile(info, of) {
				return usageError("--html: %s is one of the files that are read", path)
			}
		}
	}
	var page bytes.Buffer
	if err := study.HTML(&page); err != nil {
		return withCode(exitInternal, err)
	}
	aside := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.tmp", filepath.Base(path), os.Getpid()))
	f, err := os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		var at *os.PathError
		if errors.As(err, &at) {
			err = at.Err
		}
		return usageError("--html: %s: %v", path, err)
	}
	_, err = f.Write(page.Bytes())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(aside, path)
	}
	if err != nil {
		return fmt.Errorf("--html: %w", errors.Join(err, os.Remove(aside)))
	}
	return nil
}
