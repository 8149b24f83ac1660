// Command ringattn computes exact attention of long sequences, forward and
// backward, over the ranks of an MPI job. See README.md.
package main

import (
	"os"
	"runtime"

	"ringattn/cmd"
)

// MPI and CUDA calls must come from one thread: the main goroutine keeps it.
func init() { runtime.LockOSThread() }

func main() { os.Exit(cmd.Main(os.Args[1:])) }
