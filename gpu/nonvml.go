//go:build !cuda || !cgo || !linux

package gpu

import "errors"

var errNoNVML = errors.New("gpu: this binary was built without the CUDA kernels, and without NVML")

// Open fails: the binary was built without NVML.
func Open() (lib Library, close func(), err error) { return nil, nil, errNoNVML }

// ReadIndex reads nothing.
func ReadIndex(index int, uuid string) Facts { return None(errNoNVML) }
