package ring

import "time"

// RoundStats says where the time of one round of a Run went, on the rank. Rounds follow each
// other; a kernel or message that is under way when one ends counts in both, each with its
// part.
type RoundStats struct {
	Wall, Kernel, Exposed, Hidden time.Duration // as in Stats
}

// Rounds says where the time of the newest Run went, by round; what the plan does not do has
// taken no time. It is good until the next Run.
func (e *Exec) Rounds() []RoundStats { return e.rounds[:e.round+1] }

// addRound makes room for a round of a plan.
func (e *Exec) addRound(round int) {
	for len(e.rounds) <= round {
		e.rounds = append(e.rounds, RoundStats{})
	}
}

// startRounds begins the first round of a Run.
func (e *Exec) startRounds(now time.Time) {
	clear(e.rounds)
	e.round, e.began, e.before = 0, now, RoundStats{}
}

// enter begins a round, if it is another one.
func (e *Exec) enter(round int) {
	if round != e.round {
		e.endRound(time.Now())
		e.round = round
	}
}

// endRound adds what has come since the round at hand began.
func (e *Exec) endRound(now time.Time) {
	all := RoundStats{Wall: now.Sub(e.began), Exposed: e.stats.Exposed, Hidden: e.stats.Hidden}
	all.Kernel = all.Wall - e.idleTime
	if !e.idle.IsZero() && e.idle.Before(now) {
		all.Kernel -= now.Sub(e.idle)
	}
	if !e.hidden.IsZero() {
		all.Hidden += now.Sub(e.hidden)
	}
	r, b := &e.rounds[e.round], e.before
	r.Wall += all.Wall - b.Wall
	r.Kernel += all.Kernel - b.Kernel
	r.Exposed += all.Exposed - b.Exposed
	r.Hidden += all.Hidden - b.Hidden
	e.before = all
}
