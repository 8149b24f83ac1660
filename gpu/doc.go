// Package gpu says which GPU a rank has and what can be read of it: names, clocks,
// power, energy, by NVIDIA's management library (NVML), which is loaded when it is asked
// for. A program with this package starts where there is no NVML.
//
// What cannot be read is absent, with the reason, and never 0: on a part of a GPU (MIG),
// for instance, NVML tells no clocks. The package computes nothing, and nothing that it
// fails to find out stops a run.
package gpu
