package cmd

import (
	"context"
	"fmt"
	"slices"

	"ringattn/gpu"
	"ringattn/kernels"
	"ringattn/report"
	"ringattn/ring"
)

func (o *options) wantsGPU() bool { return o.backend == "auto" || o.backend == "cuda" }

// chooseGPU finds the GPU of the rank that is localRank-th of its node; there is none
// where it is to compute on the CPU. The GPU becomes the calling thread's, so that an MPI
// that starts on it afterwards knows which one to use.
func (w *world) chooseGPU(localRank int) error {
	if !w.options.wantsGPU() {
		return nil
	}
	d, err := selectGPU(localRank)
	switch {
	case err == nil:
		w.gpu = d
	case w.options.backend == "cuda":
		return environmentError("--backend cuda: %w", err)
	default:
		w.noGPU = err
	}
	return nil
}

func selectGPU(localRank int) (*kernels.CUDADevice, error) {
	facts := kernels.LookCUDA()
	if facts.Devices == 0 {
		return nil, facts.Why
	}
	d, err := kernels.SelectCUDA(gpu.Index(facts.Devices, localRank))
	if err != nil {
		return nil, err
	}
	return &d, nil
}

// logGPU tells what computes, where that needs telling.
func (w *world) logGPU() {
	switch {
	case w.gpu != nil:
		w.log.Debug().Str("gpu", w.gpu.UUID).Int("device", w.gpu.Index).Msg("computes on the GPU")
		if n := gpuSharers(w.hosts, w.Rank()); n > 1 && firstOfGPU(w.hosts, w.Rank()) {
			w.log.Warn().Msgf("%s compute on %s, %s: their kernels take turns, and times say nothing of as many GPUs", plural(n, "rank"), w.gpu.Name, w.gpu.UUID)
		}
	case w.noGPU == nil:
	case w.Rank() == 0 && kernels.CUDABuilt, w.Rank() > 0 && w.hosts[0].GPU != "":
		w.log.Info().Msgf("computes on the CPU: %v", w.noGPU)
	default:
		w.log.Debug().Msgf("computes on the CPU: %v", w.noGPU)
	}
}

// onGPU names the rank's GPU, behind other words.
func (w *world) onGPU() string {
	if w.gpu == nil {
		return ""
	}
	return fmt.Sprintf(", %s %s", w.gpu.Name, w.gpu.Capability)
}

// gpuSharers counts the ranks, this one included, that compute on a rank's GPU; 0 where
// it has none.
func gpuSharers(hosts []hostFacts, rank int) int {
	n := 0
	for _, h := range hosts {
		if h.GPU != "" && h.GPU == hosts[rank].GPU && h.Host == hosts[rank].Host {
			n++
		}
	}
	return n
}

// devices lists what computes rows of a head_dim on the ranks, whatever --backend asked for,
// in order.
func (w *world) devices(headDim int) (list []string) {
	for i := range w.hosts {
		h := &w.hosts[i]
		switch {
		case w.options.backend == "ref":
			list = append(list, "ref")
		case h.GPU != "" && headDim <= kernels.MaxCUDAHeadDim:
			list = append(list, "cuda "+h.GPUModel)
		default:
			list = append(list, "cpu "+h.CPUModel)
		}
	}
	slices.Sort(list)
	return list
}

// firstOfGPU says whether no lower rank has the same GPU.
func firstOfGPU(hosts []hostFacts, rank int) bool {
	return gpuSharers(hosts[:rank+1], rank) == 1
}

// gpuFor is the GPU that computes a shape on this rank, nil for the CPU.
func (w *world) gpuFor(s ring.Shape) (*kernels.CUDADevice, error) {
	if w.gpu == nil || s.HeadDim <= kernels.MaxCUDAHeadDim {
		return w.gpu, nil
	}
	why := fmt.Sprintf("head_dim is %d, the CUDA kernels take 1 to %d", s.HeadDim, kernels.MaxCUDAHeadDim)
	if w.options.backend == "cuda" {
		return nil, usageError("--backend cuda: %s; --backend cpu takes any", why)
	}
	if w.Rank() == 0 {
		w.log.Info().Msgf("computes on the CPU: %s", why)
	}
	return nil, nil
}

// wrapBackend lets a test put a backend that makes mistakes in the place of a rank's.
var wrapBackend = func(b ring.Backend, _ int) ring.Backend { return b }

// openBackend opens what computes on this rank: a GPU, or the CPU where there is none.
func (w *world) openBackend(gpu *kernels.CUDADevice) (ring.Backend, error) {
	var b ring.Backend
	var err error
	switch {
	case gpu != nil:
		b, err = kernels.CUDA(gpu.Index)
	case w.options.backend == "ref":
		b = kernels.Reference()
	default:
		if b, err = kernels.CPU(w.threads, testISA()); err == nil {
			b, err = standIn(b, w.Rank())
		}
	}
	if err != nil {
		return nil, withCode(exitEnvironment, err)
	}
	return delayed(wrapBackend(b, w.Rank()), w.Rank())
}

