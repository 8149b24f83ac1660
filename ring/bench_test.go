package ring_test

import (
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"ringattn/ring"
	"ringattn/segments"
)

// The time and memory from a batch's masks to the plans of both passes of all
// ranks, for a million tokens on 64 ranks.
func BenchmarkPlans(b *testing.B) {
	const tokens, ranks = 1 << 20, 64
	r := rand.New(rand.NewPCG(1, 2))
	packed := func(length func() int) []segments.Row {
		ids := make([]int64, 0, tokens)
		for id := int64(1); len(ids) < tokens; id++ {
			for range min(length(), tokens-len(ids)) {
				ids = append(ids, id)
			}
		}
		return []segments.Row{segments.NewRow(tokens, ids, nil, nil)}
	}
	text, err := os.ReadFile("../testdata/lengths/source-files.txt")
	if err != nil {
		b.Fatal(err)
	}
	lines := strings.Fields(string(text))
	next := -1
	fromFile := func() int {
		next = (next + 1) % len(lines)
		n, err := strconv.Atoi(lines[next])
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	scattered := make([]int64, tokens)
	for i := range scattered {
		scattered[i] = 1 + r.Int64N(10000)
	}
	lognormal := func(median, sigma float64) func() int {
		return func() int { return max(1, int(math.Round(median*math.Exp(sigma*r.NormFloat64())))) }
	}
	for _, c := range []struct {
		name string
		rows []segments.Row
	}{
		{"one", []segments.Row{segments.SingleDocument(tokens)}},
		{"source-files", packed(fromFile)},
		{"lognormal:100:1", packed(lognormal(100, 1))},
		{"scattered=10000", []segments.Row{segments.NewRow(tokens, scattered, nil, nil)}},
	} {
		for _, layout := range []segments.Layout{segments.Contiguous(tokens, ranks), segments.Zigzag(tokens, ranks)} {
			b.Run(c.name+"/"+layout.Name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					batch, err := segments.NewBatch(layout, segments.Mask{Causal: true, Rows: c.rows})
					if err != nil {
						b.Fatal(err)
					}
					job, err := ring.NewJob(batch, "ring", nil)
					if err != nil {
						b.Fatal(err)
					}
					steps := 0
					for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
						for rank := range ranks {
							for range job.Plan(rank, p) {
								steps++
							}
						}
					}
					b.ReportMetric(float64(steps), "steps")
				}
				b.ReportMetric(float64(documents(c.rows)), "documents")
			})
		}
	}
}

func documents(rows []segments.Row) int {
	n := 0
	for _, r := range rows {
		for _, d := range r.Docs {
			n = max(n, d.Doc+1)
		}
	}
	return n
}
