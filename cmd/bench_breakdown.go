package cmd

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"ringattn/report"
	"ringattn/ring"
)

// newBreakdown says where the time of a pass, which is the slowest rank's, went on each rank:
// a rank that is done sooner waits for the slowest. docs/METRICS.md has the entries.
func newBreakdown(ranks []benchRank) *report.Breakdown {
	n := len(ranks[0].Stats)
	entries := make([][]float64, len(report.Entries)) // by rank, seconds, means over repeats
	for i := range entries {
		entries[i] = make([]float64, len(ranks))
	}
	for i := range n {
		var whole time.Duration
		for _, x := range ranks {
			whole = max(whole, x.Stats[i].Wall)
		}
		for r, x := range ranks {
			s := &x.Stats[i]
			for k, d := range []time.Duration{s.Kernel, s.Exposed - s.Staging, s.Staging, whole - s.Wall, s.Wall - s.Kernel - s.Exposed} {
				entries[k][r] += d.Seconds() / float64(n)
			}
		}
	}
	b := new(report.Breakdown)
	for k, to := range b.List() {
		*to = report.NewSpread(entries[k])
	}
	return b
}

// achieved is the part of the time with messages under way that kernels hid; nil where there
// was none.
func achieved(hidden, exposed time.Duration) *float64 {
	if hidden+exposed <= 0 {
		return nil
	}
	x := hidden.Seconds() / (hidden + exposed).Seconds()
	return &x
}

// addOverlap fills in what kernels hid, of a pass and of each round of it.
func addOverlap(result *report.Result, ranks []benchRank) {
	var all ring.RoundStats
	var rounds []ring.RoundStats
	for _, x := range ranks {
		for i, r := range x.Rounds {
			if i == len(rounds) {
				rounds = append(rounds, ring.RoundStats{})
			}
			rounds[i].Hidden += r.Hidden
			rounds[i].Exposed += r.Exposed
			all.Hidden += r.Hidden
			all.Exposed += r.Exposed
		}
	}
	result.Overlap = achieved(all.Hidden, all.Exposed)
	result.OverlapByRound = []*float64{}
	for _, r := range rounds {
		result.OverlapByRound = append(result.OverlapByRound, achieved(r.Hidden, r.Exposed))
	}
}

// addRounds adds up rounds over repeats.
func addRounds(sum, of []ring.RoundStats) []ring.RoundStats {
	for i, r := range of {
		if i == len(sum) {
			sum = append(sum, ring.RoundStats{})
		}
		s := &sum[i]
		s.Wall, s.Kernel, s.Exposed, s.Hidden = s.Wall+r.Wall, s.Kernel+r.Kernel, s.Exposed+r.Exposed, s.Hidden+r.Hidden
	}
	return sum
}

// printBreakdowns shows where the time went, five lines a point, as molecular dynamics codes do.
func printBreakdowns(out io.Writer, results []resultRecord) error {
	if !slices.ContainsFunc(results, func(x resultRecord) bool { return x.Breakdown != nil }) {
		return nil
	}
	fmt.Fprintf(out, "\n# where the time of a pass goes: ms, over ranks, means over repeats; sync: done, and waiting for the slowest rank\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "mask\tS\tpass\twhere\tmin\tmean\tmax\tmax/mean\t%%pass\t\n")
	for i := range results {
		x := &results[i]
		if x.Breakdown == nil {
			continue
		}
		whole := x.Breakdown.Whole()
		for k, s := range x.Breakdown.List() {
			where := fmt.Sprintf("%s\t%d\t%s", x.Mask, x.Seq, x.Pass)
			if k > 0 {
				where = "\t\t"
			}
			uneven := "-"
			if s.Imbalance != nil {
				uneven = fmt.Sprintf("%.3f", *s.Imbalance)
			}
			fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2f\t%.2f\t%s\t%.1f\t\n", where, report.Entries[k], s.Min*1e3, s.Mean*1e3, s.Max*1e3, uneven, 100*s.Mean/whole)
		}
	}
	return t.Flush()
}

// csvBreakdown names the columns of csvBreakdownOf.
func csvBreakdown() []string {
	columns := []string{"overlap"}
	for _, name := range report.Entries {
		name = strings.ReplaceAll(name, " ", "_")
		columns = append(columns, name+"_min_s", name+"_mean_s", name+"_max_s", name+"_imbalance")
	}
	return columns
}

// csvBreakdownOf are the fields of a result; empty: not known, or there is none.
func csvBreakdownOf(x *report.Result, number func(float64) string) []string {
	optional := func(x *float64) string {
		if x == nil {
			return ""
		}
		return number(*x)
	}
	fields := []string{optional(x.Overlap)}
	if x.Breakdown == nil {
		return append(fields, make([]string, 4*len(report.Entries))...)
	}
	for _, s := range x.Breakdown.List() {
		fields = append(fields, number(s.Min), number(s.Mean), number(s.Max), optional(s.Imbalance))
	}
	return fields
}