// hardware is what computes on one rank, and what messages of its memory travel by.
type hardware struct {
	world   *world
	gpu     *kernels.CUDADevice // that computes, nil: the CPU
	need    int64               // bytes of the memory that computes: the node's, or the GPU's
	backend ring.Backend
	links   *connection
}

// acquire opens what computes a shape once all have the memory: wants says how many bytes of
// the node's, and of that which computes. All ranks call it together.
func (h *hardware) acquire(ctx context.Context, s ring.Shape, wants func() (host, tensors int64)) (err error) {
	w := h.world
	var claims []claim
	if h.gpu, err = w.gpuFor(s); err == nil {
		claims, err = h.claims(wants())
	}
	if err = w.agreed(ctx, err); err != nil {
		return err
	}
	if err := w.fits(ctx, claims); err != nil {
		return err
	}
	h.need = claims[len(claims)-1].Bytes
	h.backend, err = w.openBackend(h.gpu)
	if err = w.agreed(ctx, err); err != nil {
		return err
	}
	if h.links, err = w.connect(ctx, h.backend); err != nil {
		h.close()
	}
	return err
}

// close gives back what acquire has opened.
func (h *hardware) close() {
	if h.links != nil {
		h.links.close()
	}
	if err := h.backend.Close(); err != nil {
		h.world.log.Error().Err(err).Msg("the backend does not close")
	}
}

// threads is how many threads of the CPU compute, and why so many.
func (h *hardware) threads() (n int, why string) {
	if h.gpu != nil {
		return 1, "the GPU computes"
	}
	return h.world.threads, h.world.why
}

// claim is what a rank wants of memory that it may share with others.
type claim struct {
	Of    string // whose memory
	Bytes int64
	Free  int64 // of it, as the rank sees it; 0: not known
}

// claims is what the rank wants of its node's memory, host bytes and where the CPU computes
// tensors more, and of its GPU's.
func (h *hardware) claims(host, tensors int64) ([]claim, error) {
	w, gpu := h.world, h.gpu
	node := claim{"node " + w.host.Host, host, w.host.FreeBytes}
	if free, set, err := testBytes("RINGATTN_TEST_FREE_BYTES"); err != nil {
		return nil, err
	} else if set {
		node.Free = free
	}
	if gpu == nil {
		node.Bytes += tensors
		return []claim{node}, nil
	}
	node.Bytes += bufferBytes
	if w.gpuFree == 0 {
		// All ranks have their contexts now, and none of them any tensors.
		now, err := kernels.SelectCUDA(gpu.Index)
		if err != nil {
			return nil, withCode(exitEnvironment, err)
		}
		w.gpuFree = now.FreeBytes
	}
	return []claim{node, {"GPU " + gpu.UUID + " of node " + w.host.Host, tensors, w.gpuFree}}, nil
}

// wants is how many bytes the rank's part takes of the node's memory, and of the memory that
// computes.
func (a *attention) wants() (host, tensors int64) {
	rank := a.world.Rank()
	// Loading and storing take four bytes a position on top.
	host = 4 * int64(a.batch) * int64(a.job.Batch.Layout.RankTokens(rank))
	tensors = a.job.Memory(rank, a.shape, a.backward)
	if a.gpu == nil {
		return host, tensors
	}
	chunk := 0
	for _, p := range a.passList() {
		for s := range a.job.Plan(rank, p) {
			if s.Op == ring.Attend {
				chunk = max(chunk, s.Range.Len())
			}
		}
	}
	shape, tokens := a.job.Kernels(rank, a.shape)
	return host, tensors + kernels.WorkspaceCUDA(a.gpu.Index, shape, int64(tokens), int64(chunk), a.backward)
}

// fits refuses what the free memory of a node or GPU will not hold, before any of it is
// allocated.
func (w *world) fits(ctx context.Context, mine []claim) error {
	claims, err := shareAll(ctx, w, mine)
	if err != nil {
		return err
	}
	return known(refuse(claims))
}

// refuse finds the first rank that, with those it shares a memory with, wants more of it than
// is free.
func refuse(claims [][]claim) error {
	for rank := range claims {
		if err := refuseRank(rank, claims); err != nil {
			return err
		}
	}
	return nil
}

func refuseRank(rank int, claims [][]claim) error {
	for _, mine := range claims[rank] {
		var together int64
		ranks := 0
		for _, theirs := range claims {
			for _, c := range theirs {
				if c.Of == mine.Of {
					together += c.Bytes
					ranks++
				}
			}
		}
		if mine.Free > 0 && together > mine.Free {
			return environmentError("not enough memory: rank %d needs %s, %s of %s together %s, free are %s; use more nodes or a smaller problem",
				rank, report.FormatBytes(mine.Bytes), plural(ranks, "rank"), mine.Of, report.FormatBytes(together), report.FormatBytes(mine.Free))
		}
	}
	return nil
}
