package cmd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"ringattn/kernels"
	"ringattn/mpi"
)

// version is the release; the Makefile sets it with -ldflags -X.
var version = "0.1.0-dev"

// commit is that of a release without a repository; the Makefile sets it.
var commit string

// revision is the commit that the binary was built from, with "+dirty" where
// the tree was changed.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	rev, dirty := cmp.Or(commit, "unknown"), ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return rev + dirty
}

func versionLine() string { return fmt.Sprintf("ringattn %s (%s)", version, revision()) }

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Version, revision, build, libraries",
		Long:  "version says what this binary is and what it was built with. It does not start MPI.",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			facts := []fact{
				{"version", version},
				{"revision", revision()},
				{"go", runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
				{"mpi", mpi.Version()},
				{"cpu kernels", cmp.Or(strings.Join(cpuKernels(), ", "), "none: built without cgo")},
				{"cuda", cudaText(kernels.LookCUDA())},
			}
			if asJSON {
				text := map[string]string{}
				for _, f := range facts {
					text[strings.ReplaceAll(f.Name, " ", "_")] = f.Value
				}
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(text)
			}
			for _, f := range facts {
				fmt.Fprintf(c.OutOrStdout(), "%-12s %s\n", f.Name, f.Value)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as a JSON object")
	return c
}

// cudaText says what CUDA there is in the binary and on the machine.
func cudaText(f kernels.CUDAFacts) string {
	if !kernels.CUDABuilt {
		return "not built in"
	}
	text := fmt.Sprintf("runtime %s, kernels %s", f.BuiltWith, f.Archive)
	if f.Devices == 0 {
		return fmt.Sprintf("%s; %v", text, f.Why)
	}
	return fmt.Sprintf("%s; driver for CUDA %s, %s", text, f.Driver, plural(f.Devices, "device"))
}

// newMan writes the man pages, which the Makefile installs.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the man pages into a folder",
		Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("man needs a folder to write to")
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return withCode(exitUsage, err)
			}
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Title: "RINGATTN", Section: "1", Source: versionLine()}, args[0])
		},
	}
}

// cpuKernels names the instruction sets that this CPU has kernels for, best first,
// without what only tests use.
func cpuKernels() []string {
	return slices.DeleteFunc(kernels.ISAs(), func(isa string) bool { return isa == "portable-bf16" })
}
