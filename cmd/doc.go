// Package cmd is the command line: one file a subcommand.
//
// The main path is short. world.go brings up the ranks (MPI, or goroutines of
// one process) and runs a body on each; problem.go describes an attention
// problem, which comes from a file or from a closed form; attention.go makes it
// a rank's own: plan, memory, tensors, passes; run.go, check.go and plan.go use
// that. Only this package chooses transports and backends, logs, prints, and
// decides exit codes.
package cmd
