//go:build standin

package cmd

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/ring/devicetest"
)

// standIn makes devices of the CPU backends of the ranks that RINGATTN_TEST_DEVICE lists,
// as in 0,2, or of all, with memory of the stand-in for the CUDA driver (mpi/standin).
func standIn(b ring.Backend, rank int) (ring.Backend, error) {
	list := os.Getenv("RINGATTN_TEST_DEVICE")
	if list != "all" && !slices.Contains(strings.Split(list, ","), strconv.Itoa(rank)) {
		return b, nil
	}
	memory, err := kernels.OpenStandIn()
	if err != nil {
		return nil, err
	}
	return devicetest.New(b, memory), nil
}
