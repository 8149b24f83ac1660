package cmd

import (
	"fmt"
	"strings"
	"time"

	"ringattn/gpu"
	"ringattn/kernels"
)

// gpuRecord is a rank's GPU as records have it: what CUDA says, and under nvml what
// NVIDIA's management library does, where it is there.
type gpuRecord struct {
	Device     int       `json:"device"` // as CUDA counts those that the rank may use
	Name       string    `json:"name"`
	UUID       string    `json:"uuid"`
	PCI        string    `json:"pci"`
	Capability string    `json:"capability"`
	NVML       gpu.Facts `json:"nvml"`
}

// readGPU describes the GPU that computes, nil where none does.
func (h *hardware) readGPU() *gpuRecord {
	if h.gpu == nil {
		return nil
	}
	return newGPURecord(*h.gpu)
}

// energyReading is what a rank's GPU has taken by a time, in J: 0 where it has none, or a
// lower rank reads it; nil: not known.
type energyReading struct {
	joules *float64
	at     time.Time
}

// An energy counter stands still for 20 to 100 ms and then moves by all that its GPU has
// taken meanwhile. So what it moves by in a time is wrong by up to what 100 ms take, and
// not told of times in which that is more than 5%.
const (
	energyUpdate = 100 * time.Millisecond
	energyLeast  = 20 * energyUpdate
)

func (a *attention) energy() energyReading {
	e := energyReading{joules: new(float64)}
	if w := a.world; a.gpu != nil && firstOfGPU(w.hosts, w.Rank()) {
		e.joules = gpu.ReadIndex(a.gpu.Index, a.gpu.UUID).EnergyJ
	}
	e.at = time.Now() // not before, since the first reading loads the library
	return e
}

// since is the energy from before to e; nil: not known, or the time was too short.
func (e energyReading) since(before energyReading) *float64 {
	if before.joules == nil || e.joules == nil || e.at.Sub(before.at) < energyLeast {
		return nil
	}
	joules := *e.joules - *before.joules
	return &joules
}

// perToken is the energy that ranks have taken for so many tokens; nil where one is not known,
// or no counter has moved, as of CPUs.
func perToken(ranks []benchRank, tokens int) *float64 {
	sum := 0.0
	for _, x := range ranks {
		if x.EnergyJ == nil {
			return nil
		}
		sum += *x.EnergyJ
	}
	if sum <= 0 {
		return nil
	}
	sum /= float64(tokens)
	return &sum
}

func newGPURecord(d kernels.CUDADevice) *gpuRecord {
	return &gpuRecord{d.Index, d.Name, d.UUID, d.PCI, d.Capability, gpu.ReadIndex(d.Index, d.UUID)}
}

// text is the record for people; sharers is how many ranks compute on the GPU.
func (r *gpuRecord) text(sharers int) string {
	parts := []string{r.Name, r.Capability, r.UUID, r.PCI}
	if x := r.NVML.Driver; x != nil {
		parts = append(parts, "driver "+*x)
	}
	if x := r.NVML.SMClockMHz; x != nil {
		parts = append(parts, fmt.Sprintf("%d MHz", *x))
	}
	if x := r.NVML.PowerW; x != nil {
		parts = append(parts, fmt.Sprintf("%.0f W", *x))
	}
	if why, ok := r.NVML.Unread["nvml"]; ok {
		parts = append(parts, "no more: "+why)
	}
	if sharers > 1 {
		parts = append(parts, "shared by "+plural(sharers, "rank"))
	}
	return strings.Join(parts, ", ")
}
