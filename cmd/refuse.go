package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"ringattn/mpi"
	"ringattn/ring"
)

// startedMPI is set when this process has tried to start MPI: it cannot do so twice.
var startedMPI bool

func startMPI() (*mpi.Communicator, error) {
	startedMPI = true
	return mpi.Start()
}

// refusal is why a rank does not begin; Text is "" for one that would.
type refusal struct {
	Text, Host string
	Code       int
}

func refusalOf(err error) (x refusal) {
	if err != nil {
		x.Text, x.Code = err.Error(), exitCode(err)
		x.Host, _ = os.Hostname()
	}
	return x
}

// gatherRefusals gives every rank everybody's refusal, and who is the first with one; -1: none.
func gatherRefusals(ctx context.Context, w *world, mine refusal) (all []refusal, first int, err error) {
	if all, err = shareAll(ctx, w, mine); err != nil {
		return nil, -1, err
	}
	return all, slices.IndexFunc(all, func(x refusal) bool { return x.Text != "" }), nil
}

// shareRefusals is the first thing that the ranks of a job do together: each tells whether
// it refuses to begin, and why. If one does, none begins. What several say is printed once,
// by the first of them. The error has been printed then; its code is the rank's own, or that
// of the first that refuses.
func shareRefusals(ctx context.Context, c ring.Comm, mine error) error {
	x := refusalOf(mine)
	all, first, err := gatherRefusals(ctx, &world{Comm: c}, x)
	if err != nil {
		return errors.Join(mine, err)
	}
	if first < 0 {
		return nil
	}
	same := func(y refusal) bool { return y.Text == x.Text }
	switch {
	case mine == nil:
		mine = withCode(all[first].Code, fmt.Errorf("rank %d refuses to go on", first))
	case slices.IndexFunc(all, same) < c.Rank():
	case !slices.ContainsFunc(all, func(y refusal) bool { return !same(y) }):
		fmt.Fprintf(os.Stderr, "ringattn: error: %v\n", mine)
	default:
		fmt.Fprintf(os.Stderr, "ringattn: error: rank %d of %d (%s): %v\n", c.Rank(), c.Size(), x.Host, mine)
	}
	return errors.Join(errReported, mine)
}

// allOrNone is shareRefusals for ranks that have begun: all have err, or none. Those of one
// process have one who tells anyway.
func (w *world) allOrNone(ctx context.Context, err error) error {
	if w.shared {
		return err
	}
	return shareRefusals(ctx, w.Comm, err)
}

// agreed gives all ranks the error of the first that has one, as one that all know: rank 0
// tells it. Those of one process have one who tells anyway.
func (w *world) agreed(ctx context.Context, mine error) error {
	if w.shared {
		return mine
	}
	all, first, err := gatherRefusals(ctx, w, refusalOf(mine))
	switch {
	case err != nil:
		return errors.Join(mine, err)
	case first < 0:
		return nil
	}
	x := all[first]
	text := x.Text
	if slices.ContainsFunc(all, func(y refusal) bool { return y.Text != x.Text }) {
		text = fmt.Sprintf("rank %d of %d (%s): %s", first, w.Size(), x.Host, text)
	}
	return known(withCode(x.Code, errors.New(text)))
}

// refusalTimeout is for a rank whose flags, --timeout among them, may not have been read.
const refusalTimeout = time.Minute

// alone are the commands that never start MPI.
var alone = []string{"plan", "version", "report", "man", "help", "completion"}

// refuseToBegin prints why a command has not begun. Where this process is a rank of a job, all
// ranks come together for it.
func refuseToBegin(ctx context.Context, c *cobra.Command, err error) error {
	launch := mpi.Launched()
	ofJob := mpi.Built && launch.Size > 1 && !launch.Bare && !slices.Contains(alone, c.Name())
	if ofJob && !startedMPI {
		if _, _, wrong := pieceBytes(); wrong != nil {
			_ = os.Unsetenv(mpi.PieceBytesEnv) // MPI would not start with it
		}
		if comm, failed := startMPI(); failed == nil {
			inMPI = true
			if shared := shareRefusals(ctx, ring.Comm{Transport: comm, Timeout: refusalTimeout}, err); errors.Is(shared, errReported) {
				return errors.Join(shared, stopMPI(refusalTimeout))
			}
			defer abort(exitCode(err))
		}
	}
	// Each by itself then, rank 0 first: launchers may end the others when it has ended.
	if ofJob && launch.Rank > 0 {
		interruptOf(ctx).wait(lastWord, err)
	}
	fmt.Fprintf(os.Stderr, "ringattn: error: %v\n", err)
	return errors.Join(errReported, err)
}
