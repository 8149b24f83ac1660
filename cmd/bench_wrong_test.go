package cmd

import (
	"strings"
	"testing"
	"unsafe"

	"ringattn/ring"
)

// faulty is a backend that makes one mistake.
type faulty struct {
	ring.Backend
	skipForward, skipAdd int  // which call does nothing, counted from 1; 0: none
	wrongLSE             bool // of one query and head, after each kernel
	forwards, adds       int
}

func (f *faulty) Forward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, first bool) error {
	if f.forwards++; f.forwards == f.skipForward {
		return nil
	}
	if err := f.Backend.Forward(s, t, c, rows, first); err != nil || !f.wrongLSE {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	*(*float32)(t.LSE) += 1
	return nil
}

func (f *faulty) Add(dst, src unsafe.Pointer, n int64) error {
	if f.adds++; f.adds == f.skipAdd {
		return nil
	}
	return f.Backend.Add(dst, src, n)
}

// A kernel that skips a block of keys, one lse that is wrong, or one message of gradients
// that is lost, on one rank: bench sees it, and has no figure for it.
func TestBenchSeesMistakes(t *testing.T) {
	right := wrapBackend
	defer func() { wrapBackend = right }()
	for name, f := range map[string]*faulty{
		"no mistake": {}, "a block is skipped": {skipForward: 2}, "one lse": {wrongLSE: true}, "a message of gradients is lost": {skipAdd: 1},
	} {
		wrapBackend = func(b ring.Backend, rank int) ring.Backend {
			if rank != 1 {
				return b
			}
			f.Backend = b
			return f
		}
		for _, format := range []string{"jsonl", "table"} {
			f.forwards, f.adds = 0, 0
			text, code, err := execute("bench", "--ranks", "3", "--seq", "90", "--heads", "2/1", "--repeats", "2", "--layout", "contiguous", "--schedule", "ring", "--mask", "full",
				"--threads", "1", "--output", format, "--log-level", "error")
			if f.forwards < 2 || f.adds < 1 {
				t.Fatalf("%s: the rank has no such step", name)
			}
			if wrong := name != "no mistake"; (code == exitWrong) != wrong || (code == exitOK) == wrong {
				t.Errorf("%s: exit %d (%v)\n%s", name, code, err, text)
				continue
			}
			if name == "no mistake" {
				continue
			}
			if format == "table" {
				rows := 0
				for line := range strings.Lines(text) {
					fields := strings.Fields(line)
					if fields[0] != "full" {
						continue
					}
					rows++
					if fields[10] != "-" || fields[len(fields)-1] == "0" {
						t.Errorf("%s: %s", name, line)
					}
				}
				if rows != 2 {
					t.Errorf("%s: %d rows\n%s", name, rows, text)
				}
				continue
			}
			_, _, samples, results := records(t, text)
			if len(samples) != 0 || len(results) != 2 {
				t.Errorf("%s: %d samples, %d results", name, len(samples), len(results))
			}
			for _, r := range results {
				if r.TimeS != nil || r.TFLOPSPerRank != 0 || r.Wrong == 0 {
					t.Errorf("%s: %+v", name, r)
				}
			}
		}
	}
}
