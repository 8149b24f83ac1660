// Package shard carries tensors between a file in token order and a rank in
// kernel order.
//
// Input describes a file of q, k, v and what goes with them, checked in full
// before any of it is used. ReadRows gives what the ids and masks say (one rank
// reads and encodes them for the others). A Mover then copies a rank's own
// tokens, and no others, from the file into token-major memory [T, H, D] and
// back: the permutation and the conversion of results happen there once.
//
// The package does not talk to other ranks and computes nothing.
package shard
