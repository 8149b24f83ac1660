package trace

import (
	"fmt"
	"maps"
	"slices"
)

// Check reports the first thing in a file, as Read has read it, that cannot have been: spans
// of a track that overlap without lying within each other, a wait or message outside its pass,
// a message with one end or two sizes, a message that was there before it was sent, an arrow
// that leads elsewhere, kernels that do not add up to what their pass says.
func (t *Trace) Check() error {
	for _, check := range []func() error{t.checkTracks, t.checkPasses, t.checkMessages, t.checkArrows} {
		if err := check(); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	return nil
}

func (s *Span) String() string {
	return fmt.Sprintf("rank %d, track %d, %s %q [%d, %d) ns", s.Rank, s.Track, s.Kind, s.Name, s.Begin, s.End)
}

func (t *Trace) checkTracks() error {
	type place struct{ rank, track int }
	within := map[place][]*Span{} // what a span of the track may lie in, outermost first
	for i := range t.Spans {
		s := &t.Spans[i]
		at := place{s.Rank, s.Track}
		around := within[at]
		for len(around) > 0 && around[len(around)-1].End <= s.Begin {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			if a := around[len(around)-1]; s.Begin < a.Begin || s.End > a.End {
				return fmt.Errorf("%v does not lie within %v", s, a)
			}
		}
		within[at] = append(around, s)
	}
	return nil
}

// inPass is what a rank has of a pass.
type inPass struct{ rank, number int }

func (t *Trace) checkPasses() error {
	passes, busy, ends := map[inPass]*Span{}, map[inPass]int64{}, map[inPass]int64{}
	for i := range t.Spans {
		if s := &t.Spans[i]; s.Kind == Pass {
			if passes[inPass{s.Rank, s.Args.Number}] != nil {
				return fmt.Errorf("rank %d has pass %d twice", s.Rank, s.Args.Number)
			}
			passes[inPass{s.Rank, s.Args.Number}] = s
		}
	}
	var inFlight *Span // the newest
	for i := range t.Spans {
		s := &t.Spans[i]
		pass := passes[inPass{s.Rank, s.Args.Number}]
		if pass == nil {
			return fmt.Errorf("%v is of pass %d, which its rank does not have", s, s.Args.Number)
		}
		if s.Begin < pass.Begin || s.End > pass.End {
			return fmt.Errorf("%v is outside %v", s, pass)
		}
		switch s.Kind {
		case Busy:
			busy[inPass{s.Rank, s.Args.Number}] += s.End - s.Begin
			ends[inPass{s.Rank, s.Args.Number}] += 2
			inFlight = s
		case Kernel:
			if f := inFlight; f == nil || f.Rank != s.Rank || s.Begin < f.Begin || s.End > f.End {
				return fmt.Errorf("%v runs while none is in flight", s)
			}
		}
	}
	for at, pass := range passes {
		// The clocks of other ranks run faster or slower, and each end of a span was rounded.
		if diff := busy[at] - pass.Args.KernelNS; max(diff, -diff) > t.driftOf(at.rank, pass)+ends[at] {
			return fmt.Errorf("the kernels of %v were in flight for %d ns, it says %d", pass, busy[at], pass.Args.KernelNS)
		}
		for rank := range t.Info.Ranks {
			if passes[inPass{rank, at.number}] == nil {
				return fmt.Errorf("rank %d has no pass %d, which rank %d has", rank, at.number, at.rank)
			}
		}
	}
	return nil
}

// driftOf is how much longer a pass is on rank 0's clock than on its rank's, at most.
func (t *Trace) driftOf(rank int, pass *Span) int64 {
	drift := t.Info.Ranks[rank].Drift
	return int64(max(drift, -drift) * 1e-6 * float64(pass.End-pass.Begin))
}

func (t *Trace) checkMessages() error {
	ends := map[int]map[Kind]*Span{}
	for i := range t.Spans {
		s := &t.Spans[i]
		if s.Kind != Send && s.Kind != Recv {
			continue
		}
		if s.Args.ID < 1 || s.Args.From == nil || s.Args.To == nil {
			return fmt.Errorf("%v has no number, or does not say from whom to whom", s)
		}
		if mine := map[Kind]int{Send: *s.Args.From, Recv: *s.Args.To}[s.Kind]; mine != s.Rank {
			return fmt.Errorf("%v is of rank %d", s, mine)
		}
		if ends[s.Args.ID] == nil {
			ends[s.Args.ID] = map[Kind]*Span{}
		}
		if ends[s.Args.ID][s.Kind] != nil {
			return fmt.Errorf("%v is message %d, and so is %v", s, s.Args.ID, ends[s.Args.ID][s.Kind])
		}
		ends[s.Args.ID][s.Kind] = s
	}
	for _, id := range slices.Sorted(maps.Keys(ends)) {
		send, recv := ends[id][Send], ends[id][Recv]
		switch {
		case send == nil || recv == nil:
			return fmt.Errorf("message %d has one end", id)
		case send.Args.Bytes != recv.Args.Bytes || *send.Args.From != *recv.Args.From || *send.Args.To != *recv.Args.To ||
			send.Args.Tag != recv.Args.Tag || send.Args.Number != recv.Args.Number:
			return fmt.Errorf("message %d: %v of %d bytes is not received by %v of %d", id, send, send.Args.Bytes, recv, recv.Args.Bytes)
		}
		if bound := t.Info.Ranks[send.Rank].Bound + t.Info.Ranks[recv.Rank].Bound; recv.End+bound < send.Begin {
			return fmt.Errorf("message %d was there, %v, %d ns before it was sent, %v; the clocks are good to %d", id, recv, send.Begin-recv.End, send, bound)
		}
	}
	return nil
}

func (t *Trace) checkArrows() error {
	spans := map[int][2]*Span{} // of a message, by end
	for i := range t.Spans {
		s := &t.Spans[i]
		if pair := spans[s.Args.ID]; s.Kind == Send {
			spans[s.Args.ID] = [2]*Span{s, pair[1]}
		} else if s.Kind == Recv {
			spans[s.Args.ID] = [2]*Span{pair[0], s}
		}
	}
	seen := map[int]int{} // how often, 1 for a tail and 16 for a head
	for _, a := range t.arrows {
		end, weight := 0, 1
		if a.head {
			end, weight = 1, 16
		}
		if s := spans[a.id][end]; s == nil || s.Rank != a.rank || s.Track != a.track || a.at < s.Begin || a.at > s.End {
			return fmt.Errorf("an arrow of message %d at %d ns, rank %d, track %d, is not at its span", a.id, a.at, a.rank, a.track)
		}
		seen[a.id] += weight
	}
	for id := range spans {
		if id > 0 && seen[id] != 17 {
			return fmt.Errorf("message %d has %d tails and %d heads of arrows, want one each", id, seen[id]%16, seen[id]/16)
		}
	}
	return nil
}
