package cmd

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"ringattn/kernels"
	"ringattn/mpi"
)

// checkEnvironment refuses what variables of the environment say wrongly, before anything
// is started. docs/ENVIRONMENT.md lists them.
func (o *options) checkEnvironment() error {
	if o.threads == 0 {
		if _, _, err := environmentThreads(); err != nil {
			return err
		}
	}
	if force := os.Getenv(mpi.ForceDeviceEnv); !slices.Contains([]string{"", "0", "1"}, force) {
		return environmentError("%s is %q, want 1 or 0", mpi.ForceDeviceEnv, force)
	}
	for _, name := range []string{"RINGATTN_TEST_BLOCK_BYTES", "RINGATTN_TEST_BUFFER_BYTES", "RINGATTN_TEST_FREE_BYTES"} {
		if _, _, err := testBytes(name); err != nil {
			return err
		}
	}
	if _, _, err := pieceBytes(); err != nil {
		return err
	}
	if _, _, err := kernelDelay(); err != nil {
		return err
	}
	if isa, all := testISA(), kernels.ISAs(); isa != "" && len(all) > 0 && !slices.Contains(all, isa) {
		return environmentError("RINGATTN_TEST_ISA is %q; there is: %s", isa, strings.Join(all, ", "))
	}
	return nil
}

// environmentThreads is how many threads a rank has by the environment, and the variable
// that says so; 0 where none does.
func environmentThreads() (n int, name string, err error) {
	for _, name := range []string{"OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"} {
		text := os.Getenv(name)
		if text == "" {
			continue
		}
		first, _, _ := strings.Cut(text, ",") // OpenMP has one number a level
		n, err := strconv.Atoi(strings.TrimSpace(first))
		if err != nil || n < 1 {
			return 0, "", environmentError("%s is %q, want a number of threads", name, text)
		}
		return n, name, nil
	}
	return 0, "", nil
}

// testBytes is the number of bytes that a test switch gives, where it is set.
func testBytes(name string) (n int64, set bool, err error) {
	text := os.Getenv(name)
	if text == "" {
		return 0, false, nil
	}
	if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < 1 {
		return 0, false, environmentError("%s is %q, want a number of bytes", name, text)
	}
	return n, true, nil
}

// pieceBytes is the size of pieces that a test switch has messages cut into.
func pieceBytes() (n int64, set bool, err error) {
	if n, set, err = testBytes(mpi.PieceBytesEnv); n > mpi.PieceBytes {
		err = environmentError("%s is %d, want at most %d", mpi.PieceBytesEnv, n, mpi.PieceBytes)
	}
	return n, set, err
}

// kernelDelay is by how much RINGATTN_TEST_KERNEL_DELAY delays kernels, and on which rank,
// "" for all: a duration, behind a number and a colon where it is for one.
func kernelDelay() (by time.Duration, rank string, err error) {
	text := os.Getenv("RINGATTN_TEST_KERNEL_DELAY")
	if text == "" {
		return 0, "", nil
	}
	rank, duration, of := strings.Cut(text, ":")
	if !of {
		rank, duration = "", text
	}
	if by, err = time.ParseDuration(duration); err != nil {
		return 0, "", environmentError("RINGATTN_TEST_KERNEL_DELAY is %q, want a duration", text)
	}
	return by, rank, nil
}

// testISA names the instruction set that the CPU's kernels are to use; "": the best.
func testISA() string { return os.Getenv("RINGATTN_TEST_ISA") }
