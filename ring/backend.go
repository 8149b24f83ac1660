package ring

import (
	"errors"
	"math"
	"unsafe"
)

// DType is the element type of q, k, v and dout. Softmax statistics, running
// outputs and gradient sums are float32 whatever the DType.
type DType int32

// The element types, numbered as in kernels/rattn.h.
const (
	F32 DType = iota
	BF16
	F16
)

// Size is the number of bytes of one element.
func (d DType) Size() int64 {
	if d == F32 {
		return 4
	}
	return 2
}

func (d DType) String() string {
	switch d {
	case F32:
		return "f32"
	case BF16:
		return "bf16"
	case F16:
		return "f16"
	}
	return "dtype?"
}

// Shape is what all calls of one job have in common. Heads is a multiple of
// KVHeads; query head h reads KV head h/(Heads/KVHeads).
type Shape struct {
	DType                   DType
	Heads, KVHeads, HeadDim int
	Scale                   float32 // of q.k
}

// KVTokenBytes is the size of a token's keys and values, [2, KVHeads, HeadDim].
func (s Shape) KVTokenBytes() int64 {
	return 2 * int64(s.KVHeads) * int64(s.HeadDim) * s.DType.Size()
}

// GradTokenBytes is the size of a token's dk and dv in float32, [2, KVHeads, HeadDim].
func (s Shape) GradTokenBytes() int64 { return 2 * int64(s.KVHeads) * int64(s.HeadDim) * 4 }

// Tensors are a rank's own tensors, in the backend's memory, token-major and in
// kernel order: T tokens, padding left out. Forward reads Q and KV and writes
// Out and LSE. Backward reads Q, KV, Out, LSE, DOut and writes Delta, DQ, DKV.
type Tensors struct {
	Tokens int

	Q  unsafe.Pointer // [T, Heads, HeadDim], DType
	KV unsafe.Pointer // [T, 2, KVHeads, HeadDim], DType: a token's keys, then its values

	Out unsafe.Pointer // [T, Heads, HeadDim], float32: the running output
	LSE unsafe.Pointer // [T, Heads], float32, natural logarithm

	DOut  unsafe.Pointer // [T, Heads, HeadDim], DType
	Delta unsafe.Pointer // [T, Heads], float32: out . dout
	DQ    unsafe.Pointer // [T, Heads, HeadDim], float32
	DKV   unsafe.Pointer // [T, 2, KVHeads, HeadDim], float32
}

// Rows says what queries see in one chunk of keys: query Start+t, 0 <= t < N,
// sees keys [Lo[t], Hi[t]) of the chunk; Lo[t] >= Hi[t] sees nothing. Lo and Hi
// are int32 arrays in the backend's memory. Of SpanRows queries in a row, counted from
// Start, the keys that any of them sees lie within Span keys, and touch some tiles of TileKeys
// keys, those between them counted; Tiles is the sum of these numbers. 0 says of either that it
// is not known.
type Rows struct {
	Start, N int
	Lo, Hi   unsafe.Pointer
	Span     int
	Tiles    int64
}

// SpanRows is how many queries Rows.Span and Rows.Tiles are about, TileKeys how many keys a tile has.
const (
	SpanRows = 128
	TileKeys = 64
)

// SpanOf computes Rows.Span and Rows.Tiles from all lo and hi.
func SpanOf(lo, hi []int32) (keys int, tiles int64) {
	span := int32(0)
	for start := 0; start < len(lo); start += SpanRows {
		first, end := int32(math.MaxInt32), int32(0)
		for t := start; t < min(start+SpanRows, len(lo)); t++ {
			if lo[t] < hi[t] {
				first, end = min(first, lo[t]), max(end, hi[t])
			}
		}
		if first < end {
			span = max(span, end-first)
			tiles += int64((end-1)/TileKeys - first/TileKeys + 1)
		}
	}
	return int(span), tiles
}

// MaxChunkTokens is how many keys kernels count with int32, tiles past the end included.
const MaxChunkTokens = math.MaxInt32 - 1024

// Chunk is a contiguous range of some rank's keys and values in the backend's
// memory, KV [Tokens, 2, KVHeads, HeadDim] in the shape's DType. More than MaxChunkTokens are
// refused.
type Chunk struct {
	Tokens int
	KV     unsafe.Pointer
}

// Rearrangement is what Backend.Move does: row To[i] of Dst becomes row From[i] of Src, for
// 0 <= i < N; a nil To or From is i. A row has Bytes bytes, and begins a stride after the
// one before it. With Add its float32 elements are added to those of Dst. No row of Dst is
// written twice, and Dst and Src do not overlap. To and From are int32 arrays in the
// backend's memory.
type Rearrangement struct {
	Dst, Src             unsafe.Pointer
	N                    int
	Bytes                int64
	DstStride, SrcStride int64
	To, From             unsafe.Pointer
	Add                  bool
}

