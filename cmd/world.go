package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/mpi"
	"ringattn/ring"
)

// world is what a rank knows of the job it is part of.
type world struct {
	ring.Comm
	options *options
	out     io.Writer // results: of rank 0; discards elsewhere
	log     zerolog.Logger
	host    hostFacts
	hosts   []hostFacts // of all ranks
	command string      // its name
	launch  string      // who started the ranks
	shared  bool        // all ranks are one process
	threads int
	why     string              // where threads comes from
	divided bool                // from the CPUs
	crowded string              // what crowding says
	gpu     *kernels.CUDADevice // that computes, nil: none
	noGPU   error               // why none, where one was looked for
	gpuFree int64               // bytes before the first tensors, 0: not asked yet
	takes   mpi.DeviceMemory    // does the transport take device memory?
}

// inMPI is set while MPI runs: errors must then end the whole job.
var inMPI bool

// abort ends an MPI job, all its ranks, with an exit code.
func abort(code int) {
	if inMPI {
		mpi.Abort(code)
	}
}

// runWorld brings up the ranks and runs body on each: in this process those
// that --ranks asks for, else this process's rank of the MPI job. The error of
// the rank that failed first ends the command.
func runWorld(cmd *cobra.Command, o *options, body func(context.Context, *world) error) error {
	if err := o.validate(cmd.Flags()); err != nil {
		return err
	}
	if err := o.checkEnvironment(); err != nil {
		return err
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	named := func(ctx context.Context, w *world) error {
		w.command = cmd.Name()
		return body(ctx, w)
	}
	launch := mpi.Launched()
	if o.ranks > 0 {
		if err := launch.CheckWorld(o.ranks, true); err != nil {
			return err
		}
		if o.expectRanks > 0 && o.expectRanks != o.ranks {
			return environmentError("--expect-ranks %d, and --ranks %d", o.expectRanks, o.ranks)
		}
		return runInProcess(ctx, o, out, o.ranks, "--ranks, in one process", named)
	}
	if !mpi.Built {
		if err := launch.CheckWorld(1, false); err != nil {
			return err
		}
		if o.expectRanks > 1 {
			return environmentError("--expect-ranks %d, and this build has no MPI: there is 1 rank", o.expectRanks)
		}
		return runInProcess(ctx, o, out, 1, "one process, built without MPI", named)
	}
	w := &world{options: o, launch: launchText(launch)}
	// The GPU comes before MPI, but for a launcher that does not say the local rank.
	early := launch.LocalRank >= 0 || launch.Size <= 1 && launch.Rank <= 0
	var refused error
	if early {
		refused = w.chooseGPU(max(0, launch.LocalRank))
	}
	c, err := startMPI()
	if err != nil {
		return errors.Join(refused, withCode(exitEnvironment, err))
	}
	inMPI = true
	w.Comm = ring.Comm{Transport: c, Timeout: o.timeout}
	w.takes = mpi.TakesDeviceMemory()
	if !early {
		refused = w.chooseGPU(mpi.LocalRank())
	}
	switch checked := launch.CheckWorld(c.Size(), false); {
	case checked != nil:
		refused = checked
		if launch.Rank > 0 && c.Rank() == 0 { // each is alone
			interruptOf(ctx).wait(lastWord, checked)
		}
	case o.expectRanks > 0 && o.expectRanks != c.Size():
		refused = environmentError("--expect-ranks %d, and the MPI world has %s", o.expectRanks, plural(c.Size(), "rank"))
	}
	if err = shareRefusals(ctx, w.Comm, refused); err == nil {
		err = w.run(ctx, out, named)
	}
	if errors.Is(err, errWrong) || errors.Is(err, errStopped) || errors.As(err, new(knownError)) || errors.Is(err, errReported) {
		// All ranks know it, so that one can tell and the job end in order: the exit
		// code of an abort does not come through every launcher. It tells while all are
		// there: once a rank has left with a code other than 0, launchers end the others.
		if c.Rank() == 0 && !errors.Is(err, errReported) {
			fmt.Fprintf(os.Stderr, "ringattn: error: %v\n", err)
		}
		interruptOf(ctx).leaving.Store(int32(exitCode(err)))
		if failed := stopMPI(o.timeout); failed != nil {
			reportRank(ctx, w.Rank(), c.Size(), failed)
		}
		return errors.Join(errReported, err)
	}
	if err != nil {
		reportRank(ctx, w.Rank(), c.Size(), err)
		abort(exitCode(err))
		return errors.Join(errReported, err)
	}
	return withCode(exitRuntime, stopMPI(o.timeout))
}

// stopMPI ends MPI, or the process where MPI_Finalize does not return: what was
// to be done has been done by then, so that a hang would be for nothing.
func stopMPI(timeout time.Duration) error {
	if timeout > 0 {
		defer time.AfterFunc(timeout, func() {
			fmt.Fprintf(os.Stderr, "ringattn: error: MPI_Finalize did not return in %v; the results are complete\n", timeout)
			os.Exit(exitTimeout)
		}).Stop()
	}
	return mpi.Stop()
}

// launchText says who started the ranks.
func launchText(l mpi.Launch) string {
	if l.Size == 0 {
		return "one process, no launcher"
	}
	return fmt.Sprintf("%s=%d", l.SizeVar, l.Size)
}

// Rank 0 speaks first: what is wrong on every rank is then told once, since its abort ends
// the others. They wait for that so long; where a signal has come, which may be the launcher's
// for another rank's abort, longer than it takes from TERM to KILL: a second in Open MPI.
const (
	firstWord = 500 * time.Millisecond
	lastWord  = 1500 * time.Millisecond
)

// reportRank prints a rank's error.
func reportRank(ctx context.Context, rank, size int, err error) {
	if rank > 0 {
		wait := firstWord
		if errors.Is(err, errInterrupted) {
			wait = lastWord
		}
		interruptOf(ctx).wait(wait, err)
	}
	if size > 1 {
		host, _ := os.Hostname()
		fmt.Fprintf(os.Stderr, "ringattn: error: rank %d of %d (%s): %v\n", rank, size, host, err)
	} else {
		fmt.Fprintf(os.Stderr, "ringattn: error: %v\n", err)
	}
	// What a launcher has not forwarded when the job is aborted, some lose.
	time.Sleep(100 * time.Millisecond)
}

func runInProcess(ctx context.Context, o *options, out io.Writer, ranks int, launch string, body func(context.Context, *world) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var first sync.Once
	var cause error
	var all sync.WaitGroup
	var options []inproc.Option
	takes := mpi.DeviceMemory{State: mpi.DeviceNo, Why: "the ranks of one process copy host memory"}
	if o.wantsGPU() && kernels.LookCUDA().Devices > 0 {
		options = append(options, inproc.Copy(kernels.CopyCUDA))
		takes = mpi.DeviceMemory{State: mpi.DeviceYes, Why: "the ranks of one process copy by CUDA"}
	}
	for _, end := range inproc.New(ranks, options...) {
		all.Go(func() {
			w := &world{Comm: ring.Comm{Transport: end, Timeout: o.timeout}, options: o, launch: launch, shared: true, takes: takes}
			err := guarded(func() error {
				if err := w.chooseGPU(end.Rank()); err != nil {
					return err
				}
				return w.run(ctx, out, body)
			})
			if err != nil {
				first.Do(func() { cause = err })
				cancel(fmt.Errorf("rank %d failed", end.Rank()))
			}
		})
	}
	all.Wait()
	return cause
}

// guarded makes a panic an internal error.
func guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &coded{exitInternal, fmt.Errorf("internal error: %v\n%s", p, debug.Stack())}
		}
	}()
	return do()
}

