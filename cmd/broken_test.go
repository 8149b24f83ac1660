package cmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"ringattn/cases"
	"ringattn/ring"
	"ringattn/segments"
)

// broken is a backend of host memory that computes one thing wrong, on one rank.
type broken struct {
	ring.Backend
	memory []unsafe.Pointer

	skipForward, skipBackward bool // one block of keys, of some rows of the first call that has it
	wrongLSE, tookLSE         bool // one row's lse, as the backward reads it
}

const brokenBlock = 32 // rows and keys

// skip is rows without a block of keys that the last rows see in full.
func (b *broken) skip(rows ring.Rows) (ring.Rows, bool) {
	if rows.N < brokenBlock {
		return rows, false
	}
	lo, hi := unsafe.Slice((*int32)(rows.Lo), rows.N), unsafe.Slice((*int32)(rows.Hi), rows.N)
	for t := rows.N - brokenBlock; t < rows.N; t++ {
		if hi[t]-lo[t] < 2*brokenBlock {
			return rows, false
		}
	}
	p, err := b.Alloc(int64(8 * rows.N))
	if err != nil {
		return rows, false
	}
	b.memory = append(b.memory, p)
	to := unsafe.Slice((*int32)(p), 2*rows.N)
	copy(to, lo)
	copy(to[rows.N:], hi)
	for t := rows.N - brokenBlock; t < rows.N; t++ {
		to[t] += brokenBlock
	}
	rows.Lo, rows.Hi, rows.Span = p, unsafe.Add(p, 4*rows.N), 0
	return rows, true
}

func (b *broken) Forward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, first bool) error {
	if b.skipForward {
		var done bool
		if rows, done = b.skip(rows); done {
			b.skipForward = false
		}
	}
	return b.Backend.Forward(s, t, c, rows, first)
}

func (b *broken) Backward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, dkv unsafe.Pointer, first bool) error {
	if b.skipBackward {
		var done bool
		if rows, done = b.skip(rows); done {
			b.skipBackward = false
		}
	}
	if b.wrongLSE {
		// The last row of one head has the lse of the first.
		p, err := b.Alloc(int64(4 * t.Tokens * s.Heads))
		if err != nil {
			return err
		}
		b.memory = append(b.memory, p)
		lse := unsafe.Slice((*float32)(p), t.Tokens*s.Heads)
		copy(lse, unsafe.Slice((*float32)(t.LSE), len(lse)))
		lse[(t.Tokens-1)*s.Heads] = lse[0]
		x := *t
		x.LSE, t = p, &x
		b.tookLSE = true
	}
	return b.Backend.Backward(s, t, c, rows, dkv, first)
}

// dropper is a transport that loses one message of gradients, at both ends: the receiver finds
// zeros, and goes on.
type dropper struct {
	ring.Transport
	from, to int // the ranks; the first message between them
	dropped  bool
}

const lostRequest = ring.Request(1 << 40)

func (d *dropper) loses(peer, tag int, send bool) bool {
	from, to := peer, d.Rank()
	if send {
		from, to = to, from
	}
	if (tag-ring.FirstTag)%2 == 0 || d.dropped || from != d.from || to != d.to {
		return false
	}
	d.dropped = true
	return true
}

func (d *dropper) Isend(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	if d.loses(peer, tag, true) {
		return lostRequest, nil
	}
	return d.Transport.Isend(p, bytes, peer, tag)
}

func (d *dropper) Irecv(p unsafe.Pointer, bytes int64, peer, tag int) (ring.Request, error) {
	if d.loses(peer, tag, false) {
		clear(unsafe.Slice((*byte)(p), bytes))
		return lostRequest, nil
	}
	return d.Transport.Irecv(p, bytes, peer, tag)
}

func (d *dropper) Test(r ring.Request) (bool, error) {
	if r == lostRequest {
		return true, nil
	}
	return d.Transport.Test(r)
}

// brokenRank is where the fault is: one that all schedules have work and messages for.
const brokenRank = 1

