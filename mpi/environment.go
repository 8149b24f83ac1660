package mpi

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
)

// ErrLauncher is wrapped by errors of Start about environments in which MPI_Init
// would end the process with a text of its own.
var ErrLauncher = errors.New("this MPI cannot be started by this launcher")

// pmixServers are the variables by which a PMIx server says where it is.
var pmixServers = []string{
	"PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI21", "PMIX_SERVER_URI2", "PMIX_SERVER_URI",
}

// checkEnvironment finds the cases, seen with Open MPI 4.1 and MPICH 4.0, in
// which MPI_Init aborts: Open MPI in a step of SLURM without a PMIx server, and
// MPICH with a PMI_FD that is no connection.
func checkEnvironment(lookup Lookup, isConnection func(fd int) bool, openMPI, mpich bool) error {
	set := func(names ...string) bool {
		for _, name := range names {
			if _, ok := lookup(name); ok {
				return true
			}
		}
		return false
	}
	if openMPI && set("SLURM_STEP_ID") && set("SLURM_NODELIST") &&
		!set("OMPI_COMM_WORLD_SIZE", "PMI_FD") && !set(pmixServers...) {
		return fmt.Errorf("mpi: %w: a step of SLURM (SLURM_STEP_ID) without a PMIx server, and MPI_Init of Open MPI "+
			"aborts in one; start it with srun --mpi=pmix, with mpirun from the batch script, "+
			"or give --ranks N to run in this one process%s", ErrLauncher, said(LaunchedFrom(lookup)))
	}
	if text, ok := lookup("PMI_FD"); mpich && ok {
		if fd, err := strconv.Atoi(text); err != nil || fd < 0 || !isConnection(fd) {
			return fmt.Errorf("mpi: %w: PMI_FD=%s is no connection to a launcher, and MPI_Init of MPICH aborts on it; "+
				"start it with mpiexec or srun --mpi=pmi2, or unset PMI_FD%s", ErrLauncher, text, said(LaunchedFrom(lookup)))
		}
	}
	return nil
}

// said repeats the launcher's number of ranks for an error text.
func said(l Launch) string {
	if l.Size == 0 {
		return ""
	}
	return fmt.Sprintf(" (the launcher says %d ranks, %s=%d; MPI would find 1)", l.Size, l.SizeVar, l.Size)
}

// isConnection reports whether fd is open and a socket or a pipe.
func isConnection(fd int) bool {
	var s syscall.Stat_t
	if syscall.Fstat(fd, &s) != nil {
		return false
	}
	kind := s.Mode & syscall.S_IFMT
	return kind == syscall.S_IFSOCK || kind == syscall.S_IFIFO
}
