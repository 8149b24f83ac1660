package cmd

import (
	"slices"

	"ringattn/report"
)

// The records of bench --output jsonl: those that report reads, with their type. Times are in
// seconds.
type metaRecord struct {
	Type string `json:"type"` // meta
	report.Meta
}

type rankRecord struct {
	Type       string  `json:"type"` // rank
	Rank       int     `json:"rank"`
	Host       string  `json:"host"`
	CPUs       string  `json:"cpus"`
	Threads    int     `json:"threads"`
	Backend    string  `json:"backend"`
	PeakTFLOPS float64 `json:"peak_tflops"` // multiply-adds alone, as the kernels make them of the dtype; 0: not known

	GPU       *gpuRecord `json:"gpu"`        // null: the CPU computes
	GPUShared bool       `json:"gpu_shared"` // with another rank
}

type sampleRecord struct {
	Type string `json:"type"` // sample
	report.Sample
}

func (s *sampleRecord) slowest() float64 { return slices.Max(s.TimeS) }

type resultRecord struct {
	Type string `json:"type"` // result
	report.Result
}

type linkRecord struct {
	Type string `json:"type"` // link
	report.Link
}

func newQuantiles(samples []float64) *report.Quantiles {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	return &report.Quantiles{Min: s[0], Median: (s[(n-1)/2] + s[n/2]) / 2, P95: s[(95*n+99)/100-1], Max: s[n-1]}
}
