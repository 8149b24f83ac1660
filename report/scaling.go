package report

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Kind is what grows along a table.
type Kind int

// The kinds of scaling.
const (
	Strong   Kind = iota // more ranks on the same problem
	Weak                 // more ranks, with as many tokens each
	Sequence             // more tokens on the same ranks
)

// kinds are all of them, in the order in which they are shown.
var kinds = []Kind{Strong, Weak, Sequence}

func (k Kind) String() string { return [...]string{"strong", "weak", "sequence"}[k] }

// about says what a kind holds constant, and what its efficiency means.
func (k Kind) about() string {
	return [...]string{
		"The same problem on more ranks.",
		"As many tokens a rank on more ranks. Pairs a rank, which is the work of attention, are not constant then " +
			"(column work): a causal mask without a window or documents has twice as many a rank on twice the ranks. " +
			"So efficiency is of pairs a second, not of times.",
		"Longer sequences on the same ranks. Pairs grow faster than tokens (column work) where the mask lets them; " +
			"efficiency is of pairs a second.",
	}[k]
}

// x is what grows.
func (k Kind) x(p *Point) int {
	if k == Sequence {
		return p.Seq
	}
	return p.Ranks
}

// fixed names what the points of a table have in common, but for the pass.
func (k Kind) fixed(p *Point) string {
	switch k {
	case Strong:
		return fmt.Sprintf("%s, S %d, %s", p.Mask, p.Seq, p.config())
	case Weak:
		return fmt.Sprintf("%s, %s tokens of a row per rank, %s", p.Mask, formatTokens(p.Seq, p.Ranks), p.config())
	}
	return fmt.Sprintf("%s, %s, %s", p.Mask, plural(p.Ranks, "rank"), p.config())
}

// Table is points that differ in what grows along it, and nothing else that is asked for.
type Table struct {
	Kind  Kind
	Fixed string // what they have in common, but for the pass
	Pass  string

	config string // of its points, but for one that is lent
	Base   *Point // what rows are compared with; nil: with nothing
	Rows   []Row
}

// Row is a point compared with the baseline.
type Row struct {
	*Point
	Compared bool // the figures below are there
	// Work is pairs per rank, Speedup FLOP/s of all ranks, Efficiency FLOP/s per rank,
	// each over the baseline's.
	Work, Speedup, Efficiency float64
	Note                      string // why it is not compared, or what to know of it
}

// tables finds what can be compared among points in order.
func tables(points []*Point) []*Table {
	var all []*Table
	for _, k := range kinds {
		for _, group := range groups(points, func(p *Point) string { return k.fixed(p) + " " + p.Pass }) {
			if group = k.lend(group, points); k.spread(group) {
				all = append(all, k.tables(group)...)
			}
		}
	}
	return all
}

// lend adds to points that differ in ranks, where none is of one rank, those of one rank on the
// same problem, one of each environment: a layout and a schedule make no difference to them.
func (k Kind) lend(group, points []*Point) []*Point {
	if k == Sequence || slices.ContainsFunc(group, func(p *Point) bool { return p.Ranks == 1 }) {
		return group
	}
	to := group[0]
	var fit []*Point
	for _, p := range points {
		like := *p
		like.Layout, like.Schedule, like.Ulysses, like.Wire = to.Layout, to.Schedule, to.Ulysses, to.Wire
		if p.Ranks == 1 && p.Pass == to.Pass && k.fixed(&like) == k.fixed(to) {
			fit = append(fit, p)
		}
	}
	environment := func(p *Point) string { return fmt.Sprint(p.environment()) }
	var lent []*Point
	for _, same := range groups(group, environment) {
		one := slices.DeleteFunc(slices.Clone(fit), func(p *Point) bool { return environment(p) != environment(same[0]) })
		lent = append(lent, same[0].nearest(one)...)
	}
	if len(lent) == 0 {
		lent = to.nearest(fit)
	}
	return slices.Concat(group, lent)
}

