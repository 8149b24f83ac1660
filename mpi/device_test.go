package mpi

import (
	"strings"
	"testing"
)

func TestDeviceMemory(t *testing.T) {
	const (
		open4   = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"
		open5   = "Open MPI v5.0.7, package: Open MPI"
		mpich   = "MPICH Version: 4.2.0 MPICH Release date: Fri Feb 9 12:29:21 CST 2024"
		cray    = "MPI VERSION : CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)"
		mvapich = "MVAPICH2 Version : 2.3.7"
		intel   = "Intel(R) MPI Library 2021.14 for Linux* OS"
	)
	type env = map[string]string
	for _, c := range []struct {
		name           string
		version        string
		query, enabled int
		env            env
		mapped         string
		want           DeviceState
	}{
		{"Open MPI built without", open4, 0, 1, nil, "", DeviceNo},
		{"Open MPI built with", open4, 1, 1, nil, "", DeviceYes},
		{"Open MPI 5 with the component", open5, 1, -1, nil, "", DeviceYes},
		{"Open MPI 5 without the component", open5, 0, -1, nil, "", DeviceNo},
		{"Open MPI built with and switched off", open4, 1, 0, nil, "", DeviceNo},
		{"Open MPI, headers without the query", open4, -1, 1, nil, "", DeviceUnknown},
		{"Open MPI over UCX without CUDA", open4, 1, 1, nil, "libucp.so", DeviceUnknown},
		{"Open MPI over UCX with CUDA", open4, 1, 1, nil, "libucp.so libuct_cuda.so", DeviceYes},
		{"Open MPI, forced", open4, 0, 0, env{ForceDeviceEnv: "1"}, "", DeviceForced},
		{"Open MPI, not forced", open4, 0, 0, env{ForceDeviceEnv: "0"}, "", DeviceNo},
		{"MPICH built without", mpich, 0, -1, nil, "", DeviceNo},
		{"MPICH built with", mpich, 1, -1, nil, "", DeviceYes},
		{"MPICH switched off", mpich, 1, -1, env{"MPIR_CVAR_ENABLE_GPU": "0"}, "", DeviceNo},
		{"MPICH, headers without the query", mpich, -1, -1, nil, "", DeviceUnknown},
		{"MPICH, another's variables", mpich, 0, -1, env{"MPICH_GPU_SUPPORT_ENABLED": "1", "MV2_USE_CUDA": "1"}, "libmpi_gtl_cuda", DeviceNo},
		{"Cray, nothing set", cray, -1, -1, nil, "libmpi_gtl_cuda", DeviceNo},
		{"Cray, nothing linked", cray, 1, -1, env{"MPICH_GPU_SUPPORT_ENABLED": "1"}, "", DeviceNo},
		{"Cray", cray, -1, -1, env{"MPICH_GPU_SUPPORT_ENABLED": "1"}, "libmpi_gtl_cuda", DeviceYes},
		{"MVAPICH", mvapich, -1, -1, nil, "", DeviceUnknown},
		{"MVAPICH switched on", mvapich, -1, -1, env{"MV2_USE_CUDA": " 1 "}, "", DeviceYes},
		{"MVAPICH with a query", mvapich, 1, -1, nil, "", DeviceYes},
		{"Intel", intel, -1, -1, nil, "", DeviceNo},
		{"Intel, half", intel, -1, -1, env{"I_MPI_OFFLOAD": "1"}, "", DeviceNo},
		{"Intel, other half", intel, 1, -1, env{"I_MPI_OFFLOAD_MODE": "cuda"}, "", DeviceNo},
		{"Intel, switched on", intel, -1, -1, env{"I_MPI_OFFLOAD": "1", "I_MPI_OFFLOAD_MODE": "CUDA"}, "", DeviceYes},
		{"nobody knows", "Fujitsu MPI Library 4.0.1", 1, -1, nil, "", DeviceUnknown},
		{"nothing", "", -1, -1, nil, "", DeviceUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := deviceMemory(deviceFacts{
				version: c.version, query: c.query, enabled: c.enabled,
				lookup: func(name string) (string, bool) { v, ok := c.env[name]; return v, ok },
				mapped: func(name string) bool { return strings.Contains(c.mapped, name) },
			})
			if got.State != c.want || got.Why == "" {
				t.Errorf("got %v (%s), want %v", got.State, got.Why, c.want)
			}
		})
	}
}
