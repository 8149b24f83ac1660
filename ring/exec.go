package ring

import (
	"context"
	"fmt"
	"time"
	"unsafe"
)

// Exec carries out the plans of one rank. Bind makes it once per batch and
// layer shape; Run may be called any number of times, with the tensors changed
// in between. It is not safe for concurrent use.
type Exec struct {
	comm    Comm
	backend Backend
	shape   Shape    // of the kernels
	tensors *Tensors // that they read and write
	heads   *headMoves
	share   func(pairs int64) int64

	plans  [2][]boundStep
	slots  []slotState // by slotIndex
	pause  Backoff     // between polls
	last   Event       // of the newest enqueued kernel, 0: none yet
	memory []unsafe.Pointer
	failed bool

	stats    Stats
	idle     time.Time     // since when no kernel has been in flight; zero: one is
	idleTime time.Duration // without any, before idle

	moving int       // messages under way
	hidden time.Time // since when messages and kernels have both been; zero: they are not
	stager Stager    // that carries the messages, nil: no copies

	rounds []RoundStats // of the newest run
	round  int          // at hand
	began  time.Time    // the run
	before RoundStats   // from then until the round at hand began

	timeline *Timeline // that records, nil: none
	timed    Timed     // the backend, where it knows when kernels ran
}

// Stats says where the time of one Run went.
type Stats struct {
	Wall      time.Duration
	Kernel    time.Duration // some kernel was in flight
	Exposed   time.Duration // none was, and the rank waited for messages
	Staging   time.Duration // of Exposed: while a message was copied between device and host memory
	Hidden    time.Duration // of Kernel: while a message of the rank was under way
	BytesSent int64
	Pairs     int64 // visible pairs attended to, over all batch rows, not times heads
}

// boundStep is a step with its addresses.
type boundStep struct {
	Step
	p     unsafe.Pointer // of Range in Slot; of Send, what is sent
	acc   unsafe.Pointer // of Range in Acc; of Round, where it writes
	bytes int64          // of Range at p
	rows  Rows
	first bool            // Attend: nothing was attended to before
	moves []Rearrangement // Pack, Unpack
}

type slotState struct {
	memory    unsafe.Pointer
	base      int // the owner's token that stands first
	tokens    int // that it was zeroed for: behind these stands what they are rounded to
	transfers []Transfer
	event     Event // of the newest kernel that touches it, 0: none
}

func slotIndex(s Slot) int {
	switch {
	case s.Heads:
		return 3*s.N + 2
	case s.Grad:
		return 3*s.N + 1
	}
	return 3 * s.N
}

// slotOf is the slot of an index.
func slotOf(i int) Slot { return Slot{Grad: i%3 == 1, Heads: i%3 == 2, N: i / 3} }

// Bind prepares the plans of this rank: it checks the arguments, allocates the
// slots and writes down what each query sees. Forward needs Q, KV, Out and LSE of
// x; the backward pass, bound where backward is set, needs all. x and its memory
// belong to the caller and must outlive the Exec. With a head exchange the backward pass
// goes on with what the last forward pass of the Exec has brought and computed.
func Bind(j *Job, c Comm, b Backend, s Shape, x *Tensors, backward bool) (*Exec, error) {
	if err := j.fits(c, s, x); err != nil {
		return nil, err
	}
	plans := [][]Step{j.PlanOf(c.Rank(), Forward)}
	if backward {
		plans = append(plans, j.PlanOf(c.Rank(), Backward))
	}
	return bind(j, c, b, s, x, plans)
}

