// Package segments knows which query sees which key, and in which form a rank
// holds its part of a batch. It is pure: no I/O, no clock, no goroutine.
//
// # One interval a query
//
// Query i sees key j of the same batch row if and only if
//
//	(a) causal implies j <= i, and a window W > 0 implies i - j < W, or else
//	    both lie in one image block and the mask is vision-bidirectional;
//	(b) both are tokens of one document;
//	(c) neither is padding.
//
// Within a document the visible keys of query i are therefore the tokens at
// positions [lo(i), hi(i)): (a) is the union of two ranges that both contain i.
// Sort the tokens of a rank by (row, document, position) and leave padding out:
// the kernel order. Then the keys of any rank that any query sees are one
// interval of that rank's kernel order, because a document is contiguous in it
// and sorted by position. lo and hi never decrease with i, so that long stretches
// of queries are described by a few numbers (Run).
//
// A Batch is a Mask and a Layout, solved: the kernel order of each rank, and the
// runs of each pair of ranks. It is made once per batch and serves every layer
// and pass.
//
// The package does not know heads, head sizes or bytes.
package segments
