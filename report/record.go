package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Meta says what ran, and when.
type Meta struct {
	Version   string   `json:"version"`
	Revision  string   `json:"revision"`
	MPI       string   `json:"mpi"`
	Launch    string   `json:"launch"`
	Transport string   `json:"transport"`
	World     int      `json:"world"` // ranks of the job, of which those with a record were measured
	Args      []string `json:"args"`
	Started   string   `json:"started"`
}

// Rank says where a rank ran.
type Rank struct {
	Rank      int    `json:"rank"`
	Host      string `json:"host"`
	CPUs      string `json:"cpus"` // as 0-3,8
	Threads   int    `json:"threads"`
	Backend   string `json:"backend"`
	GPU       *GPU   `json:"gpu"` // nil: the CPU computed
	GPUShared bool   `json:"gpu_shared"`
}

// GPU is what the report needs of one.
type GPU struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
	NVML struct {
		Driver *string `json:"driver"`
	} `json:"nvml"`
}

// Key says what was timed.
type Key struct {
	Key       string `json:"key"` // of build, shape, pass, setting and world: what bench --resume goes by; may be ""
	Seq       int    `json:"seq"`
	Batch     int    `json:"batch"`
	Heads     int    `json:"heads"`
	KVHeads   int    `json:"kv_heads"`
	HeadDim   int    `json:"head_dim"`
	DType     string `json:"dtype"`
	Mask      string `json:"mask"`
	Pass      string `json:"pass"`
	Layout    string `json:"layout"`
	Schedule  string `json:"schedule"`
	Ulysses   int    `json:"ulysses"`        // ranks that exchange heads; 1: none do; 0: written before there was a choice
	Wire      string `json:"wire_gradients"` // as what gradients travel: f32, bf16; "": as above
	Ranks     int    `json:"ranks"`
	Backend   string `json:"backend"`
	Transport string `json:"transport"`
}

// Sample is one repeat.
type Sample struct {
	Key
	Repeat int       `json:"repeat"`
	TimeS  []float64 `json:"time_s"` // seconds, by rank
}

// Result is what bench made of the samples.
type Result struct {
	Key
	TimeS         *Quantiles `json:"time_s"` // nil of a wrong result
	KernelS       float64    `json:"kernel_s"`
	ExposedS      float64    `json:"exposed_s"`
	TFLOPSPerRank float64    `json:"tflops_per_rank"`
	PeakFraction  *float64   `json:"peak_fraction"` // nil where the peak is not known
	BytesSent     int64      `json:"bytes_sent"`    // by all ranks
	MemoryBytes   int64      `json:"memory_bytes"`  // of the fullest rank
	Wrong         int        `json:"wrong"`         // tensors beyond their bounds

	// 0 of a wrong result, and of records of versions that did not have them.
	TokensPerS      float64  `json:"tokens_per_s"`       // of all rows
	LinkGBPerS      float64  `json:"link_gb_per_s"`      // what the rank that sends most sends, over the median time
	EnergyJPerToken *float64 `json:"energy_j_per_token"` // of all GPUs; nil: not known

	// Nil of a wrong result, and of records of versions that did not have them.
	Breakdown      *Breakdown `json:"breakdown_s"`
	Overlap        *float64   `json:"overlap"`          // hidden / (hidden + exposed), over all ranks; nil: no messages
	OverlapByRound []*float64 `json:"overlap_by_round"` // the same of each round of the schedule

	// Nil without --machine, and of records of versions that did not have them.
	PredictedS *float64 `json:"predicted_s"` // of the plan, on the machine
	Machine    *Machine `json:"machine"`
}

// Machine is what a prediction takes a rank to be.
type Machine struct {
	TFLOPS         float64 `json:"tflops"`
	LinkGBPerS     float64 `json:"link_gb_per_s"`      // out, and as many in, within a node
	NodeLinkGBPerS float64 `json:"node_link_gb_per_s"` // the same between nodes
	StartS         float64 `json:"start_s"`            // that a kernel, or a message, takes besides
}

// Quantiles are of the slowest rank's time over repeats, in seconds.
type Quantiles struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	P95    float64 `json:"p95"` // nearest rank
	Max    float64 `json:"max"`
}

