//go:build !cuda || !cgo

package kernels

import (
	"errors"
	"unsafe"

	"ringattn/ring"
)

// CUDABuilt says whether the binary has the CUDA kernels.
const CUDABuilt = false

var errNoCUDA = errors.New("kernels: this binary was built without the CUDA kernels (make CUDA=yes NVCC=.../bin/nvcc)")

// CUDA fails: the binary was built without the CUDA kernels.
func CUDA(device int) (ring.Backend, error) { return nil, errNoCUDA }

// CUDAArchive says that there is no build of the kernels.
func CUDAArchive() string { return "" }

// LookCUDA says that the binary was built without the CUDA kernels.
func LookCUDA() CUDAFacts { return CUDAFacts{Why: errNoCUDA} }

// SelectCUDA fails.
func SelectCUDA(device int) (CUDADevice, error) { return CUDADevice{}, errNoCUDA }

// CopyCUDA fails.
func CopyCUDA(dst, src unsafe.Pointer, bytes int64) error { return errNoCUDA }

// WorkspaceCUDA is 0.
func WorkspaceCUDA(device int, s ring.Shape, rows, tokens int64, backward bool) int64 { return 0 }
