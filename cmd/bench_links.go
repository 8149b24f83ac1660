package cmd

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/spf13/pflag"

	"ringattn/cases"
	"ringattn/report"
	"ringattn/ring"
)

// linkWarmup is how many messages of each size go first. The first one of a pair of ranks may
// take 100 times as long as others, and those of a GPU's memory settle after a few of each of the
// two that are sent in turn.
const linkWarmup = 8

// sizes is a flag of sizes in bytes, with commas between them or given several times.
type sizes []int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"", 1}}

func (s *sizes) Type() string { return "sizes" }

func (s *sizes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int64(*s)), " ", ","), "[]")
}

func (s *sizes) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		for _, unit := range sizeUnits {
			digits, ok := strings.CutSuffix(strings.TrimSpace(part), unit.name)
			if !ok {
				continue
			}
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || n < 1 || n > math.MaxInt64/16/unit.bytes {
				return fmt.Errorf("%q is no size of a message, like 4096, 64KiB or 256MiB", part)
			}
			*s = append(*s, n*unit.bytes)
			break
		}
	}
	return nil
}

// shapes are those of the flags; with --links there may be none.
func (b *benchOptions) shapes(f *pflag.FlagSet, s *shapeFlags, o *options) (list []cases.Shape, err error) {
	if len(b.links) > 0 && !f.Changed("seq") {
		err = s.absent(f, "--links without --seq")
		for _, name := range []string{"pass", "expect", "trace", "layout", "shards", "schedule", "ulysses", "wire-gradients", "stage-tokens", "grain", "ranks-per-node", "machine"} {
			if err == nil && f.Changed(name) {
				err = usageError("--%s is about results of shapes, and does not go with --links without --seq", name)
			}
		}
	} else {
		list, err = s.list(f, o.override)
	}
	b.common = ring.Shape{DType: dtypeNames[s.dtype], HeadDim: s.headDim}
	return list, err
}

func (b *benchOptions) validateLinks() error {
	for i, n := range b.links {
		if slices.Contains(b.links[:i], n) {
			return usageError("--links has %d bytes twice", n)
		}
	}
	if len(b.links) > 0 && b.output == "csv" && b.out == "" {
		return usageError("--output csv has no lines of --links; table, jsonl and go do, and --out FILE")
	}
	return nil
}

// link measures messages of a size.
func (r *benchReport) link(ctx context.Context, size int64) error {
	w, b := r.world, r.options
	key := r.keyOf(fmt.Sprintf("messages of %d bytes", size), b.common.HeadDim)
	if wrong, done := r.done[key]; done {
		if wrong {
			r.wrong++
		}
		r.progress.step(float64(size))
		return nil
	}
	l := linkTest{hardware: hardware{world: w}, bytes: size}
	if err := l.acquire(ctx, b.common, l.wants); err != nil {
		return err
	}
	if err := r.begin(ctx, &l.hardware); err != nil {
		return err
	}
	mine, err := l.run(ctx, max(b.warmup, linkWarmup), b.repeats)
	if err != nil {
		return err
	}
	kind := l.links.kind(w)
	l.close()
	ranks, err := gatherAll(ctx, w, mine)
	if err != nil || w.Rank() != 0 {
		return err
	}
	r.progress.clear()
	defer r.progress.step(float64(size))
	x := linkRecord{"link", report.Link{Key: key, Bytes: size, Ranks: w.Size(), Backend: r.mine.Backend, Transport: kind, Hosts: slices.Max(w.nodes()) + 1}}
	for _, of := range ranks {
		if of.Wrong != "" {
			x.Wrong++
			w.log.Error().Msgf("--links: %s", of.Wrong)
		}
	}
	r.wrong += x.Wrong
	if x.Wrong == 0 {
		for i := range b.repeats {
			slowest := 0.0
			for _, of := range ranks {
				slowest = max(slowest, of.TimeS[i])
			}
			x.RepeatS = append(x.RepeatS, slowest)
		}
		for _, of := range ranks {
			x.RankS = append(x.RankS, newQuantiles(of.TimeS).Median)
		}
		x.TimeS = newQuantiles(x.RepeatS)
		x.GBPerS, x.MedianRankGBPerS = x.GBPerSOf(x.TimeS.Median), x.GBPerSOf(newQuantiles(x.RankS).Median)
	}
	for _, p := range r.printers {
		if err := p.link(x); err != nil {
			return err
		}
	}
	return nil
}

