package ring

import (
	"container/heap"
	"iter"
)

// Machine is what a prediction takes the hardware to be: of each rank.
type Machine struct {
	Flops    float64 // a second, of kernels
	Link     float64 // bytes a second out, and as many in, within a node
	NodeLink float64 // the same, between nodes
	Start    float64 // seconds that a kernel, or a message, takes besides
}

// Prediction is the time of a pass in seconds.
type Prediction struct {
	Time    float64 // of the slowest rank
	Kernel  float64 // mean over the ranks
	Exposed float64 // waited for messages with no kernel running; mean over the ranks
}

// Predict times a pass on a machine on which nothing takes time but kernels and
// messages. The kernels of a rank run one after another, and so do the messages of a
// link, in the order in which both their ends are posted.
func (j *Job) Predict(p Pass, s Shape, m Machine, nodes Nodes) Prediction {
	t := timer{job: j, shape: s, machine: m, nodes: nodes, ranks: make([]timedRank, j.Ranks()), mail: map[envelope][]*timedMessage{}}
	kernels, _ := j.Kernels(0, s)
	t.pairTime = 4 * float64(kernels.Heads) * float64(s.HeadDim) / m.Flops
	if p == Backward {
		t.pairTime *= 2.5
	}
	for r := range t.ranks {
		next, stop := iter.Pull(j.Plan(r, p))
		defer stop()
		t.ranks[r] = timedRank{rank: r, steps: next, slots: map[Slot]*timedSlot{}}
		t.ready = append(t.ready, &t.ranks[r])
	}
	for len(t.ready) > 0 {
		t.advance(heap.Pop(&t.ready).(*timedRank))
	}
	var all Prediction
	for i := range t.ranks {
		r := &t.ranks[i]
		all.Time = max(all.Time, r.now, r.kernels)
		all.Kernel += r.busy / float64(len(t.ranks))
		all.Exposed += r.exposed / float64(len(t.ranks))
	}
	return all
}

// timer is the state of a prediction. Of all ranks that can go on the one whose time is
// least takes the next step, so that messages are posted in the order of time.
type timer struct {
	job      *Job
	shape    Shape
	machine  Machine
	nodes    Nodes
	pairTime float64
	ranks    []timedRank
	ready    readyRanks
	mail     map[envelope][]*timedMessage // whose other end is not posted yet
}

type timedRank struct {
	rank          int
	steps         func() (Step, bool)
	wait          *timedSlot // what it waits for; nil: it can take a step
	now           float64
	kernels       float64       // when all that were started are done
	links         [2][2]float64 // out and in, on the node and between nodes: since when they are free
	busy, exposed float64
	slots         map[Slot]*timedSlot
}

type timedSlot struct {
	kernel   float64 // when those that touch it are done
	messages []*timedMessage
}

type timedMessage struct {
	op     Op
	posted float64
	bytes  float64
	end    float64    // 0: not known yet
	waiter *timedRank // for the end
}

// advance takes the rank's next step, or goes on with its wait.
func (t *timer) advance(r *timedRank) {
	if r.wait == nil {
		s, ok := r.steps()
		if !ok {
			return
		}
		t.take(r, s)
	}
	if r.wait != nil && !r.goOn() {
		return
	}
	heap.Push(&t.ready, r)
}

func (t *timer) take(r *timedRank, s Step) {
	slot := r.slots[s.Slot]
	if slot == nil {
		slot = &timedSlot{}
		r.slots[s.Slot] = slot
	}
	switch s.Op {
	case Wait:
		r.wait = slot
	case Send, Recv:
		slot.messages = append(slot.messages, t.post(r, s))
	default:
		time := t.machine.Start + t.pairTime*float64(s.Pairs)
		r.kernels = max(r.kernels, r.now) + time
		r.busy += time
		slot.kernel = r.kernels
		if acc := r.slots[s.Acc]; acc != nil && s.Acc.Grad {
			acc.kernel = r.kernels
		} else if s.Acc.Grad {
			r.slots[s.Acc] = &timedSlot{kernel: r.kernels}
		}
	}
}

// goOn ends the rank's wait, or says what it waits for.
func (r *timedRank) goOn() bool {
	end := r.wait.kernel
	for _, x := range r.wait.messages {
		if x.end == 0 {
			x.waiter = r
			return false
		}
		end = max(end, x.end)
	}
	r.exposed += max(0, end-max(r.now, r.kernels))
	r.now = max(r.now, end)
	r.wait.messages, r.wait = r.wait.messages[:0], nil
	return true
}

// post starts one end of a message; with both ends posted its time is known.
func (t *timer) post(r *timedRank, s Step) *timedMessage {
	from, to := r.rank, s.Peer
	if s.Op == Recv {
		from, to = to, from
	}
	e := envelope{from, to, s.Tag()}
	box := t.mail[e]
	if len(box) == 0 || box[0].op == s.Op {
		x := &timedMessage{op: s.Op, posted: r.now, bytes: float64(s.Bytes(t.shape))}
		t.mail[e] = append(box, x)
		return x
	}
	x := box[0]
	if len(box) == 1 {
		delete(t.mail, e)
	} else {
		t.mail[e] = box[1:]
	}
	level, speed := 0, t.machine.Link
	if t.nodes != nil && t.nodes[from] != t.nodes[to] {
		level, speed = 1, t.machine.NodeLink
	}
	out, in := &t.ranks[from].links[level][0], &t.ranks[to].links[level][1]
	start, time := max(x.posted, r.now, *out), t.machine.Start+x.bytes/speed
	*out, *in = start+time, max(start, *in)+time
	x.end = max(*out, *in)
	if x.waiter != nil {
		heap.Push(&t.ready, x.waiter)
	}
	return x
}

// readyRanks is a heap by time, and by rank where that is equal.
type readyRanks []*timedRank

func (q readyRanks) Len() int { return len(q) }
func (q readyRanks) Less(i, j int) bool {
	return q[i].now < q[j].now || q[i].now == q[j].now && q[i].rank < q[j].rank
}
func (q readyRanks) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *readyRanks) Push(x any)   { *q = append(*q, x.(*timedRank)) }
func (q *readyRanks) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
