package cmd

import (
	"context"
	"errors"
	"fmt"

	"ringattn/mpi"
	"ringattn/ring"
	"ringattn/shard"
)

// The exit codes.
const (
	exitOK          = 0
	exitWrong       = 1  // a result is wrong
	exitUsage       = 2  // usage, or bad input
	exitEnvironment = 3  // launcher, MPI, GPU, memory, ranks that disagree
	exitRuntime     = 4  // MPI or a device failed while running
	exitTimeout     = 5  // a peer did not answer in time
	exitInternal    = 70 // a broken invariant of our own
	exitInterrupted = 75 // a signal
)

// coded is an error that knows its exit code.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &coded{code, err}
}

func usageError(format string, args ...any) error {
	return &coded{exitUsage, fmt.Errorf(format, args...)}
}

func environmentError(format string, args ...any) error {
	return &coded{exitEnvironment, fmt.Errorf(format, args...)}
}

var (
	errWrong       = &coded{exitWrong, errors.New("the result is wrong")}
	errInterrupted = errors.New("interrupted by a signal")
	errStopped     = fmt.Errorf("%w", errInterrupted) // on all ranks, between two of their steps
)

// exitCode is the code that a command's error ends with.
func exitCode(err error) int {
	var c *coded
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, shard.ErrInput):
		return exitUsage
	case errors.Is(err, mpi.ErrWorldSize), errors.Is(err, ring.ErrMemory):
		return exitEnvironment
	case errors.Is(err, ring.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	}
	return exitRuntime
}