// Run is one call of bench.
type Run struct {
	Meta
	Where string // file:line
	Ranks []Rank
}

// file is that of Where.
func (r *Run) file() string { return r.Where[:max(0, strings.LastIndexByte(r.Where, ':'))] }

// Point is one result of a run, with its samples.
type Point struct {
	Result
	Samples []Sample
	Run     *Run
	Where   string // file:line
}

// File is what a file holds.
type File struct {
	Runs   []*Run
	Points []*Point
	Links  []Link
	Notes  []string // what was left out, and why
}

// Read reads the JSON Lines of bench: runs one after another, each of which begins with its
// meta and rank records. Fields and types of records that are not known are passed over. The
// last line of a run may be cut off, and its last samples may have no result: bench was
// stopped there. name is the file's, for messages.
func Read(name string, r io.Reader) (*File, error) {
	p := parser{name: name, file: new(File)}
	lines := bufio.NewReader(r)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("report: read %s: %w", name, err)
		}
		p.line++
		p.size += len(text)
		if len(strings.TrimSpace(string(text))) > 0 {
			if err := p.add(text); err != nil {
				return nil, fmt.Errorf("report: %s: %w", p.where(p.line), err)
			}
		}
		if err != nil {
			break
		}
	}
	p.end()
	if p.size == 0 {
		p.note("%s is empty: a bench that had nothing to do, or was stopped before its first point", name)
	} else if len(p.file.Runs) == 0 {
		return nil, fmt.Errorf("report: %s has no record of ringattn bench --output jsonl", name)
	}
	return p.file, nil
}

// parser is where Read is in a file.
type parser struct {
	name    string
	line    int
	size    int // bytes
	file    *File
	run     *Run
	pending []Sample // whose result is still to come
	torn    int      // the line that is cut off; 0: none
}

func (p *parser) where(line int) string { return p.name + ":" + strconv.Itoa(line) }

func (p *parser) note(format string, args ...any) {
	p.file.Notes = append(p.file.Notes, fmt.Sprintf(format, args...))
}

func (p *parser) add(text []byte) error {
	var record struct {
		Type string `json:"type"`
	}
	if !json.Valid(text) {
		if p.torn > 0 {
			return errors.New("not a line of JSON, and neither is one before")
		}
		p.torn = p.line
		return nil
	}
	if err := json.Unmarshal(text, &record); err != nil {
		return err
	}
	switch {
	case record.Type == "meta":
		p.end()
		p.run = &Run{Where: p.where(p.line)}
		p.file.Runs = append(p.file.Runs, p.run)
		return json.Unmarshal(text, &p.run.Meta)
	case p.torn > 0:
		return fmt.Errorf("line %d is cut off, but is not the last of its run", p.torn)
	case record.Type == "":
		return errors.New("a record without a type")
	case p.run == nil:
		return fmt.Errorf("a %s before any meta: the beginning of the file is missing", record.Type)
	case record.Type == "rank":
		var r Rank
		if err := json.Unmarshal(text, &r); err != nil {
			return err
		}
		if r.Rank != len(p.run.Ranks) {
			return fmt.Errorf("rank %d where rank %d is due", r.Rank, len(p.run.Ranks))
		}
		p.run.Ranks = append(p.run.Ranks, r)
	case record.Type == "sample":
		var s Sample
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		if len(s.TimeS) != s.Ranks {
			return fmt.Errorf("a sample of %d ranks with the times of %d", s.Ranks, len(s.TimeS))
		}
		p.pending = append(p.pending, s)
	case record.Type == "result":
		return p.result(text)
	case record.Type == "link":
		return p.link(text)
	}
	return nil
}

