package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"ringattn/ring"
	"ringattn/shard"
)

// attention is a problem on one rank: its plan, its tensors, its backend.
type attention struct {
	*problem
	world   *world
	job     *ring.Job
	need    int64 // bytes, by ring.Job.Memory
	source  source
	backend ring.Backend
	exec    *ring.Exec
	x       ring.Tensors
	memory  []unsafe.Pointer
}

// newAttention plans the problem, checks that every node has the memory,
// allocates and loads the rank's tensors.
func newAttention(ctx context.Context, w *world, p *problem) (*attention, error) {
	job, err := w.options.newJob(p.tokens, w.Size(), p.mask)
	if err != nil {
		return nil, err
	}
	a := &attention{problem: p, world: w, job: job}
	// Loading and storing take four bytes a position on top.
	a.need = job.Memory(w.Rank(), p.shape, p.backward) + 4*int64(p.batch)*int64(job.Batch.Layout.RankTokens(w.Rank()))
	if err := a.fits(ctx); err != nil {
		return nil, err
	}
	if a.backend, err = w.openBackend(); err != nil {
		return nil, err
	}
	if err := a.load(); err != nil {
		a.close()
		return nil, err
	}
	if a.exec, err = ring.Bind(job, w.Comm, a.backend, p.shape, &a.x, p.backward); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// fits refuses a problem that a node's free memory will not hold, before any of
// it is allocated.
func (a *attention) fits(ctx context.Context) error {
	w := a.world
	mine, err := json.Marshal(a.need)
	if err != nil {
		return err
	}
	all, err := w.AllGather(ctx, mine)
	if err != nil {
		return err
	}
	var together int64
	ranks := 0
	for r, text := range all {
		var need int64
		if err := json.Unmarshal(text, &need); err != nil {
			return err
		}
		if w.hosts[r].Host == w.host.Host {
			together += need
			ranks++
		}
	}
	free := w.host.FreeBytes
	if text := os.Getenv("RINGATTN_TEST_FREE_BYTES"); text != "" {
		if free, err = strconv.ParseInt(text, 10, 64); err != nil {
			return environmentError("RINGATTN_TEST_FREE_BYTES is %q, want a number", text)
		}
	}
	if free > 0 && together > free {
		return environmentError("not enough memory: rank %d needs %s, %s of node %s together %s, free are %s; use more nodes or fewer tokens",
			w.Rank(), bytesText(a.need), plural(ranks, "rank"), w.host.Host, bytesText(together), bytesText(free))
	}
	return nil
}

// load allocates the rank's tensors and fills in those that are given.
func (a *attention) load() error {
	w := a.world
	s := a.shape
	a.x.Tokens = a.job.Batch.Order(w.Rank()).Tokens
	tokens := int64(a.x.Tokens)
	heads, dims := int64(s.Heads), int64(s.Heads)*int64(s.HeadDim)
	type tensor struct {
		into  *unsafe.Pointer
		bytes int64 // of a token
	}
	tensors := []tensor{
		{&a.x.Q, dims * s.DType.Size()},
		{&a.x.KV, s.KVTokenBytes()},
		{&a.x.Out, 4 * dims},
		{&a.x.LSE, 4 * heads},
	}
	if a.backward {
		tensors = append(tensors, tensor{&a.x.DOut, dims * s.DType.Size()}, tensor{&a.x.Delta, 4 * heads},
			tensor{&a.x.DQ, 4 * dims}, tensor{&a.x.DKV, s.GradTokenBytes()})
	}
	for _, t := range tensors {
		p, err := a.backend.Alloc(tokens * t.bytes)
		if err != nil {
			return fmt.Errorf("rank %d: %w", w.Rank(), err)
		}
		*t.into = p
		a.memory = append(a.memory, p)
	}
	a.source = a.open(a.job.Batch, w.Rank())
	for _, name := range a.inputs() {
		memory, place := a.tensor(name)
		if err := a.source.load(name, memory, place); err != nil {
			return withInput(err)
		}
	}
	return nil
}

// inputs names the tensors that are given, outputs those that are computed.
func (a *attention) inputs() []string {
	if a.backward {
		return []string{"q", "k", "v", "dout"}
	}
	return []string{"q", "k", "v"}
}

func (a *attention) outputs() []string {
	if a.backward {
		return []string{"out", "lse", "dq", "dk", "dv"}
	}
	return []string{"out", "lse"}
}

// tensor says where a tensor stands: inputs in the problem's dtype, outputs in
// float32.
func (a *attention) tensor(name string) (memory []byte, place shard.Place) {
	s := a.shape
	given, sums := s.DType.Size(), int64(4)
	q, kv := int64(s.Heads)*int64(s.HeadDim), int64(s.KVHeads)*int64(s.HeadDim)
	var p unsafe.Pointer
	switch name {
	case "q":
		p, place = a.x.Q, shard.Place{Stride: q * given}
	case "k":
		p, place = a.x.KV, shard.Place{Stride: 2 * kv * given}
	case "v":
		p, place = a.x.KV, shard.Place{Stride: 2 * kv * given, Offset: kv * given}
	case "dout":
		p, place = a.x.DOut, shard.Place{Stride: q * given}
	case "out":
		p, place = a.x.Out, shard.Place{Stride: q * sums}
	case "lse":
		p, place = a.x.LSE, shard.Place{Stride: int64(s.Heads) * sums}
	case "dq":
		p, place = a.x.DQ, shard.Place{Stride: q * sums}
	case "dk":
		p, place = a.x.DKV, shard.Place{Stride: 2 * kv * sums}
	case "dv":
		p, place = a.x.DKV, shard.Place{Stride: 2 * kv * sums, Offset: kv * sums}
	default:
		panic("no tensor " + name)
	}
	return shard.Bytes(p, int64(a.x.Tokens)*place.Stride), place
}

// passes runs forward, and backward if the problem has it, each from a common
// start.
func (a *attention) passes(ctx context.Context) ([]ring.Stats, error) {
	stats := []ring.Stats{}
	for _, p := range a.passList() {
		if err := a.world.Barrier(ctx); err != nil {
			return nil, err
		}
		s, err := a.exec.Run(ctx, p)
		if err != nil {
			return nil, err
		}
		stats = append(stats, s)
	}
	return stats, nil
}

func (a *attention) passList() []ring.Pass {
	if a.backward {
		return []ring.Pass{ring.Forward, ring.Backward}
	}
	return []ring.Pass{ring.Forward}
}

// close gives everything back. It is not called after a failed run: transfers
// may still be under way.
func (a *attention) close() {
	if a.exec != nil {
		a.exec.Close()
	}
	for _, p := range a.memory {
		a.backend.Free(p)
	}
	if err := a.backend.Close(); err != nil {
		a.world.log.Error().Err(err).Msg("the backend does not close")
	}
}

// bytesText is a size for people, in binary units.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for value >= unit && prefix < 4 {
		value, prefix = value/unit, prefix+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[prefix])
}
