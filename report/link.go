package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Link is what bench --links found with messages of one size: each rank sent one to the next
// and received one, at once. Times are in seconds, until a rank's message had gone and the other
// one had come.
type Link struct {
	Key       string `json:"key"` // as that of a result
	Bytes     int64  `json:"bytes"`
	Ranks     int    `json:"ranks"`
	Backend   string `json:"backend"`
	Transport string `json:"transport"`

	// Nil and 0 where something came that was not sent.
	TimeS            *Quantiles `json:"time_s"`
	GBPerS           float64    `json:"gb_per_s"`             // Bytes over the median time, in 10^9
	MedianRankGBPerS float64    `json:"median_rank_gb_per_s"` // the same of the median of RankS
	RepeatS          []float64  `json:"repeat_s"`             // of the slowest rank, by repeat
	RankS            []float64  `json:"rank_s"`               // by rank, medians over repeats

	Wrong int `json:"wrong"` // ranks to which something came that was not sent

	Hosts int `json:"-"` // different ones of the ranks, by their records
}

// Right reports whether the link has figures to show.
func (l *Link) Right() bool { return l.Wrong == 0 }

// GBPerSOf is the rate of a message that takes so many seconds.
func (l *Link) GBPerSOf(seconds float64) float64 { return float64(l.Bytes) / seconds / 1e9 }

func (p *parser) link(text []byte) error {
	var x Link
	if err := json.Unmarshal(text, &x); err != nil {
		return err
	}
	switch {
	case x.Bytes < 1 || x.Ranks < 2:
		return errors.New("a link without bytes, or of less than two ranks")
	case x.Ranks != len(p.run.Ranks):
		return fmt.Errorf("a link of %d ranks in a run with the records of %d", x.Ranks, len(p.run.Ranks))
	case x.Right() && (x.TimeS == nil || !(x.TimeS.Min > 0) || !(x.GBPerS > 0)):
		return errors.New("a link that is not wrong, and has no time or no gb_per_s")
	case x.Right() && !x.consistent():
		return errors.New("a link whose figures do not fit together")
	}
	x.Hosts = p.run.hosts()
	p.file.Links = append(p.file.Links, x)
	return nil
}

// sameRate is how far a rate may be from the bytes over the time of the same record.
const sameRate = 1e-9

// consistent reports whether the figures of a link can be of one measurement.
func (l *Link) consistent() bool {
	t := l.TimeS
	return t.Min <= t.Median && t.Median <= t.Max && math.Abs(l.GBPerS/l.GBPerSOf(t.Median)-1) < sameRate && l.MedianRankGBPerS >= l.GBPerS*(1-sameRate)
}

// linkAbout says what the figures of links are.
const linkAbout = "each rank sends a message to the next one and receives one, at once; of the slowest rank, over repeats; " +
	"GB/s: 10^9 bytes out of it, last out of the median rank"

var linkHead = []string{"message", "ranks", "hosts", "backend", "transport", "min ms", "median", "max", "GB/s", "min", "max", "median rank", "#wrong"}

func linkCells(links []Link) (rows [][]string) {
	for _, l := range links {
		row := []string{l.size(), strconv.Itoa(l.Ranks), strconv.Itoa(l.Hosts), l.Backend, l.Transport}
		if t := l.TimeS; t == nil || !l.Right() {
			row = append(row, wrongWord, "-", "-", "-", "-", "-", "-")
		} else {
			row = append(row, fmt.Sprintf("%.3f", t.Min*1e3), fmt.Sprintf("%.3f", t.Median*1e3), fmt.Sprintf("%.3f", t.Max*1e3),
				formatRate(l.GBPerS), formatRate(l.GBPerSOf(t.Max)), formatRate(l.GBPerSOf(t.Min)), formatRate(l.MedianRankGBPerS))
		}
		rows = append(rows, append(row, strconv.Itoa(l.Wrong)))
	}
	return rows
}

// size is that of a message as --links takes it.
func (l *Link) size() string {
	for unit, bytes := range []int64{1 << 30, 1 << 20, 1 << 10} {
		if l.Bytes%bytes == 0 {
			return fmt.Sprintf("%d %ciB", l.Bytes/bytes, "GMK"[unit])
		}
	}
	return fmt.Sprintf("%d B", l.Bytes)
}

// LinkText prints links as a table.
func LinkText(out io.Writer, links []Link) error {
	w := &textWriter{out: out}
	w.printf("# links: %s\n", linkAbout)
	w.table(linkHead, linkCells(links), false)
	return w.err
}
