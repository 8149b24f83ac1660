package mpi

import (
	"errors"
	"strings"
	"testing"
)

func env(words string) Lookup {
	m := map[string]string{}
	for _, w := range strings.Fields(words) {
		name, value, _ := strings.Cut(w, "=")
		m[name] = value
	}
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func TestLaunched(t *testing.T) {
	none := Launch{Rank: -1, LocalRank: -1}
	for _, c := range []struct {
		name, env string
		want      Launch
	}{
		{"nothing", "", none},
		{
			"Open MPI's mpirun inside a step of two daemons",
			"OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_RANK=5 PMIX_NAMESPACE=154042 " +
				"SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=8",
			Launch{8, "OMPI_COMM_WORLD_SIZE", 5, "OMPI_COMM_WORLD_RANK", 1, "OMPI_COMM_WORLD_LOCAL_RANK", false},
		},
		{
			"MPICH's hydra inside a step of two proxies",
			"PMI_SIZE=6 PMI_RANK=4 PMI_FD=8 MPI_LOCALRANKID=2 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0",
			Launch{6, "PMI_SIZE", 4, "PMI_RANK", 2, "MPI_LOCALRANKID", false},
		},
		{
			"Cray's PALS",
			"PMI_SIZE=8 PMI_RANK=5 PALS_LOCAL_RANKID=1 SLURM_LOCALID=0",
			Launch{8, "PMI_SIZE", 5, "PMI_RANK", 1, "PALS_LOCAL_RANKID", false},
		},
		{
			"srun --mpi=pmi2",
			"PMI_SIZE=4 PMI_RANK=3 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NTASKS=4",
			Launch{4, "PMI_SIZE", 3, "PMI_RANK", 1, "SLURM_LOCALID", false},
		},
		{
			"srun --mpi=pmix",
			"PMIX_RANK=3 PMIX_NAMESPACE=slurm.pmix.7.0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NTASKS=16",
			Launch{4, "SLURM_STEP_NUM_TASKS", 3, "PMIX_RANK", 1, "SLURM_LOCALID", false},
		},
		{
			"prterun inside a step of two daemons",
			"PMIX_RANK=3 PMIX_NAMESPACE=prterun-x SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_NTASKS=4",
			Launch{0, "", 3, "PMIX_RANK", -1, "", false},
		},
		{
			"srun --mpi=none with fewer tasks than the allocation",
			"SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=8",
			Launch{2, "SLURM_STEP_NUM_TASKS", 1, "SLURM_PROCID", 1, "SLURM_LOCALID", false},
		},
		{
			"MVAPICH2's mpirun_rsh",
			"MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_RANK=2 MV2_COMM_WORLD_LOCAL_RANK=0 SLURM_NTASKS=8",
			Launch{4, "MV2_COMM_WORLD_SIZE", 2, "MV2_COMM_WORLD_RANK", 0, "MV2_COMM_WORLD_LOCAL_RANK", false},
		},
		{
			"a batch script's own shell",
			"SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0",
			Launch{8, "SLURM_NTASKS", 0, "SLURM_PROCID", 0, "SLURM_LOCALID", true},
		},
		{"case F5", "SLURM_NTASKS=4 SLURM_PROCID=2 PMI_SIZE=4", Launch{4, "PMI_SIZE", -1, "", -1, "", false}},
		{"no numbers", "OMPI_COMM_WORLD_SIZE=many PMI_SIZE=0 SLURM_NTASKS=-1 MV2_COMM_WORLD_SIZE=", none},
	} {
		if got := LaunchedFrom(env(c.env)); got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

func TestCheckWorld(t *testing.T) {
	const batch, step = "SLURM_NTASKS=4 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2"
	for _, c := range []struct {
		name, env string
		world     int
		ranks     bool
		want      []string // in the error; none: no error
	}{
		{"alone", "", 1, false, nil},
		{"alone with --ranks", "", 1, true, nil},
		{"MPI without a known launcher", "", 4, false, nil},
		{"equal", "PMI_SIZE=4", 4, false, nil},
		{"one launched process with --ranks", "OMPI_COMM_WORLD_SIZE=1", 1, true, nil},
		{"--ranks in a batch script", batch, 1, true, nil},
		{"plain call in a batch script", batch, 1, false, []string{"4", "SLURM_NTASKS=4", "1", "--ranks"}},
		{"--ranks 4 in a launched job of one", "PMI_SIZE=1", 4, true, nil},
		{"--ranks 4 in a launched job of four", step, 4, true, []string{"4", "SLURM_STEP_NUM_TASKS=4", "--ranks"}},
		{"--ranks in a job", step, 1, true, []string{"4", "SLURM_STEP_NUM_TASKS=4", "--ranks"}},
		{"singletons", "PMI_SIZE=4 SLURM_NTASKS=4 SLURM_PROCID=3", 1, false, []string{"4", "PMI_SIZE=4", "MPI says 1"}},
		{"left over", "OMPI_COMM_WORLD_SIZE=3", 2, false, []string{"OMPI_COMM_WORLD_SIZE=3", "MPI says 2", "unset"}},
	} {
		err := LaunchedFrom(env(c.env)).CheckWorld(c.world, c.ranks)
		if (err != nil) != (c.want != nil) || err != nil && !errors.Is(err, ErrWorldSize) {
			t.Errorf("%s: got error %v", c.name, err)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in the error: %v", c.name, part, err)
			}
		}
	}
}

func TestCause(t *testing.T) {
	for _, c := range []struct {
		env            string
		openMPI, mpich bool
		want           string
	}{
		{"OMPI_COMM_WORLD_SIZE=4", false, true, "use MPICH's mpiexec"},
		{"PMI_SIZE=4", true, false, "srun --mpi=pmix"},
		{"PMIX_RANK=0 SLURM_STEP_NUM_TASKS=4", false, true, "srun --mpi=pmix started an MPICH program"},
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4", false, true, "use srun --mpi=pmi2"},
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4", true, false, "use srun --mpi=pmix"},
		{"PMI_SIZE=4", false, true, "left over"},
		{"SLURM_NTASKS=4", true, false, "--ranks"},
	} {
		if got := LaunchedFrom(env(c.env)).cause(1, true, c.openMPI, c.mpich); !strings.Contains(got, c.want) {
			t.Errorf("%s, Open MPI %v, MPICH %v: %q is not in %q", c.env, c.openMPI, c.mpich, c.want, got)
		}
	}
	if got := LaunchedFrom(env("PMI_SIZE=4")).cause(1, false, false, false); !strings.Contains(got, "built without MPI") {
		t.Errorf("without MPI: %q", got)
	}
}

func TestCheckEnvironment(t *testing.T) {
	const slurmStep = "SLURM_STEP_ID=0 SLURM_NODELIST=n1 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 "
	for _, c := range []struct {
		name, env      string
		openMPI, mpich bool
		want           string // in the error; empty: no error
	}{
		{"nothing, Open MPI", "", true, false, ""},
		{"nothing, MPICH", "", false, true, ""},
		{"case F5, Open MPI", "SLURM_NTASKS=4 SLURM_PROCID=2 PMI_SIZE=4", true, false, ""},
		{"case F5, MPICH", "SLURM_NTASKS=4 SLURM_PROCID=2 PMI_SIZE=4", false, true, ""},
		{"srun --mpi=none, Open MPI", slurmStep, true, false, "SLURM_STEP_NUM_TASKS=4"},
		{"srun --mpi=none, MPICH", slurmStep, false, true, ""},
		{"srun --mpi=pmix, Open MPI", slurmStep + "PMIX_RANK=1 PMIX_SERVER_URI41=x", true, false, ""},
		{"srun --mpi=pmi2, Open MPI", slurmStep + "PMI_FD=9", true, false, ""},
		{"mpirun in a step, Open MPI", slurmStep + "OMPI_COMM_WORLD_SIZE=4", true, false, ""},
		{"live PMI, MPICH", "PMI_FD=7 PMI_SIZE=4", false, true, ""},
		{"stale PMI, MPICH", "PMI_FD=8 PMI_SIZE=4", false, true, "PMI_FD=8"},
		{"no number, MPICH", "PMI_FD=x", false, true, "PMI_FD=x"},
		{"stale PMI, Open MPI", "PMI_FD=8", true, false, ""},
	} {
		err := checkEnvironment(env(c.env), func(fd int) bool { return fd == 7 }, c.openMPI, c.mpich)
		switch {
		case c.want == "" && err == nil:
		case err == nil || c.want == "":
			t.Errorf("%s: got error %v, want %q", c.name, err, c.want)
		case !errors.Is(err, ErrLauncher) || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %q is not in the error: %v", c.name, c.want, err)
		}
	}
}

func TestPieceBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"": PieceBytes, "1": 1, "1000": 1000, "268435456": PieceBytes,
		"0": -1, "-5": -1, "1e3": -1, "268435457": -1, "many": -1,
	} {
		got, err := pieceBytes(env(PieceBytesEnv + "=" + text))
		if want < 0 && (err == nil || !strings.Contains(err.Error(), PieceBytesEnv+"="+text)) || want > 0 && (err != nil || got != want) {
			t.Errorf("%q: got %d, error %v", text, got, err)
		}
	}
	if got, err := pieceBytes(env("")); got != PieceBytes || err != nil {
		t.Errorf("not set: got %d, error %v", got, err)
	}
}

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		e    Error
		want string
	}{
		{
			Error{3, "receive from", 2, 9, 100, "", "got 60"},
			"mpi: rank 3: receive from rank 2, tag 9: wanted 100 bytes, got 60",
		},
		{
			Error{Rank: 1, Op: "MPI_Init_thread", Peer: -1, Class: "MPI_ERR_OTHER", Text: "known error not in list"},
			"mpi: rank 1: MPI_Init_thread, MPI_ERR_OTHER: known error not in list",
		},
	} {
		if got := c.e.Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
