package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/ENVIRONMENT.md has every variable of the environment that the program reads or sets, and
// none that nothing reads.
func TestEnvironmentIsDocumented(t *testing.T) {
	page, err := os.ReadFile("docs/ENVIRONMENT.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			columns := 1
			if len(cells) == 6 { // the table of launchers
				columns = 3
			}
			for _, m := range regexp.MustCompile("`([A-Z0-9_]{4,})`").FindAllStringSubmatch(strings.Join(cells[1:1+columns], " "), -1) {
				documented[m[1]] = true
			}
		}
	}
	documented["UCX_ERROR_SIGNALS"] = strings.Contains(string(page), "`UCX_ERROR_SIGNALS`")

	// Read by name, or from a list of names of launchers and MPIs.
	byName := regexp.MustCompile(`(?i)(?:getenv|lookupenv|setenv)\("([A-Z0-9_]+)"`)
	listed := regexp.MustCompile(`"((?:RINGATTN|OMP|OMPI|PMI|PMIX|MPI|MPICH|MPIR|MV2|I_MPI|SLURM|PALS|FLUX|CUDA|UCX)_[A-Z0-9_]+)"`)
	var sources strings.Builder
	read := 0
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "build" || d.Name() == ".git" || d.Name() == "docs" || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir() || !slices.Contains([]string{".go", ".c", ".h", ".cu", ".cpp", ".sh", ".sbatch"}, filepath.Ext(path)) && d.Name() != "Makefile" && path != ".ci/run":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sources.Write(text)
		if strings.HasSuffix(path, "_test.go") {
			return nil
		}
		for _, r := range []*regexp.Regexp{byName, listed} {
			for _, m := range r.FindAllStringSubmatch(string(text), -1) {
				if strings.HasPrefix(m[1], "MPI_ERR_") { // names of errors
					continue
				}
				if read++; !documented[m[1]] {
					t.Errorf("%s: %s is not in docs/ENVIRONMENT.md", path, m[1])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 30 {
		t.Errorf("%d variables are read: the test does not find them", read)
	}
	// The Go runtime reads GOMAXPROCS.
	for name := range documented {
		if name != "GOMAXPROCS" && !regexp.MustCompile(`\b`+name+`\b`).MatchString(sources.String()) {
			t.Errorf("docs/ENVIRONMENT.md has %s, which nothing reads", name)
		}
	}
}
