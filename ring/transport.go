package ring

import "unsafe"

// Request names one transfer that a Transport has started. The zero value is
// no transfer.
type Request int

// Transport moves bytes between the ranks of one job. All its methods are
// called from one goroutine, which for MPI and CUDA is locked to one thread.
//
// Messages between one pair of ranks with one tag arrive in the order in which
// they were sent (MPI's non-overtaking rule). A message may be of any size; a
// transport that has a limit cuts it into pieces, identically on both ends.
type Transport interface {
	// Rank is this end's number, 0 <= Rank < Size.
	Rank() int
	// Size is the number of ranks of the job.
	Size() int

	// Alloc returns zeroed host memory that Irecv and Isend accept and that the
	// garbage collector neither moves nor frees; Free gives it back.
	Alloc(bytes int64) (unsafe.Pointer, error)
	Free(p unsafe.Pointer)

	// Irecv starts receiving exactly bytes bytes from peer into p, Isend starts
	// sending them. Both return at once; p stays untouched (Irecv) or unwritten
	// (Isend) by the caller until Test has reported the request done. A receive
	// that meets a message of another size is an error of Test.
	Irecv(p unsafe.Pointer, bytes int64, peer, tag int) (Request, error)
	Isend(p unsafe.Pointer, bytes int64, peer, tag int) (Request, error)

	// Test reports whether r is done, and drives every other transfer of this
	// rank forward as well. After true the request is gone. An error says which
	// operation, peer, tag and size failed and why.
	Test(r Request) (bool, error)

	// Describe says in a few words what carries the messages.
	Describe() string
}

// Stager is a Transport that copies messages between device and host memory.
type Stager interface {
	// Copying reports whether a copy of a message of this rank is under way.
	Copying() bool
}