// bind is Bind for given plans of this rank, by pass.
func bind(j *Job, c Comm, b Backend, s Shape, x *Tensors, plans [][]Step) (*Exec, error) {
	rank := c.Rank()
	e := &Exec{comm: c, backend: b, pause: Backoff{Pace: PaceOf(b)}, shape: s, tensors: x, share: func(pairs int64) int64 { return j.Share(rank, pairs) }}
	transfers := map[Slot]int{}
	top := slotIndex(OwnGrad)
	for _, steps := range plans {
		for _, step := range steps {
			top = max(top, slotIndex(step.Slot))
			if step.Op == Recv || step.Op == Send {
				transfers[step.Slot]++
			}
		}
	}
	e.slots = make([]slotState, top+1)
	for slot, n := range transfers {
		e.slots[slotIndex(slot)].transfers = make([]Transfer, 0, n)
	}
	for slot, n := range slotBytes(s, plans...) {
		p, err := e.alloc(n)
		if err != nil {
			e.Close()
			return nil, fmt.Errorf("ring: rank %d: %d bytes for %v: %w", rank, n, slot, err)
		}
		e.slots[slotIndex(slot)].memory = p
	}
	if err := e.bindHeads(j, s, len(plans) > 1); err != nil {
		e.Close()
		return nil, fmt.Errorf("ring: rank %d: the group's tensors: %w", rank, err)
	}
	e.slots[slotIndex(OwnKV)].memory = e.tensors.KV
	e.slots[slotIndex(OwnGrad)].memory = e.tensors.DKV
	solver, at := j.solver(rank)
	rows := &sights{map[sight]Rows{}, map[string]Rows{}}
	e.stager, _ = c.Transport.(Stager)
	e.addRound(0)
	for p, steps := range plans {
		first := true
		for _, step := range steps {
			bound, err := e.bind(solver, at, step, rows)
			if err != nil {
				e.Close()
				return nil, fmt.Errorf("ring: rank %d: %v, %v: %w", rank, Pass(p), step, err)
			}
			if step.Op == Attend {
				bound.first, first = first, false
			}
			e.plans[p] = append(e.plans[p], bound)
			e.addRound(bound.Round)
		}
	}
	return e, nil
}

// fits checks a job against the world and the tensors.
func (j *Job) fits(c Comm, s Shape, x *Tensors) error {
	switch {
	case c.Size() != j.Ranks():
		return fmt.Errorf("ring: rank %d: the job is cut for %d ranks, the world has %d", c.Rank(), j.Ranks(), c.Size())
	case s.Heads < 1 || s.KVHeads < 1 || s.Heads%s.KVHeads != 0 || s.HeadDim < 1:
		return fmt.Errorf("ring: %d query heads, %d KV heads, head_dim %d: query heads must be a multiple of KV heads, all at least 1", s.Heads, s.KVHeads, s.HeadDim)
	case x.Tokens != j.Batch.Order(c.Rank()).Tokens:
		return fmt.Errorf("ring: rank %d: tensors of %d tokens, the batch gives it %d", c.Rank(), x.Tokens, j.Batch.Order(c.Rank()).Tokens)
	case j.groups != nil && (s.Heads != j.split.heads || s.KVHeads != j.split.kvHeads):
		return fmt.Errorf("ring: the job is cut for %d query heads and %d KV heads, the tensors have %d and %d", j.split.heads, j.split.kvHeads, s.Heads, s.KVHeads)
	}
	return nil
}

func (e *Exec) alloc(bytes int64) (unsafe.Pointer, error) {
	p, err := e.backend.Alloc(bytes)
	if err == nil {
		e.memory = append(e.memory, p)
	}
	return p, err
}

// bind resolves the addresses of one step. Steps come in plan order, so that
// the slots' bases are those at this step.
func (e *Exec) bind(j *Job, rank int, s Step, rows *sights) (boundStep, error) {
	b := boundStep{Step: s}
	switch {
	case s.Op == Wait:
		return b, nil
	case s.Tensor != NoTensor:
		e.bindHeadStep(&b)
		return b, nil
	}
	e.address(&b)
	if s.Op != Attend {
		return b, nil
	}
	var err error
	b.rows, err = e.rows(j, rank, sight{s.Owner, s.Range}, rows)
	return b, err
}

// Run carries out one pass. Forward writes Out and LSE; Backward, which needs
// them, writes Delta, DQ and DKV. It returns when this rank's results are
// complete and none of its transfers is under way. After an error the Exec is
// good for Close alone, and other ranks may still wait for this one.
//
// The timeout of the Comm counts time in which the rank has nothing to compute.
// Run allocates nothing.
func (e *Exec) Run(ctx context.Context, p Pass) (Stats, error) {
	if err := e.traceStart(p); err != nil {
		return Stats{}, err
	}
	start := time.Now()
	e.stats, e.idle, e.idleTime, e.hidden = Stats{}, start, 0, time.Time{}
	e.startRounds(start)
	err := e.run(ctx, p)
	if err != nil {
		e.failed = true
	}
	e.stats.Pairs = e.share(e.stats.Pairs)
	end := time.Now()
	e.endRound(end)
	if !e.idle.IsZero() {
		e.idleTime += end.Sub(e.idle)
	}
	e.stats.Wall = end.Sub(start)
	e.stats.Kernel = e.stats.Wall - e.idleTime
	e.traceEnd(start, end)
	return e.stats, err
}

