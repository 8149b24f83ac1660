package cmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"ringattn/ring"
)

// attention is a problem on one rank: its plan, its tensors, and what computes it.
type attention struct {
	*problem
	hardware
	job    *ring.Job
	exec   *ring.Exec
	x      ring.Tensors
	memory []*held
}

// newAttention plans the problem, checks that every node has the memory,
// allocates and loads the rank's tensors.
func newAttention(ctx context.Context, w *world, p *problem) (*attention, error) {
	job, err := w.newJob(ctx, p)
	if err != nil {
		return nil, err
	}
	a := &attention{problem: p, hardware: hardware{world: w}, job: job}
	if err := a.acquire(ctx, p.shape, a.wants); err != nil {
		return nil, err
	}
	if err := a.bind(); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// bind allocates and loads the tensors, and prepares the plans.
func (a *attention) bind() (err error) {
	if err := a.load(); err != nil {
		return err
	}
	a.exec, err = ring.Bind(a.job, a.links.Comm, a.backend, a.shape, &a.x, a.backward)
	return err
}

// load allocates the rank's tensors and fills in those that are given.
func (a *attention) load() error {
	w, s := a.world, a.shape
	a.x.Tokens = a.job.Batch.Order(w.Rank()).Tokens
	given, sums := s.DType.Size(), int64(4)
	heads, q, kv := int64(s.Heads), int64(s.Heads)*int64(s.HeadDim), int64(s.KVHeads)*int64(s.HeadDim)
	type tensor struct {
		into  *unsafe.Pointer
		width int64 // bytes of a token
		names []string
	}
	tensors := []tensor{
		{&a.x.Q, q * given, []string{"q"}},
		{&a.x.KV, kv * given, []string{"k", "v"}},
		{&a.x.Out, q * sums, []string{"out"}},
		{&a.x.LSE, heads * sums, []string{"lse"}},
	}
	if a.backward {
		tensors = append(tensors,
			tensor{&a.x.DOut, q * given, []string{"dout"}},
			tensor{&a.x.Delta, heads * sums, []string{"delta"}},
			tensor{&a.x.DQ, q * sums, []string{"dq"}},
			tensor{&a.x.DKV, kv * sums, []string{"dk", "dv"}})
	}
	for _, t := range tensors {
		h, err := newHeld(a.backend, a.x.Tokens, t.width, t.names...)
		if err != nil {
			return fmt.Errorf("rank %d: %s: %w", w.Rank(), strings.Join(t.names, ", "), err)
		}
		*t.into = h.p
		a.memory = append(a.memory, h)
	}
	source := a.open(a.job.Batch, w.Rank())
	for _, h := range a.memory {
		if slices.Contains(a.inputs(), h.names[0]) {
			if err := source.load(h); err != nil {
				return withInput(err)
			}
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

// tensor is the memory that a tensor stands in: inputs in the problem's dtype, outputs
// in float32.
func (a *attention) tensor(name string) *held {
	for _, h := range a.memory {
		if slices.Contains(h.names, name) {
			return h
		}
	}
	panic("no tensor " + name)
}

// together returns when all ranks have called it. It waits at the pace of what computes:
// after a sleep a rank would begin a pass later than others, whom it makes wait.
func (a *attention) together(ctx context.Context) error {
	c := a.world.Comm
	c.Pace = ring.PaceOf(a.backend)
	return c.Barrier(ctx)
}

// passes runs forward, and backward if the problem has it, each from a common
// start.
func (a *attention) passes(ctx context.Context) ([]ring.Stats, error) {
	stats := []ring.Stats{}
	for _, p := range a.passList() {
		if err := a.together(ctx); err != nil {
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
	for _, h := range a.memory {
		a.backend.Free(h.p)
	}
	a.hardware.close()
}
