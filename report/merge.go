package report

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"ringattn/trace"
)

// Study is the points of all files, in an order that does not depend on that of the files.
type Study struct {
	Runs   []*Run
	Points []*Point
	Links  []Link // in the order in which they were given
	Notes  []string
	Tables []*Table
	Traces []*trace.Trace // beside the points
}

// Merge puts files together. A point that is there twice counts once if its results are the
// same in all, as where a file is given twice, and is an error if they are not: which of
// two times is meant cannot be told.
func Merge(files ...*File) (*Study, error) {
	s := new(Study)
	seen := map[string]*Point{}
	twice := 0
	for _, f := range files {
		s.Runs = append(s.Runs, f.Runs...)
		s.Notes = append(s.Notes, f.Notes...)
		for _, x := range f.Links {
			if slices.ContainsFunc(s.Links, func(y Link) bool { return reflect.DeepEqual(x, y) }) {
				twice++
				continue
			}
			s.Links = append(s.Links, x)
		}
		for _, x := range f.Points {
			first, ok := seen[x.identity()]
			switch {
			case !ok:
				seen[x.identity()] = x
				s.Points = append(s.Points, x)
			case !reflect.DeepEqual(first.Result, x.Result) || !reflect.DeepEqual(first.Samples, x.Samples):
				return nil, fmt.Errorf("report: %s and %s are the same point (%s) with different results; give one of them",
					first.Where, x.Where, x.text())
			default:
				twice++
			}
		}
	}
	if twice > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("%s there more than once, with the same results: counted once", plural(twice, "point")))
	}
	slices.SortStableFunc(s.Points, func(a, b *Point) int {
		return cmp.Or(a.compare(b), strings.Compare(a.identity(), b.identity()))
	})
	s.Tables = tables(s.Points)
	return s, nil
}

// Wrong is the number of wrong results, those of links among them.
func (s *Study) Wrong() int {
	n := 0
	for _, x := range s.Links {
		if !x.Right() {
			n++
		}
	}
	for _, x := range s.Points {
		if !x.Right() {
			n++
		}
	}
	return n
}

// identity is equal of two results of one thing. bench's key alone is not enough: it has what
// was asked for, not what auto made of it, nor the MPI and the binding.
func (x *Point) identity() string {
	return fmt.Sprintf("%+v %v on %d hosts", x.Key, x.environment(), x.Run.hosts())
}

// compare orders points as people read them.
func (x *Point) compare(y *Point) int {
	return cmp.Or(
		strings.Compare(x.Mask, y.Mask), cmp.Compare(x.Batch, y.Batch), cmp.Compare(x.Heads, y.Heads),
		cmp.Compare(x.KVHeads, y.KVHeads), cmp.Compare(x.HeadDim, y.HeadDim), strings.Compare(x.DType, y.DType),
		strings.Compare(x.Layout, y.Layout), strings.Compare(x.Schedule, y.Schedule), cmp.Compare(x.Ulysses, y.Ulysses),
		strings.Compare(x.Wire, y.Wire), cmp.Compare(x.Seq, y.Seq),
		cmp.Compare(x.Ranks, y.Ranks), -strings.Compare(x.Pass, y.Pass), // forward first
	)
}