// linkTest sends messages from each rank to the next and receives from the one before, at once,
// in the memory and by the transport of keys and values.
type linkTest struct {
	hardware
	bytes int64
}

// linkRank is what a rank tells of them.
type linkRank struct {
	TimeS []float64 // of each repeat, until the message has come and the own one has gone
	Wrong string    // what came that was not sent; "": nothing
}

// stride is the bytes of a message's memory: two that are sent in turn, and one that receives.
func (l *linkTest) stride() int64 { return (l.bytes + 255) &^ 255 }

// wants has two buffers of numbers, see run.
func (l *linkTest) wants() (host, messages int64) { return 2 * bufferBytes, 3 * l.stride() }

// run times repeats after the warm-up, then checks what the last has brought. Every receive is
// posted before any rank sends.
func (l *linkTest) run(ctx context.Context, warmup, repeats int) (x linkRank, err error) {
	w := l.world
	rank, ranks := w.Rank(), w.Size()
	next, before := (rank+1)%ranks, (rank+ranks-1)%ranks
	memory, err := l.backend.Alloc(3 * l.stride())
	if err != nil {
		return x, fmt.Errorf("rank %d: messages of %d bytes: %w", rank, l.bytes, err)
	}
	at := func(i int) unsafe.Pointer { return unsafe.Add(memory, int64(i)*l.stride()) }
	for i := range 2 {
		for first, part := range message(rank, i, l.bytes) {
			if err := l.backend.Write(unsafe.Add(at(i), first), part); err != nil {
				return x, err
			}
		}
	}
	links, start := l.links.Comm, w.Comm
	// In a sleep between polls a fast link carries tens of mebibytes.
	links.Pace, start.Pace = ring.Polling, ring.Polling
	last := warmup + repeats - 1
	for i := range last + 1 {
		receive, err := links.Irecv(at(2), l.bytes, before, ring.FirstTag)
		if err != nil {
			return x, err
		}
		if err := start.Barrier(ctx); err != nil {
			return x, err
		}
		began := time.Now()
		send, err := links.Isend(at(i%2), l.bytes, next, ring.FirstTag)
		if err != nil {
			return x, err
		}
		if err := links.WaitAll(ctx, []ring.Transfer{
			{Request: receive, Op: "receive", Peer: before, Tag: ring.FirstTag, Bytes: l.bytes},
			{Request: send, Op: "send", Peer: next, Tag: ring.FirstTag, Bytes: l.bytes},
		}); err != nil {
			return x, err
		}
		if i >= warmup {
			x.TimeS = append(x.TimeS, time.Since(began).Seconds())
		}
	}
	got := make([]byte, min(l.bytes, bufferBytes))
	for first, part := range message(before, last, l.bytes) {
		got = got[:len(part)]
		if err := l.backend.Read(got, unsafe.Add(at(2), first)); err != nil {
			return x, err
		}
		if !bytes.Equal(got, part) {
			i := 0
			for got[i] == part[i] {
				i++
			}
			x.Wrong = fmt.Sprintf("rank %d received from rank %d %d bytes, of which number %d is %#02x, and was sent as %#02x",
				rank, before, l.bytes, first+int64(i), got[i], part[i])
			break
		}
	}
	l.backend.Free(memory)
	return x, nil
}

// message is what a rank sends in a repeat, in parts that are good until the next: random numbers
// of the rank, with each bit turned over in every second repeat, so that no byte of the message
// before passes for one of this.
func message(rank, repeat int, size int64) iter.Seq2[int64, []byte] {
	return func(use func(first int64, part []byte) bool) {
		random, flip := rand.NewPCG(uint64(rank), 0), -uint64(repeat%2)
		part := make([]byte, min((size+7)&^7, bufferBytes))
		for first := int64(0); first < size; first += bufferBytes {
			for i := 0; i < len(part); i += 8 {
				binary.LittleEndian.PutUint64(part[i:], random.Uint64()^flip)
			}
			if !use(first, part[:min(int64(len(part)), size-first)]) {
				return
			}
		}
	}
}
