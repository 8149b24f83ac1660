package mpi

import (
	"fmt"
	"strings"
)

// DeviceState is an answer to the question whether an MPI takes device pointers.
type DeviceState int

// The answers. Forced is a user's who knows better: nothing has said so, or even no.
const (
	DeviceUnknown DeviceState = iota
	DeviceNo
	DeviceYes
	DeviceForced
)

func (s DeviceState) String() string {
	return [...]string{"unknown", "no", "yes", "forced"}[s]
}

// DeviceMemory says whether this MPI takes pointers to a GPU's memory, and how that is
// known.
type DeviceMemory struct {
	State DeviceState
	Why   string
}

// ForceDeviceEnv names the environment variable that, set to 1, says that this MPI takes
// device pointers, whatever it says itself. Where it does not, messages crash.
const ForceDeviceEnv = "RINGATTN_FORCE_DEVICE_MEMORY"

// deviceFacts is what the answer is made of. What is asked of the library is 1 for yes, 0
// for no, -1 where it does not say.
type deviceFacts struct {
	version string // MPI_Get_library_version
	query   int    // MPIX_Query_cuda_support or MPIX_GPU_query_support
	enabled int    // Open MPI's parameter opal_cuda_support
	lookup  Lookup
	mapped  func(library string) bool // is it in this process?
}

// deviceMemory decides without a trial: sending a device pointer through an MPI that does
// not know it crashes the process. Every word of an MPI was seen to be wrong somewhere,
// so that yes needs all that can be asked to say yes.
func deviceMemory(f deviceFacts) DeviceMemory {
	value := func(name string) string {
		text, _ := f.lookup(name)
		return strings.ToLower(strings.TrimSpace(text))
	}
	is := func(name string, values ...string) bool {
		for _, v := range values {
			if value(name) == v {
				return true
			}
		}
		return false
	}
	answer := func(s DeviceState, format string, a ...any) DeviceMemory {
		return DeviceMemory{s, fmt.Sprintf(format, a...)}
	}
	if is(ForceDeviceEnv, "1") {
		return answer(DeviceForced, "%s=1", ForceDeviceEnv)
	}
	kind := func(word string) bool { return strings.Contains(f.version, word) }
	switch {
	case kind("Open MPI"):
		// Before 5.0 the query says how the library was built, and nothing of the rest.
		switch {
		case f.query == 0:
			return answer(DeviceNo, "MPIX_Query_cuda_support says no")
		case f.query < 0:
			return answer(DeviceUnknown, "built with headers of an Open MPI without MPIX_Query_cuda_support")
		case f.enabled == 0:
			return answer(DeviceNo, "MPIX_Query_cuda_support says yes, and the parameter opal_cuda_support is off")
		case f.mapped("libucp.so") && !f.mapped("libuct_cuda.so"):
			return answer(DeviceUnknown, "MPIX_Query_cuda_support says yes, and messages may go through a UCX without its CUDA modules")
		}
		return answer(DeviceYes, "MPIX_Query_cuda_support says yes")
	case kind("CRAY MPICH"):
		// Without the library MPI_Init aborts where the variable is set; without the
		// variable a message crashes.
		const name = "MPICH_GPU_SUPPORT_ENABLED"
		switch {
		case !is(name, "1"):
			return answer(DeviceNo, "%s is not 1", name)
		case !f.mapped("libmpi_gtl_cuda"):
			return answer(DeviceNo, "%s=1, and libmpi_gtl_cuda is not linked", name)
		}
		return answer(DeviceYes, "%s=1 and libmpi_gtl_cuda is linked", name)
	case kind("MVAPICH"):
		switch {
		case is("MV2_USE_CUDA", "1"):
			return answer(DeviceYes, "MV2_USE_CUDA=1")
		case f.query == 1:
			return answer(DeviceYes, "MPIX_GPU_query_support says yes")
		}
		return answer(DeviceUnknown, "MV2_USE_CUDA is not 1")
	case kind("Intel(R) MPI"):
		if !is("I_MPI_OFFLOAD", "", "0") && is("I_MPI_OFFLOAD_MODE", "cuda") {
			return answer(DeviceYes, "I_MPI_OFFLOAD=%s, I_MPI_OFFLOAD_MODE=cuda", value("I_MPI_OFFLOAD"))
		}
		return answer(DeviceNo, "I_MPI_OFFLOAD and I_MPI_OFFLOAD_MODE=cuda are not both set")
	case kind("MPICH"):
		switch {
		case f.query == 0:
			return answer(DeviceNo, "MPIX_GPU_query_support says no")
		case is("MPIR_CVAR_ENABLE_GPU", "0", "false", "no"):
			return answer(DeviceNo, "MPIR_CVAR_ENABLE_GPU=%s", value("MPIR_CVAR_ENABLE_GPU"))
		case f.query < 0:
			return answer(DeviceUnknown, "built with headers of an MPICH without MPIX_GPU_query_support")
		}
		return answer(DeviceYes, "MPIX_GPU_query_support says yes")
	}
	return answer(DeviceUnknown, "this MPI is not one whose ways are known")
}