// nearest is one of some points, none of none: a right one before others, then one of the same
// file, then the first.
func (x *Point) nearest(points []*Point) []*Point {
	if len(points) == 0 {
		return nil
	}
	rank := func(p *Point) (n int) {
		if p.Right() {
			n = 2
		}
		if p.Run.file() == x.Run.file() {
			n++
		}
		return n
	}
	return []*Point{slices.MaxFunc(points, func(a, b *Point) int { return cmp.Compare(rank(a), rank(b)) })}
}

// groups sorts points by a key, in the order of the first of each.
func groups(points []*Point, key func(*Point) string) [][]*Point {
	var all [][]*Point
	index := map[string]int{}
	for _, p := range points {
		i, ok := index[key(p)]
		if !ok {
			i = len(all)
			index[key(p)] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], p)
	}
	return all
}

// spread reports whether anything grows.
func (k Kind) spread(points []*Point) bool {
	return slices.ContainsFunc(points, func(p *Point) bool { return k.x(p) != k.x(points[0]) })
}

// tables makes a table of each environment in which something grows. Points of other
// environments go to the first, whose baseline they cannot be compared with.
func (k Kind) tables(group []*Point) []*Table {
	var main [][]*Point
	var rest []*Point
	for _, same := range groups(group, func(p *Point) string { return fmt.Sprint(p.environment()) }) {
		if k.spread(slices.DeleteFunc(slices.Clone(same), func(p *Point) bool { return !p.Right() })) {
			main = append(main, same)
		} else {
			rest = append(rest, same...)
		}
	}
	if len(main) == 0 {
		return []*Table{k.table(rest, rest)}
	}
	var all []*Table
	for i, same := range main {
		rows := same
		if i == 0 {
			rows = slices.Concat(same, rest)
		}
		all = append(all, k.table(rows, same))
	}
	return all
}

// table compares points with the least of those that may be a baseline.
func (k Kind) table(points, bases []*Point) *Table {
	t := &Table{Kind: k, Fixed: k.fixed(points[0]), Pass: points[0].Pass, config: points[0].config()}
	for _, p := range bases {
		if p.Right() && !p.Run.shares() && (t.Base == nil || k.x(p) < k.x(t.Base)) {
			t.Base = p
		}
	}
	for _, p := range points {
		t.Rows = append(t.Rows, t.compare(p))
	}
	slices.SortStableFunc(t.Rows, func(a, b Row) int { return cmp.Compare(k.x(a.Point), k.x(b.Point)) })
	return t
}

// samePairs is how far the pairs of one problem may be apart: they are worked out from
// rates, whose last bits are rounded.
const samePairs = 1e-9

func (t *Table) compare(p *Point) Row {
	r := Row{Point: p}
	base := t.Base
	switch {
	case !p.Right():
		return r
	case p.Run.shares():
		r.Note = "not compared: ranks share a GPU, and their kernels take turns"
		return r
	case base == nil:
		return r
	}
	if why := p.differences(base); why != "" {
		r.Note = "not compared: " + why
		return r
	}
	ranks, of := float64(p.Ranks), float64(base.Ranks)
	r.Work = p.PairsPerRank() / base.PairsPerRank()
	if t.Kind == Strong && math.Abs(r.Work*ranks/of-1) > samePairs {
		r.Note = fmt.Sprintf("not compared: %.0f pairs, the baseline's %.0f: not the same mask", p.PairsPerRank()*ranks, base.PairsPerRank()*of)
		return r
	}
	r.Compared = true
	r.Efficiency = p.TFLOPSPerRank / base.TFLOPSPerRank
	r.Speedup = r.Efficiency * ranks / of
	switch {
	case p == base:
		r.Note = "baseline"
	case r.Efficiency < overOne:
	case t.Kind.x(p) == t.Kind.x(base):
		r.Note = "over 1: the baseline is slow"
	case t.Kind == Strong:
		r.Note = "over 1: a rank is faster on its smaller part than the baseline, as where that fits a cache; or the baseline is slow"
	default:
		r.Note = "over 1: a rank is faster at its greater work than the baseline, whose ranks have too little to do; or the baseline is slow"
	}
	if k := t.Kind; p != base && k.x(p) == k.x(base) {
		r.Note = strings.TrimPrefix(r.Note+"; a second one at the baseline's "+map[bool]string{true: "length", false: "ranks"}[k == Sequence], "; ")
	}
	return r
}