// run is the life of one rank.
func (w *world) run(ctx context.Context, out io.Writer, body func(context.Context, *world) error) error {
	level, err := zerolog.ParseLevel(w.options.logLevel)
	if err != nil {
		return usageError("--log-level: %w", err)
	}
	w.host = readHost()
	if w.gpu != nil {
		w.host.GPU, w.host.GPUModel = w.gpu.UUID, w.gpu.Name+" "+w.gpu.Capability
	}
	w.log = zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true, TimeFormat: time.TimeOnly}).
		Level(level).With().Timestamp().Int("rank", w.Rank()).Str("host", w.host.Host).Logger()
	w.out = io.Discard
	if w.Rank() == 0 {
		w.out = out
	}
	if w.hosts, err = shareAll(ctx, w, w.host); err != nil {
		return err
	}
	if err := w.chooseThreads(); err != nil {
		return err
	}
	w.logGPU()
	w.log.Debug().Str("launch", w.launch).Str("cpus", formatList(w.host.CPUs)).Int("threads", w.threads).Str("why", w.why).Msg("up")
	w.crowded = w.crowding()
	if w.Rank() == 0 && w.crowded != "" {
		w.log.Warn().Msg(w.crowded)
	}
	return body(ctx, w)
}

// chooseThreads finds how many threads the rank computes with.
func (w *world) chooseThreads() error {
	share := w.sharers(w.Rank())
	if w.options.threads > 0 {
		w.threads, w.why = w.options.threads, "--threads"
		return nil
	}
	switch n, name, err := environmentThreads(); {
	case err != nil:
		return err
	case n > 0:
		w.threads, w.why = n, name
		return nil
	}
	w.threads, w.why = w.host.threads(share), fmt.Sprintf("%s, shared by %s", plural(w.host.CPULimit, "allowed CPU"), plural(share, "rank"))
	w.divided = true
	return nil
}

// threads is a rank's part of its CPUs where share ranks, it among them, have them.
func (h *hostFacts) threads(share int) int { return max(1, h.CPULimit/share) }

// overlaps tells whether two ranks share a CPU.
func (h *hostFacts) overlaps(o *hostFacts) bool {
	return h.Host == o.Host && slices.ContainsFunc(h.CPUs, func(c int) bool { return slices.Contains(o.CPUs, c) })
}

// sharers counts the ranks, r included, whose CPUs overlap with those of rank r.
func (w *world) sharers(r int) int {
	n := 0
	for i := range w.hosts {
		if w.hosts[i].overlaps(&w.hosts[r]) {
			n++
		}
	}
	return max(n, 1)
}

// crowding says which ranks that compute on the CPU have fewer CPUs than they and those
// that share them have threads, "" if there are none. A number of threads that is given is
// taken to be that of all ranks.
func (w *world) crowding() string {
	first, crowded := "", 0
	for r := range w.hosts {
		h, share := &w.hosts[r], w.sharers(r)
		threads := w.threads
		if w.divided {
			threads = h.threads(share)
		}
		if h.GPU != "" || threads*share <= h.CPULimit {
			continue
		}
		if crowded++; crowded == 1 {
			first = fmt.Sprintf("rank %d: %s of %s share %s (%s of %s)", r, plural(threads*share, "thread"), plural(share, "rank"),
				plural(h.CPULimit, "CPU"), formatList(h.CPUs), h.Host)
		}
	}
	switch {
	case crowded == 0:
		return ""
	case crowded > 1:
		first += fmt.Sprintf("; so it is for %s in all", plural(crowded, "rank"))
	}
	return first + ": kernels and exchange will wait for each other"
}
