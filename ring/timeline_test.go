package ring_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/ring/devicetest"
	"ringattn/ring/late"
	"ringattn/ring/staged"
	"ringattn/segments"
)

// traced is what a rank did in a pass.
type traced struct {
	rank   int
	pass   ring.Pass
	plan   []ring.Step
	stats  ring.Stats
	rounds []ring.RoundStats
	spans  []ring.Span
}

// runTraced runs both passes of a job with everything recorded.
func runTraced(t *testing.T, job *ring.Job, on func(end ring.Transport) (ring.Transport, ring.Backend)) []traced {
	t.Helper()
	var lock sync.Mutex
	var all []traced
	var group sync.WaitGroup
	for rank, end := range inproc.New(job.Ranks()) {
		group.Go(func() {
			transport, backend := on(end)
			g, err := newRigOn(job, ring.Comm{Transport: transport, Timeout: time.Minute}, backend)
			if err != nil {
				t.Error(err)
				return
			}
			line := ring.NewTimeline()
			g.exec.Trace(line)
			if s, ok := transport.(*staged.Transport); ok {
				s.Copied = func(_ bool, bytes int64, began, ended time.Time) { line.Copied("in or out", bytes, began, ended) }
			}
			for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
				line.Spans = nil
				stats, err := g.exec.Run(context.Background(), p)
				if err != nil {
					t.Error(err)
					return
				}
				lock.Lock()
				all = append(all, traced{rank, p, job.PlanOf(rank, p), stats, slices.Clone(g.exec.Rounds()), line.Spans})
				lock.Unlock()
			}
			g.exec.Close()
		})
	}
	group.Wait()
	return all
}

// sameMemory is device memory that the host reaches at the same address.
type sameMemory struct{ ring.Backend }

func (sameMemory) View(p unsafe.Pointer) unsafe.Pointer { return p }

// covered is how long at least one span of each of the two sets is there.
func covered(a, b []ring.Span) time.Duration {
	var all time.Duration
	for _, x := range a {
		type piece struct{ begin, end time.Duration }
		var pieces []piece
		for _, y := range b {
			if p := (piece{max(x.Begin, y.Begin), min(x.End, y.End)}); p.begin < p.end {
				pieces = append(pieces, p)
			}
		}
		slices.SortFunc(pieces, func(p, q piece) int { return int(p.begin - q.begin) })
		at := x.Begin
		for _, p := range pieces {
			if p.end > at {
				all += p.end - max(at, p.begin)
				at = p.end
			}
		}
	}
	return all
}

