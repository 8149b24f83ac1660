package cmd

import "slices"

// The records of bench --output jsonl. Times are in seconds.
type metaRecord struct {
	Type      string   `json:"type"` // meta
	Version   string   `json:"version"`
	Revision  string   `json:"revision"`
	MPI       string   `json:"mpi"`
	Launch    string   `json:"launch"`
	Transport string   `json:"transport"`
	Args      []string `json:"args"`
	Started   string   `json:"started"`
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

// resultKey says what was timed; samples and results have it.
type resultKey struct {
	Key       string `json:"key"` // of build, shape, pass, setting and world: what --resume goes by
	Seq       int    `json:"seq"`
	Batch     int    `json:"batch"`
	Heads     int    `json:"heads"`
	KVHeads   int    `json:"kv_heads"`
	HeadDim   int    `json:"head_dim"`
	DType     string `json:"dtype"`
	Mask      string `json:"mask"`
	Pass      string `json:"pass"`
	Layout    string `json:"layout"`
	Schedule  string `json:"schedule"`
	Ranks     int    `json:"ranks"`
	Backend   string `json:"backend"`
	Transport string `json:"transport"`
}

type sampleRecord struct {
	Type string `json:"type"` // sample
	resultKey
	Repeat int       `json:"repeat"`
	TimeS  []float64 `json:"time_s"` // by rank
}

func (s *sampleRecord) slowest() float64 { return slices.Max(s.TimeS) }

type resultRecord struct {
	Type string `json:"type"` // result
	resultKey
	TimeS         *quantiles `json:"time_s"` // of the slowest rank; null where wrong
	KernelS       float64    `json:"kernel_s"`
	ExposedS      float64    `json:"exposed_s"`
	TFLOPSPerRank float64    `json:"tflops_per_rank"`
	PeakFraction  *float64   `json:"peak_fraction"` // null where the peak is not known
	BytesSent     int64      `json:"bytes_sent"`    // by all ranks
	MemoryBytes   int64      `json:"memory_bytes"`  // of the fullest rank
	Wrong         int        `json:"wrong"`         // tensors beyond their bounds
}

type quantiles struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	P95    float64 `json:"p95"` // nearest rank
	Max    float64 `json:"max"`
}

func newQuantiles(samples []float64) *quantiles {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	return &quantiles{Min: s[0], Median: (s[(n-1)/2] + s[n/2]) / 2, P95: s[(95*n+99)/100-1], Max: s[n-1]}
}
