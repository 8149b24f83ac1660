// Package ring turns a batch into plans, and a plan into attention.
//
// A plan is data: for each rank and pass a list of small steps (Step): receive,
// send, wait, zero, attend, add. A pure function makes it (Job.Plan), Job.Check
// proves it, Exec carries it out over a Transport and a Backend, and whoever
// wants to show, time or count it reads the same list. A new schedule is a new
// planner and nothing else.
//
// # How a ring works here
//
// Each rank owns the queries, keys and values of its tokens. Queries never
// move. The keys and values of a rank, its chunk, pass from rank to rank along
// the ring; a rank attends its queries to the chunk that has come, folds the
// result into its running output (online softmax), and passes the chunk on.
// Backward, the chunk travels again, and the float32 sums of its gradients
// follow one step behind until they come home to the owner.
//
// With the direct schedule each owner sends each rank just what its queries see, and
// gets the gradients of just that back.
//
// With Ulysses groups of ranks exchange heads before and after a pass, and the schedule
// goes over the groups: heads.go.
//
// The package is pure but for Exec: it opens no file, logs nothing, and knows
// neither MPI nor CUDA.
package ring
