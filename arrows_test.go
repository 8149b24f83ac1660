package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// arrows is the picture of the project: what each package may import besides the
// standard library. docs/DESIGN.md shows the same and says why. "*" stands for
// every package of the project, "C" for cgo. Test files are free.
var arrows = map[string]string{
	".":   "cmd",
	"cmd": "* zerolog cobra cobra/doc pflag yaml progressbar term",

	"segments":   "",
	"tensorfile": "",
	"half":       "",
	"trace":      "",

	"ring":  "segments",
	"shard": "segments tensorfile half",
	"cases": "segments half",

	"report": "trace plot plot/font plot/plotter plot/vg plot/vg/draw plot/vg/vgsvg",

	"inproc":  "ring",
	"mpi":     "ring C",
	"kernels": "ring ring/devicetest half C",
	"gpu":     "nvml",

	"segments/segmentstest": "segments rapid",
	"ring/transporttest":    "ring",
	"ring/backendtest":      "ring half",
	"ring/staged":           "ring",
	"ring/late":             "ring",
	"ring/devicetest":       "ring",
	"e2e":                   "",
}

// modules gives the outside packages in arrows their full names.
var modules = map[string]string{
	"zerolog":   "github.com/rs/zerolog",
	"cobra":     "github.com/spf13/cobra",
	"cobra/doc": "github.com/spf13/cobra/doc",
	"pflag":     "github.com/spf13/pflag",
	"yaml":      "go.yaml.in/yaml/v3",
	"term":      "golang.org/x/term",
	"rapid":     "pgregory.net/rapid",
	"nvml":      "github.com/NVIDIA/go-nvml/pkg/nvml",

	"progressbar": "github.com/schollz/progressbar/v3",

	"plot":          "gonum.org/v1/plot",
	"plot/font":     "gonum.org/v1/plot/font",
	"plot/plotter":  "gonum.org/v1/plot/plotter",
	"plot/vg":       "gonum.org/v1/plot/vg",
	"plot/vg/draw":  "gonum.org/v1/plot/vg/draw",
	"plot/vg/vgsvg": "gonum.org/v1/plot/vg/vgsvg",
}

const module = "ringattn"

// listed is what this test reads of `go list -json`.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
}

func TestImportArrows(t *testing.T) {
	// Each build has other files: all of them are held to the one picture.
	for _, build := range []struct{ cgo, tags string }{{"1", ""}, {"1", "mpi"}, {"1", "mpi cuda"}, {"1", "mpi standin"}, {"0", ""}} {
		t.Run(fmt.Sprintf("cgo=%s,tags=%s", build.cgo, build.tags), func(t *testing.T) {
			t.Parallel()
			seen := 0
			for _, p := range list(t, build.cgo, build.tags) {
				folder, ours := inside(p.ImportPath)
				if !ours {
					continue
				}
				seen++
				allowed, ok := arrows[folder]
				if !ok {
					t.Errorf("package %s is not in the picture: give it a line in arrows and in docs/DESIGN.md", p.ImportPath)
					continue
				}
				for _, path := range p.Imports {
					if !permits(allowed, path) {
						t.Errorf("%s imports %s; it may import the standard library and [%s]", p.ImportPath, path, allowed)
					}
				}
			}
			if seen != len(arrows) {
				t.Errorf("go list gave %d of the project's packages, the picture has %d", seen, len(arrows))
			}
		})
	}
}

// permits reports whether a package with these arrows may import path.
func permits(allowed, path string) bool {
	folder, ours := inside(path)
	for word := range strings.FieldsSeq(allowed) {
		switch {
		case word == "*" && ours, ours && word == folder, path == "C" && word == "C", !ours && modules[word] == path:
			return true
		}
	}
	return isStandard(path)
}

// inside gives the folder of a package of this module.
func inside(path string) (folder string, ours bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// isStandard goes by the rule that the first element of any other module's path
// has a dot.
func isStandard(path string) bool {
	if _, ours := inside(path); ours || path == "C" {
		return false
	}
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// list runs go list over the module. It only reads: no compiler and no MPI is
// needed for any of the builds.
func list(t *testing.T, cgo, tags string) []listed {
	t.Helper()
	c := exec.Command("go", "list", "-json=ImportPath,Standard,Imports", "-tags="+tags, "./...")
	c.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", c, err, stderr.String())
	}
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		packages = append(packages, p)
	}
}

// TestPictureIsInTheDesign holds the table of folders in docs/DESIGN.md to
// arrows, so that neither is changed without the other.
func TestPictureIsInTheDesign(t *testing.T) {
	text, err := os.ReadFile("docs/DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || !strings.HasPrefix(cells[1], " `") { // | `folder` | holds | may import |
			continue
		}
		folder := strings.TrimSuffix(strings.Trim(cells[1], " `"), "/")
		if folder == "main.go" {
			folder = "."
		}
		drawn[folder] = strings.TrimSpace(cells[3])
	}
	for folder, allowed := range arrows {
		cell, ok := drawn[folder]
		if !ok {
			t.Errorf("docs/DESIGN.md: the table of folders has no row for %s", folder)
			continue
		}
		want := strings.Fields(strings.ReplaceAll(allowed, "*", "all"))
		got := strings.FieldsFunc(strings.ReplaceAll(cell, "-", ""), func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("docs/DESIGN.md: %s may import %v by the table of folders, %v by arrows_test.go", folder, got, want)
		}
	}
}