func (p *parser) result(text []byte) error {
	x := &Point{Run: p.run, Where: p.where(p.line)}
	if err := json.Unmarshal(text, &x.Result); err != nil {
		return err
	}
	switch {
	case min(x.Seq, x.Batch, x.Heads, x.KVHeads, x.HeadDim, x.Ranks) < 1:
		return errors.New("a result without seq, batch, heads, kv_heads, head_dim or ranks")
	case x.Pass != "forward" && x.Pass != "backward":
		return fmt.Errorf("the pass of a result is %q, want forward or backward", x.Pass)
	case x.Ranks != len(p.run.Ranks):
		return fmt.Errorf("a result of %d ranks in a run with the records of %d", x.Ranks, len(p.run.Ranks))
	case x.Wrong == 0 && (x.TimeS == nil || !(x.TimeS.Median > 0) || !(x.TFLOPSPerRank > 0)):
		return errors.New("a result that is not wrong, and has no time or no tflops_per_rank")
	case x.PredictedS != nil && !(*x.PredictedS > 0):
		return fmt.Errorf("a result that is predicted to take %g s", *x.PredictedS)
	}
	p.pending = slices.DeleteFunc(p.pending, func(s Sample) bool {
		if s.Key == x.Key {
			x.Samples = append(x.Samples, s)
		}
		return s.Key == x.Key
	})
	p.file.Points = append(p.file.Points, x)
	return nil
}

// end notes what a run began and did not finish.
func (p *parser) end() {
	if p.torn > 0 {
		p.note("%s: the line is cut off, and left out", p.where(p.torn))
	}
	for len(p.pending) > 0 {
		key := p.pending[0].Key
		all := len(p.pending)
		p.pending = slices.DeleteFunc(p.pending, func(s Sample) bool { return s.Key == key })
		p.note("%s: not finished, and left out after %s: %s", p.run.Where, plural(all-len(p.pending), "repeat"), key.text())
	}
	p.torn = 0
}

// text is the key for people.
func (k *Key) text() string {
	return fmt.Sprintf("%s, S %d, %s, %s, %s, transport %s, %s", k.Mask, k.Seq, k.config(), plural(k.Ranks, "rank"), k.Backend, k.Transport, k.Pass)
}

// Exchange is the schedule, and how heads and gradients travel where that is not the default.
func (k *Key) Exchange() string {
	text := k.Schedule
	if k.Ulysses > 1 {
		text += fmt.Sprintf(",ulysses:%d", k.Ulysses)
	}
	if k.Wire != "" && k.Wire != "f32" {
		text += ",wire:" + k.Wire
	}
	return text
}

// config is what rows of a table have in common whatever it is about, but mask and pass.
func (k *Key) config() string {
	return fmt.Sprintf("B %d, heads %d/%d, D %d, %s, %s, %s", k.Batch, k.Heads, k.KVHeads, k.HeadDim, k.DType, k.Layout, k.Exchange())
}

// Right reports whether the point has figures to show.
func (x *Point) Right() bool { return x.Wrong == 0 }

// FLOPs of all ranks, as bench counted them.
func (x *Point) FLOPs() float64 {
	return x.TFLOPSPerRank * 1e12 * float64(x.Ranks) * x.TimeS.Median
}

// PairsPerRank is the visible pairs, which FLOPs are proportional to, over the ranks.
func (x *Point) PairsPerRank() float64 {
	perPair := 4 * float64(x.Heads) * float64(x.HeadDim)
	if x.Pass == "backward" {
		perPair *= 2.5
	}
	return x.FLOPs() / perPair / float64(x.Ranks)
}

// RankTimes are the medians over repeats of each rank's time, in seconds; nil without samples.
func (x *Point) RankTimes() []float64 {
	if len(x.Samples) == 0 {
		return nil
	}
	times := make([]float64, x.Ranks)
	of := make([]float64, len(x.Samples))
	for rank := range times {
		for i, s := range x.Samples {
			of[i] = s.TimeS[rank]
		}
		slices.Sort(of)
		times[rank] = (of[(len(of)-1)/2] + of[len(of)/2]) / 2
	}
	return times
}

// Other is the mean over ranks and repeats of the time with neither kernel nor exposed
// wait, in seconds; ok is false without samples.
func (x *Point) Other() (seconds float64, ok bool) {
	sum, n := 0.0, 0
	for _, s := range x.Samples {
		for _, t := range s.TimeS {
			sum += t
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	return max(0, sum/float64(n)-x.KernelS-x.ExposedS), true
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
