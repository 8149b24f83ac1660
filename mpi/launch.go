package mpi

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Lookup reads an environment variable, as os.LookupEnv does.
type Lookup func(name string) (value string, set bool)

// Launch is what the launcher said about this process through the environment.
// Each number comes with the name of the variable that it was read from, empty
// where nothing said it.
type Launch struct {
	Size         int // of the job; 0: nobody said
	SizeVar      string
	Rank         int // -1: nobody said
	RankVar      string
	LocalRank    int // among the ranks of this node; -1: nobody said
	LocalRankVar string

	// Bare says that the size is no more than SLURM_NTASKS: that of the
	// allocation, which a batch script's own shell has too.
	Bare bool
}

// launchers lists who may have started this process, the most specific word
// first. Open MPI's own comes before SLURM's step because its mpirun starts a
// daemon per node through srun, so that the step then counts daemons; hydra
// (MPICH) does the same and sets PMI_SIZE.
var launchers = []struct {
	size             string
	needs            string // a variable that must be there as well
	ranks, localRank []string
	bare             bool
}{
	{size: "OMPI_COMM_WORLD_SIZE", ranks: []string{"OMPI_COMM_WORLD_RANK"}, localRank: []string{"OMPI_COMM_WORLD_LOCAL_RANK"}},
	{size: "PMI_SIZE", ranks: []string{"PMI_RANK"}, localRank: []string{"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID"}},
	{size: "SLURM_STEP_NUM_TASKS", needs: "PMIX_RANK", ranks: []string{"PMIX_RANK"}, localRank: []string{"SLURM_LOCALID"}},
	{size: "SLURM_STEP_NUM_TASKS", needs: "SLURM_PROCID", ranks: []string{"SLURM_PROCID"}, localRank: []string{"SLURM_LOCALID"}},
	{size: "MV2_COMM_WORLD_SIZE", ranks: []string{"MV2_COMM_WORLD_RANK"}, localRank: []string{"MV2_COMM_WORLD_LOCAL_RANK"}},
	{size: "SLURM_NTASKS", ranks: []string{"SLURM_PROCID"}, localRank: []string{"SLURM_LOCALID"}, bare: true},
}

// Launched reads what the launcher said from the environment.
func Launched() Launch { return LaunchedFrom(os.LookupEnv) }

// LaunchedFrom is Launched with another environment. A variable that does not
// hold a number of its kind counts as not set.
func LaunchedFrom(lookup Lookup) Launch {
	l := Launch{Rank: -1, LocalRank: -1}
	number := func(name string, least int) (int, bool) {
		text, _ := lookup(name)
		n, err := strconv.Atoi(text)
		return n, err == nil && n >= least
	}
	first := func(names []string) (int, string) {
		for _, name := range names {
			if n, ok := number(name, 0); ok {
				return n, name
			}
		}
		return -1, ""
	}
	// A PMIx server other than SLURM's (prterun) does not say the size, and a
	// step around it counts its daemons.
	space, _ := lookup("PMIX_NAMESPACE")
	foreign := space != "" && !strings.HasPrefix(space, "slurm.")
	for _, by := range launchers {
		if by.needs != "" {
			if _, ok := number(by.needs, 0); !ok {
				continue
			}
		}
		if foreign && strings.HasPrefix(by.size, "SLURM_") {
			continue
		}
		n, ok := number(by.size, 1)
		if !ok {
			continue
		}
		l.Size, l.SizeVar, l.Bare = n, by.size, by.bare
		l.Rank, l.RankVar = first(by.ranks)
		l.LocalRank, l.LocalRankVar = first(by.localRank)
		return l
	}
	l.Rank, l.RankVar = first([]string{"PMIX_RANK"})
	return l
}

// ErrWorldSize is wrapped by errors that say that launcher and MPI disagree
// about the number of ranks.
var ErrWorldSize = errors.New("launcher and MPI do not agree on the number of ranks")

// CheckWorld compares the number of ranks that found each other, worldSize, with
// the launcher's. Without MPI worldSize is 1: each process is alone. ranksFlag
// says that --ranks was given, which runs all ranks in this process, however
// many: allowed in a bare allocation, but not in a launched job of several
// processes; worldSize does not matter then.
func (l Launch) CheckWorld(worldSize int, ranksFlag bool) error {
	if ranksFlag {
		if l.Size <= 1 || l.Bare {
			return nil
		}
		return fmt.Errorf("mpi: %w: the launcher started %d processes (%s=%d) and --ranks runs all ranks inside one: "+
			"leave --ranks out, or start one process", ErrWorldSize, l.Size, l.SizeVar, l.Size)
	}
	if l.Size == 0 || l.Size == worldSize {
		return nil
	}
	return fmt.Errorf("mpi: %w: the launcher says %d (%s=%d), MPI says %d: %s",
		ErrWorldSize, l.Size, l.SizeVar, l.Size, worldSize, l.cause(worldSize, Built, isOpenMPI(), isMPICH()))
}

// cause is the likely reason of a difference and what to do.
func (l Launch) cause(worldSize int, built, openMPI, mpich bool) string {
	switch {
	case l.Bare:
		return "inside an allocation, but not started by srun or mpirun; " +
			"start it with one of them, or give --ranks N to run in this one process"
	case worldSize > 1:
		return "the variable may be left over from an outer job; unset it"
	case !built:
		return "this binary was built without MPI, so each process is alone; build it with `make MPICC=mpicc`"
	case l.SizeVar == "OMPI_COMM_WORLD_SIZE" && mpich:
		return "mpirun of Open MPI started an MPICH program, so each process is alone; use MPICH's mpiexec"
	case l.SizeVar == "PMI_SIZE" && openMPI:
		return "a PMI launcher (mpiexec of MPICH, srun --mpi=pmi2) started an Open MPI program, so each process " +
			"is alone; use Open MPI's mpirun or srun --mpi=pmix"
	case l.RankVar == "PMIX_RANK" && mpich:
		return "srun --mpi=pmix started an MPICH program, so each process is alone; use srun --mpi=pmi2"
	case strings.HasPrefix(l.SizeVar, "SLURM_") && mpich:
		return "srun gave MPICH no PMI, so each process is alone; use srun --mpi=pmi2"
	case strings.HasPrefix(l.SizeVar, "SLURM_") && openMPI:
		return "srun gave Open MPI no PMIx, so each process is alone; use srun --mpi=pmix or mpirun"
	}
	return "each process is alone: it was not started by the launcher of the MPI that it was built with, " +
		"or the variable is left over from another job"
}
