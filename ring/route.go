package ring

import (
	"cmp"
	"slices"

	"ringattn/segments"
)

// hop is a part's way from one rank to the next that needs it.
type hop struct {
	part
	from, to int
	round    int           // in which to attends to it
	post     int           // in which to posts its receive
	keys     segments.Span // what the message carries: for to and for those it feeds
	grads    segments.Span // the tokens whose gradients to sums up, its own and those before
}

// route finds the hops of every part.
func (s *ringPlanner) route() {
	ranks := s.batch.Ranks()
	s.hops = make([][]hop, parts*ranks)
	users := make([][]*need, parts*ranks) // users[part]: who needs it, by round
	index := make([]int, ranks)
	for round := 1; round <= parts*(ranks-1); round++ {
		for owner := range ranks {
			rank := s.grid.at(owner, (round-1)/parts+1)
			if i := index[rank]; i < len(s.needs[rank]) && s.needs[rank][i].round == round {
				n := &s.needs[rank][i]
				if way := users[n.part]; !s.grid.near(owner, rank) {
					n.crosses = len(way) == 0 || !s.grid.near(s.user(way[len(way)-1]), rank)
				}
				users[n.part] = append(users[n.part], n)
				index[rank]++
			}
		}
	}
	for _, needs := range s.needs {
		s.setSlots(needs)
	}
	s.sends = make([][]hop, ranks)
	for i, way := range users {
		hops := make([]hop, len(way))
		for k, n := range way {
			h := hop{part: part(i), from: part(i).owner(), to: s.user(n), round: n.round, post: n.post, keys: n.Keys, grads: n.Keys}
			for l := k - 1; l >= 0 && !n.crosses; l-- {
				if way[l].until > n.round && s.grid.near(hops[l].to, h.to) {
					h.from = hops[l].to
					break
				}
			}
			if k > 0 && hops[k-1].round == n.round-parts && s.grid.near(hops[k-1].to, h.to) {
				h.grads = h.grads.Hull(hops[k-1].grads)
			}
			hops[k] = h
		}
		for k := len(hops) - 1; k >= 0; k-- {
			for l := range k {
				if hops[l].to == hops[k].from {
					hops[l].keys = hops[l].keys.Hull(hops[k].keys)
				}
			}
		}
		s.hops[i] = hops
	}
	// In the order of their receives within a rank, round by round.
	at := make([]int, len(s.hops))
	for round := 1; round <= parts*(ranks-1); round++ {
		for i, hops := range s.hops {
			if at[i] < len(hops) && hops[at[i]].round == round {
				h := hops[at[i]]
				s.sends[h.from] = append(s.sends[h.from], h)
				at[i]++
			}
		}
	}
	for _, sends := range s.sends {
		slices.SortStableFunc(sends, func(a, b hop) int { return cmp.Compare(a.post, b.post) })
	}
}

// user is the rank that needs a part.
func (s *ringPlanner) user(n *need) int { return s.grid.at(n.owner(), (n.round-1)/parts+1) }

// setSlots gives the parts that a rank needs their slots: those that pass along its node
// take turns, a round ahead; one that comes from another node has its own, as long ahead
// as that is free, and the rank before has not just got it.
func (s *ringPlanner) setSlots(needs []need) {
	turn := 0
	var before [parts]*need // that came from another node
	for i := range needs {
		n := &needs[i]
		n.slot, n.post = 1+turn%kvSlots, n.round-1
		p := int(n.part) % parts
		if lead := parts*(s.grid.size-1) - 1; n.crosses && lead > 1 && (before[p] == nil || before[p].round+parts < n.round) {
			n.slot, n.post = 1+kvSlots+p, max(n.round-lead, 0)
			if before[p] != nil {
				n.post = max(n.post, before[p].round+parts)
			}
			before[p] = n
			continue
		}
		turn++
	}
	var next [1 + kvSlots + parts]int // the round in which a slot is wanted
	for i := range next {
		next[i] = parts * s.batch.Ranks()
	}
	for i := range slices.Backward(needs) {
		needs[i].until, next[needs[i].slot] = next[needs[i].slot], needs[i].post+1
	}
}

// hop finds the hop of a part in a round, if there is one.
func (s *ringPlanner) hop(p part, round int) (hop, bool) {
	i, ok := slices.BinarySearchFunc(s.hops[p], round, func(h hop, round int) int { return cmp.Compare(h.round, round) })
	if !ok {
		return hop{}, false
	}
	return s.hops[p][i], true
}

// next is the hop to the rank that takes over the sum of the one that h leads to: on its
// node, and attending to the part when the sum is there.
func (s *ringPlanner) next(h hop) (hop, bool) {
	next, ok := s.hop(h.part, h.round+parts)
	return next, ok && s.grid.near(h.to, next.to)
}

// prior is the hop whose rank's sum comes to the one that h leads to.
func (s *ringPlanner) prior(h hop) (hop, bool) {
	prior, ok := s.hop(h.part, h.round-parts)
	return prior, ok && s.grid.near(h.to, prior.to)
}