func (e *Exec) run(ctx context.Context, p Pass) error {
	for i := range e.plans[p] {
		s := &e.plans[p][i]
		e.enter(s.Round)
		if err := e.take(ctx, p, s); err != nil {
			return fmt.Errorf("ring: rank %d: %v step %d of %d (%v): %w", e.comm.Rank(), p, i, len(e.plans[p]), s.Step, err)
		}
	}
	return e.waitKernels(ctx)
}

func (e *Exec) take(ctx context.Context, p Pass, s *boundStep) (err error) {
	slot := &e.slots[slotIndex(s.Slot)]
	from, err := e.mark(s.Op)
	if err != nil {
		return err
	}
	// The time before: threads that compute may take this one's CPU as soon as there is work.
	var began time.Time
	if !e.idle.IsZero() && s.Op != Recv && s.Op != Send && s.Op != Wait {
		began = time.Now()
	}
	switch s.Op {
	case Recv:
		return e.start(slot, s, e.comm.Irecv)
	case Send:
		e.stats.BytesSent += s.bytes
		return e.start(slot, s, e.comm.Isend)
	case Wait:
		return e.wait(ctx, slot, s)
	case Zero:
		err = e.backend.Zero(s.p, s.bytes)
	case Add:
		err = e.add(s)
	case Round:
		err = e.backend.Round(s.acc, s.p, s.bytes/F32.Size())
	case Pack, Unpack:
		err = e.move(s)
	case Attend:
		e.stats.Pairs += s.Pairs
		err = e.attend(p, s)
	}
	if err != nil {
		return err
	}
	if err := e.enqueued(began); err != nil {
		return err
	}
	e.traceKernel(s.Op.String(), s.Step, from)
	slot.event = e.last
	if s.Acc.Grad {
		e.slots[slotIndex(s.Acc)].event = e.last
	}
	return nil
}

// attend attends to a chunk. What the backward pass needs of all queries comes before its
// first chunk, once everything is there.
func (e *Exec) attend(p Pass, s *boundStep) error {
	chunk := Chunk{Tokens: s.Range.Len(), KV: s.p}
	if p == Forward {
		return e.backend.Forward(e.shape, e.tensors, chunk, s.rows, s.first)
	}
	if s.first {
		if err := e.backend.Delta(e.shape, e.tensors); err != nil {
			return fmt.Errorf("delta: %w", err)
		}
		if err := e.backend.Zero(e.tensors.DKV, int64(e.tensors.Tokens)*e.shape.GradTokenBytes()); err != nil {
			return err
		}
	}
	return e.backend.Backward(e.shape, e.tensors, chunk, s.rows, s.acc, s.first)
}

// enqueued notes that the backend has something to do, since began if it had nothing before.
func (e *Exec) enqueued(began time.Time) error {
	if !e.idle.IsZero() {
		e.idleTime += began.Sub(e.idle)
		e.idle = time.Time{}
		e.overlap(began)
		if e.timeline != nil {
			e.timeline.busy = began
		}
	}
	event, err := e.backend.Record()
	e.last = event
	return err
}

// overlap notes a change of what is under way: messages, kernels or both.
func (e *Exec) overlap(now time.Time) {
	switch both := e.moving > 0 && e.idle.IsZero(); {
	case both && e.hidden.IsZero():
		e.hidden = now
	case !both && !e.hidden.IsZero():
		e.stats.Hidden += now.Sub(e.hidden)
		e.hidden = time.Time{}
	}
}

func (e *Exec) start(slot *slotState, s *boundStep, post func(unsafe.Pointer, int64, int, int) (Request, error)) error {
	// The time before: what is posted may be at its peer before this thread goes on.
	var now time.Time
	if e.moving == 0 && e.idle.IsZero() || e.timeline != nil {
		now = time.Now()
	}
	r, err := post(s.p, s.bytes, s.Peer, s.Tag())
	if err != nil {
		return err
	}
	slot.transfers = append(slot.transfers, Transfer{r, s.Op.String(), s.Peer, s.Tag(), s.bytes})
	e.moving++
	e.overlap(now)
	e.traceMessage(s, r, now)
	return nil
}

// Close frees the slots once the backend has come to rest. After a failed Run
// they are left alone: a transfer may still write to them.
func (e *Exec) Close() {
	if e.failed {
		return
	}
	for _, p := range e.memory {
		e.backend.Free(p)
	}
	e.memory = nil
}