// What is recorded of a pass is what its figures say, to the nanosecond: each kernel and
// message of the plan once, kernels one after another while some is in flight, busy times that
// add up to the kernel time, messages beside them that add up to what was hidden. Rounds add
// up to the whole.
func TestTimeline(t *testing.T) {
	cpu := func() ring.Backend {
		b, err := kernels.CPU(1, "")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	doc := []segments.Row{segments.SingleDocument(400)}
	for _, schedule := range ring.Schedules {
		for name, on := range map[string]func(end ring.Transport) (ring.Transport, ring.Backend){
			"cpu":       func(end ring.Transport) (ring.Transport, ring.Backend) { return end, cpu() },
			"reference": func(end ring.Transport) (ring.Transport, ring.Backend) { return end, kernels.Reference() },
			"late":      func(end ring.Transport) (ring.Transport, ring.Backend) { return end, late.New(cpu(), time.Millisecond) },
			"device": func(end ring.Transport) (ring.Transport, ring.Backend) {
				ref := kernels.Reference()
				b := devicetest.New(ref, sameMemory{ref})
				return staged.New(end, b, 1000), b
			},
		} {
			t.Run(schedule+"/"+name, func(t *testing.T) {
				job := mustSchedule(t, segments.Zigzag(400, 4), segments.Mask{Causal: true, Rows: doc}, schedule)
				all := runTraced(t, job, on)
				if len(all) != 8 {
					t.Fatalf("%d passes of ranks, want 8", len(all))
				}
				var staging time.Duration
				for _, x := range all {
					x.check(t)
					staging += x.stats.Staging
				}
				if (staging > 0) != (name == "device") {
					t.Errorf("%v of staging", staging)
				}
			})
		}
	}
}

func (x *traced) check(t *testing.T) {
	t.Helper()
	where := fmt.Sprintf("rank %d, %v", x.rank, x.pass)
	by := map[ring.SpanKind][]ring.Span{}
	for _, s := range x.spans {
		if s.End < s.Begin || s.Pass != x.pass {
			t.Errorf("%s: %+v", where, s)
		}
		by[s.Kind] = append(by[s.Kind], s)
	}
	if len(by[ring.SpanPass]) != 1 || *by[ring.SpanPass][0].Stats != x.stats {
		t.Fatalf("%s: passes %+v, want one with %+v", where, by[ring.SpanPass], x.stats)
	}
	pass := by[ring.SpanPass][0]
	want := map[string]int{}
	var bytes int64
	for _, s := range x.plan {
		if s.Op != ring.Wait {
			want[s.Op.String()]++
		}
	}
	var kernels, busy time.Duration
	at := pass.Begin
	for _, s := range by[ring.SpanKernel] {
		want[s.Name]--
		if s.Begin < at {
			t.Errorf("%s: a kernel begins at %v, before %v", where, s.Begin, at)
		}
		if !slices.ContainsFunc(by[ring.SpanBusy], func(b ring.Span) bool { return b.Begin <= s.Begin && s.End <= b.End }) {
			t.Errorf("%s: no kernel was in flight in %v to %v", where, s.Begin, s.End)
		}
		kernels, at = kernels+s.End-s.Begin, s.End
	}
	for _, s := range by[ring.SpanBusy] {
		busy += s.End - s.Begin
	}
	for _, kind := range []ring.SpanKind{ring.SpanSend, ring.SpanRecv} {
		for _, s := range by[kind] {
			want[string(kind)]--
			if kind == ring.SpanSend {
				bytes += s.Bytes
			}
		}
	}
	for name, n := range want {
		if n != 0 {
			t.Errorf("%s: %d too few of %s", where, n, name)
		}
	}
	messages := slices.Concat(by[ring.SpanSend], by[ring.SpanRecv])
	hidden := covered(by[ring.SpanBusy], messages)
	if busy != x.stats.Kernel || kernels > busy || bytes != x.stats.BytesSent || hidden != x.stats.Hidden {
		t.Errorf("%s: kernels %v, in flight %v, hidden %v, %d bytes sent; want %+v", where, kernels, busy, hidden, bytes, x.stats)
	}
	if x.stats.Staging > x.stats.Exposed || x.stats.Kernel+x.stats.Exposed > x.stats.Wall {
		t.Errorf("%s: %+v", where, x.stats)
	}
	var sum ring.RoundStats
	for _, r := range x.rounds {
		sum.Wall, sum.Kernel, sum.Exposed, sum.Hidden = sum.Wall+r.Wall, sum.Kernel+r.Kernel, sum.Exposed+r.Exposed, sum.Hidden+r.Hidden
		if min(r.Wall, r.Kernel, r.Exposed, r.Hidden) < 0 || r.Kernel > r.Wall || r.Hidden > r.Kernel {
			t.Errorf("%s: a round of %+v", where, r)
		}
	}
	if s := x.stats; sum != (ring.RoundStats{Wall: s.Wall, Kernel: s.Kernel, Exposed: s.Exposed, Hidden: s.Hidden}) {
		t.Errorf("%s: rounds add up to %+v, want %+v", where, sum, s)
	}
	if last := x.plan[len(x.plan)-1].Round; len(x.rounds) != last+1 {
		t.Errorf("%s: %d rounds, the plan has %d", where, len(x.rounds), last+1)
	}
}

// The true offset of a clock is within the bound of what Clocks says of it, however uneven the
// ways there and back.
func TestClocks(t *testing.T) {
	zero := time.Now()
	const ranks = 4
	skew := func(rank int) time.Duration { return time.Duration(rank*rank*7919) * time.Microsecond }
	for name, delay := range map[string]func(src, dst, tag int, bytes int64) time.Duration{
		"at once":    func(int, int, int, int64) time.Duration { return 0 },
		"one way":    func(src, _, _ int, _ int64) time.Duration { return time.Duration(src) * time.Millisecond },
		"the others": func(_, dst, _ int, _ int64) time.Duration { return time.Duration(dst) * time.Millisecond },
		"jitter":     func(int, int, int, int64) time.Duration { return rand.N(300 * time.Microsecond) },
	} {
		var got []ring.ClockOffset
		for i, err := range onEach(time.Minute, inproc.New(ranks, inproc.Delay(delay)), func(c ring.Comm) error {
			offsets, err := c.Clocks(context.Background(), func() time.Duration { return time.Since(zero) + skew(c.Rank()) })
			if c.Rank() == 0 {
				got = offsets
			} else if offsets != nil {
				t.Errorf("rank %d knows offsets", c.Rank())
			}
			return err
		}) {
			if err != nil {
				t.Fatalf("%s: rank %d: %v", name, i, err)
			}
		}
		for rank, o := range got {
			if wrong := (o.Offset - skew(rank)).Abs(); wrong > o.Bound || o.At <= 0 || rank > 0 && o.Bound <= 0 {
				t.Errorf("%s: rank %d: %+v, which is wrong by %v", name, rank, o, wrong)
			}
		}
		if name == "one way" && got[3].Bound < 1500*time.Microsecond {
			t.Errorf("a way of 3 ms, and a bound of %v", got[3].Bound)
		}
	}
}