// holdBroken computes the closed form of bench on four ranks, of which one is broken, and
// tells which tensors the check of bench finds wrong. ok: the fault came to pass.
func holdBroken(t *testing.T, shape cases.Shape, layout, schedule, fault string) (wrong []string, ok bool) {
	t.Helper()
	var lock sync.Mutex
	o := testOptions(layout, "cpu")
	o.schedule = schedule
	err := runInProcess(context.Background(), o, io.Discard, 4, "test", func(ctx context.Context, w *world) error {
		closed, err := cases.Classes(shape)
		if err != nil {
			return err
		}
		a, err := newAttention(ctx, w, valuedProblem(&closed.Shape, closed))
		if err != nil {
			return err
		}
		b, d := &broken{Backend: a.backend}, &dropper{Transport: a.links.Transport, from: -1}
		happened := func() bool { return false }
		switch rank := w.Rank(); {
		case fault == "drop":
			d.from, d.to = senderOfGradients(a.job, brokenRank), brokenRank
			happened = func() bool { return d.dropped }
		case rank != brokenRank:
		case fault == "skip forward":
			b.skipForward = true
			happened = func() bool { return !b.skipForward }
		case fault == "skip backward":
			b.skipBackward = true
			happened = func() bool { return !b.skipBackward }
		case fault == "lse":
			b.wrongLSE = true
			happened = func() bool { return b.tookLSE }
		}
		a.exec.Close()
		comm := a.links.Comm
		comm.Transport = d
		if a.exec, err = ring.Bind(a.job, comm, b, a.shape, &a.x, true); err != nil {
			return err
		}
		if _, err := a.passes(ctx); err != nil {
			return err
		}
		found, err := a.hold(ctx, closedAnswer{closed})
		if err != nil {
			return err
		}
		lock.Lock()
		defer lock.Unlock()
		ok = ok || happened()
		if w.Rank() == 0 {
			wrong = found
		}
		for _, p := range b.memory {
			a.backend.Free(p)
		}
		a.close()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return wrong, ok
}

// senderOfGradients is a rank that sends gradients to another one.
func senderOfGradients(j *ring.Job, to int) int {
	for _, s := range j.PlanOf(to, ring.Backward) {
		if s.Op == ring.Recv && s.Slot.Grad {
			return s.Peer
		}
	}
	return -1
}

// The check that bench makes first finds a kernel that skips one block of keys, one wrong lse
// and one message of gradients that is lost; and finds nothing where nothing is broken.
func TestCheckFindsWhatIsBroken(t *testing.T) {
	const tokens = 1200
	for _, dtype := range []string{"f32", "bf16"} {
		shape := cases.Shape{
			Batch: 1, Tokens: tokens, Heads: 4, KVHeads: 2, HeadDim: 64, DType: dtype,
			Mask: segments.Mask{Causal: true, Rows: []segments.Row{segments.SingleDocument(tokens)}},
		}
		for _, c := range [][2]string{{"zigzag", "ring"}, {"contiguous", "direct"}, {"zigzag", "two-level"}} {
			// In bf16 a block of 32 keys of some hundred shows least where it is divided by most.
			for fault, want := range map[string]map[string][]string{
				"":              {},
				"skip forward":  {"f32": {"out", "lse"}, "bf16": {"lse"}},
				"skip backward": {"f32": {"dq", "dk", "dv"}, "bf16": {"dq"}},
				"lse":           {"f32": {"dq"}, "bf16": {"dq"}},
				"drop":          {"f32": {"dk", "dv"}, "bf16": {"dk", "dv"}},
			} {
				t.Run(fmt.Sprintf("%s/%s/%s/%s", dtype, c[0], c[1], fault), func(t *testing.T) {
					wrong, ok := holdBroken(t, shape, c[0], c[1], fault)
					if ok != (fault != "") {
						t.Fatalf("did the fault come to pass? %v", ok)
					}
					if (len(wrong) > 0) != (fault != "") {
						t.Errorf("found: %v", wrong)
					}
					for _, tensor := range want[dtype] {
						if !slices.ContainsFunc(wrong, func(text string) bool { return strings.HasPrefix(text, tensor+":") }) {
							t.Errorf("%s is not among what is found wrong: %v", tensor, wrong)
						}
					}
				})
			}
		}
	}
}
