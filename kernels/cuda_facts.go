package kernels

// MaxCUDAHeadDim is the largest head_dim that the CUDA kernels take, in either pass.
// Smaller ones may be any: those that are no multiple of 8 (of 4 for f32) are padded in
// copies of q, kv and dout.
const MaxCUDAHeadDim = 576

// CUDAFacts is what CUDA this process has.
type CUDAFacts struct {
	Devices   int    // that it may use, CUDA_VISIBLE_DEVICES applied
	Why       error  // why there is none
	BuiltWith string // version of the runtime inside this binary, "" without the CUDA kernels
	Driver    string // newest version that the driver knows, "" without a driver
	Archive   string // which build of the kernels
}

// CUDADevice is a GPU as CUDA describes it.
type CUDADevice struct {
	Index      int // among those that this process may use
	Name       string
	UUID       string // GPU-...
	PCI        string // domain:bus:device.function
	Capability string // sm_90
	TotalBytes int64
	FreeBytes  int64 // when it was asked for
}