// overOne is the least efficiency that is printed as more than 1.000.
const overOne = 1.0005

// title says what the rows of the table have in common.
func (t *Table) title() string {
	return t.Kind.String() + " scaling: " + t.Fixed + ", " + t.Pass
}

// baseline names what the rows are compared with.
func (t *Table) baseline() string {
	b := t.Base
	if b == nil {
		return "no baseline: no row has a right result of ranks that do not share a GPU"
	}
	least := ""
	if b.Ranks > 1 && t.Kind != Sequence {
		least = ", the fewest here"
	}
	var facts []string
	if b.config() != t.config {
		facts = append(facts, "run as "+b.Layout+", "+b.Exchange())
	}
	for _, f := range b.environment() {
		if f.name != "GPU" || f.value != "none" {
			facts = append(facts, f.name+" "+f.value)
		}
	}
	return fmt.Sprintf("baseline: %s%s, S %d, %s ms (%s)", plural(b.Ranks, "rank"), least, b.Seq, formatMS(b.TimeS.Median), strings.Join(facts, ", "))
}

var tableHead = []string{"ranks", "S", "time ms", "TFLOP/s/rank", "speedup", "efficiency", "work", "pairs/rank", "tokens/rank", "hosts", "note"}

// cells is the text of the rows, by column of tableHead.
func (t *Table) cells() [][]string {
	var all [][]string
	for _, r := range t.Rows {
		ms, rate, speedup, efficiency, work, pairs, note := wrongWord, "-", "-", "-", "-", "-", r.Note
		if r.Right() {
			ms, rate, pairs = formatMS(r.TimeS.Median), formatRate(r.TFLOPSPerRank), fmt.Sprintf("%.0f", r.PairsPerRank())
		} else {
			note = plural(r.Wrong, "tensor") + " beyond the bounds"
		}
		if r.Compared {
			speedup, efficiency, work = fmt.Sprintf("%.3f", r.Speedup), fmt.Sprintf("%.3f", r.Efficiency), fmt.Sprintf("%.3f", r.Work)
		}
		all = append(all, []string{
			strconv.Itoa(r.Ranks), strconv.Itoa(r.Seq), ms, rate, speedup, efficiency, work, pairs,
			formatTokens(r.Batch*r.Seq, r.Ranks), strconv.Itoa(r.Run.hosts()), note,
		})
	}
	return all
}

// columns are the cells below their heads, with predictions where there are any.
func (t *Table) columns() (head []string, rows [][]string) {
	var points []*Point
	for _, r := range t.Rows {
		points = append(points, r.Point)
	}
	return withPredicted(points, "TFLOP/s/rank", tableHead, t.cells())
}

// wrongWord stands where a wrong result would have its figures.
const wrongWord = "wrong"

// formatTokens is tokens over ranks, exactly: tables of weak scaling go by it.
func formatTokens(tokens, ranks int) string {
	return strings.TrimSuffix(big.NewRat(int64(tokens), int64(ranks)).String(), "/1")
}

func formatMS(seconds float64) string { return strconv.FormatFloat(seconds*1e3, 'f', 2, 64) }

// formatRate has four digits: CPUs have a few hundredths of a TFLOP/s, GPUs hundreds.
func formatRate(tflops float64) string { return strconv.FormatFloat(tflops, 'g', 4, 64) }