// ErrMemory is wrapped by the error of an Alloc, or of a call that needs
// workspace, where there is not enough memory.
var ErrMemory = errors.New("not enough memory")

// Event marks a place in a backend's queue.
type Event int64

// Backend computes on one device, or on the CPU. Zero, Forward, Delta,
// Backward, Add, Round, AddRounded and Move enqueue and return; what is enqueued runs in
// order. All methods are called from one goroutine. An error names the call and the
// shape; after one the backend is good for Close alone.
type Backend interface {
	// Name says what computes, for instance "cpu avx2, 4 threads".
	Name() string

	// Alloc returns memory of the device, aligned to 64 bytes at least, content
	// undefined; Free gives it back once the queue has drained.
	Alloc(bytes int64) (unsafe.Pointer, error)
	Free(p unsafe.Pointer)
	// Write and Read copy between host and device memory. They wait for
	// everything enqueued before and return when the copy is complete.
	Write(dst unsafe.Pointer, src []byte) error
	Read(dst []byte, src unsafe.Pointer) error

	// Zero clears bytes bytes.
	Zero(p unsafe.Pointer, bytes int64) error

	// Forward folds the attention of rows to c into Out and LSE: with s =
	// scale q.k over the visible keys, m = ln sum exp s and o = sum exp(s-m) v,
	//
	//	lse' = ln(exp lse + exp m)
	//	out' = exp(lse-lse') out + exp(m-lse') o
	//
	// A row that sees nothing here keeps what it has. With first set nothing was
	// folded before: Out and LSE of the rows are written without being read (0
	// and -Inf where a row sees nothing).
	Forward(s Shape, t *Tensors, c Chunk, rows Rows, first bool) error

	// Delta computes delta[i,h] = out[i,h] . dout[i,h] for all tokens.
	Delta(s Shape, t *Tensors) error

	// Backward adds the contributions of rows and c to the gradients, from the
	// global Out, LSE and Delta: with p = exp(s - lse), ds = p (dout.v - delta),
	//
	//	DQ += scale ds k     dkv += (scale ds^T q, p^T dout)
	//
	// dkv is float32 [c.Tokens, 2, KVHeads, HeadDim], dk then dv of a token, sums
	// over the query heads of a group. With first set DQ of the rows is written
	// without being read; dkv is always added to. No atomics: the result is the
	// same to the bit for any number of threads.
	Backward(s Shape, t *Tensors, c Chunk, rows Rows, dkv unsafe.Pointer, first bool) error

	// Add computes dst[i] += src[i] over n float32 elements.
	Add(dst, src unsafe.Pointer, n int64) error
	// Round writes n float32 elements of src as bfloat16 to dst, rounded to nearest, ties
	// to even; NaN stays NaN. AddRounded computes dst[i] += src[i] of float32 dst and
	// bfloat16 src. What they read and write does not overlap.
	Round(dst, src unsafe.Pointer, n int64) error
	AddRounded(dst, src unsafe.Pointer, n int64) error
	// Move copies rows, or adds them.
	Move(m Rearrangement) error

	// Record marks the end of what is enqueued so far, never with 0 once there
	// was something; Query reports whether the
	// queue has come past the mark; Sync waits until the queue is empty. An error
	// of an enqueued call comes back from Query or Sync.
	Record() (Event, error)
	Query(e Event) (bool, error)
	Sync() error

	Close() error
}

// Device is a Backend whose memory the host cannot reach. Messages take such memory
// where the Transport knows it; else package staged sends copies of it.
type Device interface {
	Backend
	Copier
}

// Copier copies between host and device memory beside the kernels of a Device, and in no
// order with them: the source must be complete, and nothing may use the destination
// until the copy is done.
type Copier interface {
	// HostAlloc returns host memory that copies are fastest from and to (page-locked, for
	// a GPU), content undefined; HostFree gives it back.
	HostAlloc(bytes int64) (unsafe.Pointer, error)
	HostFree(p unsafe.Pointer)
	// CopyOut starts a copy of device memory to memory of HostAlloc, CopyIn one the
	// other way.
	CopyOut(host, src unsafe.Pointer, bytes int64) (Copy, error)
	CopyIn(dst, host unsafe.Pointer, bytes int64) (Copy, error)
	// Copied reports whether a copy is done. After true it is gone.
	Copied(c Copy) (bool, error)
}

// Copy names a copy that is under way. The zero value is no copy.
type Copy int64
