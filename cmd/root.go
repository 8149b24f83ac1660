package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ringattn/mpi"
)

// Main runs the command line and returns its exit code. It is called from the
// main goroutine, locked to its thread.
func Main(args []string) (code int) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "ringattn: internal error: %v\n%s", p, debug.Stack())
			abort(exitInternal)
			code = exitInternal
		}
	}()
	ctx, stop := interruptible(context.Background())
	defer stop()
	root := newRoot(os.Stdout)
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	if err != nil && !errors.Is(err, errReported) {
		err = refuseToBegin(ctx, c, err)
	}
	return exitCode(err)
}

// errReported marks an error whose text has been printed.
var errReported = errors.New("")

func newRoot(out io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "ringattn",
		Short: "Exact attention of long sequences over the ranks of an MPI job",
		Long: `ringattn computes exact attention, forward and backward, of a sequence that is
sharded over the ranks of an MPI job. Start it with mpirun or srun, one rank a
process, or with --ranks N for N ranks inside one process.

Exit codes: 0 ok, 1 wrong result, 2 usage or bad input, 3 environment (launcher,
MPI, GPU, memory, ranks that disagree), 4 run-time failure, 5 a peer did not
answer in time, 70 internal error, 75 interrupted by a signal.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.PersistentPreRunE = noneEmpty // of all commands
	root.SetOut(out)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return withCode(exitUsage, err) })
	root.AddCommand(newRun(), newCheck(), newBench(), newReport(), newPlan(), newVersion(), newMan())
	for _, name := range []string{"sim", "doctor"} {
		root.AddCommand(&cobra.Command{
			Use: name, Short: "Not there yet", Hidden: true, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error { return usageError("the command %s is not there yet", name) },
		})
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

// grace is how long a command may go on after a signal: to leave no file behind,
// and no longer than launchers and people wait.
const grace = 5 * time.Second

// interrupt is what a signal does to the command of a context.
type interrupt struct {
	requested atomic.Bool // there was a signal
	patient   atomic.Bool // the command looks at requested, and ends by itself
	// leaving is the exit code, not 0, of a command that has said all it has to say, or lets
	// rank 0 say it, and is on its way out: a signal is then the launcher's, because another
	// rank has left before it.
	leaving atomic.Int32
}

// wait lets rank 0 say what is wrong. A signal meanwhile ends the process: another has spoken.
func (i *interrupt) wait(d time.Duration, err error) {
	i.leaving.Store(int32(exitCode(err)))
	time.Sleep(d)
	i.leaving.Store(exitOK)
}

// leave ends a process that is on its way out.
func (i *interrupt) leave() {
	if code := i.leaving.Load(); code != exitOK {
		os.Exit(int(code))
	}
}

type interruptKey struct{}

// interruptOf is the interrupt of a command's context; that of a context without one never comes.
func interruptOf(ctx context.Context) *interrupt {
	if i, ok := ctx.Value(interruptKey{}).(*interrupt); ok {
		return i
	}
	return new(interrupt)
}

// interruptible gives a context that INT, TERM, HUP and USR1 cancel with
// errInterrupted, unless the command is patient. A second signal, or the end of grace
// after a cancellation, ends the process.
func interruptible(parent context.Context) (context.Context, func()) {
	i := new(interrupt)
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, interruptKey{}, i))
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGHUP)
	go func() {
		if _, ok := <-signals; !ok {
			return
		}
		i.requested.Store(true)
		i.leave()
		var end <-chan time.Time
		if !i.patient.Load() {
			cancel(errInterrupted)
			end = time.After(grace)
		}
		select {
		case _, again := <-signals:
			if !again {
				return
			}
		case <-end:
		}
		i.leave()
		if mpi.Launched().Rank > 0 {
			time.Sleep(lastWord)
		}
		fmt.Fprintf(os.Stderr, "ringattn: error: %v\n", errInterrupted)
		os.Exit(exitInterrupted)
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}
