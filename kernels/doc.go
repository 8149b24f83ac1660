// Package kernels computes attention of a rank's queries against one chunk of
// keys: the ring.Backend of the CPU, in C, and Reference, the slow truth in Go.
//
// rattn.h is the C interface, which a GPU fills too; table makes any such table of
// functions a ring.Backend. The kernels know intervals of keys and nothing else of
// masks, and nothing of ranks. Nothing here does I/O or logs.
package kernels
