//go:build cgo

package kernels

/*
#cgo CFLAGS: -std=c11 -O3 -Wall -Wextra -Werror
#cgo LDFLAGS: -lm -lpthread
#include <stdlib.h>
#include "cpu.h"

// Go cannot call through a pointer, so each entry of the table has its caller.
typedef const rattn_backend *table;
static int32_t call_open(table t, int32_t device, int32_t threads, const char *isa, rattn_ctx **c) { return t->open(device, threads, isa, c); }
static void call_close(table t, rattn_ctx *c) { t->close(c); }
static const char *call_name(table t, rattn_ctx *c) { return t->name(c); }
static const char *call_error(table t, rattn_ctx *c) { return t->error(c); }
static int32_t call_alloc(table t, rattn_ctx *c, int64_t n, void **p) { return t->alloc(c, n, p); }
static void call_free(table t, rattn_ctx *c, void *p) { t->free(c, p); }
static int32_t call_write(table t, rattn_ctx *c, void *d, const void *s, int64_t n) { return t->write(c, d, s, n); }
static int32_t call_read(table t, rattn_ctx *c, void *d, const void *s, int64_t n) { return t->read(c, d, s, n); }
static int32_t call_zero(table t, rattn_ctx *c, void *p, int64_t n) { return t->zero(c, p, n); }
static int32_t call_forward(table t, rattn_ctx *c, const rattn_forward_args *a) { return t->forward(c, a); }
static int32_t call_delta(table t, rattn_ctx *c, const rattn_delta_args *a) { return t->delta(c, a); }
static int32_t call_backward(table t, rattn_ctx *c, const rattn_backward_args *a) { return t->backward(c, a); }
static int32_t call_add(table t, rattn_ctx *c, float *d, const float *s, int64_t n) { return t->add(c, d, s, n); }
static int32_t call_round(table t, rattn_ctx *c, uint16_t *d, const float *s, int64_t n) { return t->round(c, d, s, n); }
static int32_t call_add_rounded(table t, rattn_ctx *c, float *d, const uint16_t *s, int64_t n) { return t->add_rounded(c, d, s, n); }
static int32_t call_move(table t, rattn_ctx *c, const rattn_move_args *a) { return t->move(c, a); }
static int32_t call_record(table t, rattn_ctx *c, int64_t *e) { return t->record(c, e); }
static int32_t call_query(table t, rattn_ctx *c, int64_t e, int32_t *done) { return t->query(c, e, done); }
static int32_t call_sync(table t, rattn_ctx *c) { return t->sync(c); }

// Arguments and results of calls, in C memory: a Go variable whose address goes to
// C would be allocated anew on every call.
typedef struct {
  rattn_forward_args forward;
  rattn_delta_args delta;
  rattn_backward_args backward;
  rattn_move_args move;
  void *p;
  int64_t event, began, ended;
  int32_t done;
} call_args;
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"ringattn/ring"
)

// CPU returns a backend of threads worker threads with the kernels for isa, one of ISAs,
// or "" for the best that this CPU has. "amx", "avx512bf16" and, for tests,
// "portable-bf16" multiply bf16 as it is, and round p and ds to it; the others widen it.
//
// Its memory is the C library's. The workers inherit the caller's CPU affinity
// and sleep when there is nothing to do.
func CPU(threads int, isa string) (ring.Backend, error) {
	t, err := openTable(C.rattn_cpu(), 0, threads, isa)
	if err != nil {
		return nil, err // and no nil *table in a Backend
	}
	return cpuTable{t}, nil
}

// ISAs lists the instruction sets that CPU accepts on this machine, best first.
func ISAs() []string {
	var names []string
	runtime.LockOSThread() // the list is the calling thread's
	defer runtime.UnlockOSThread()
	for p := C.rattn_cpu_isas(); *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		names = append(names, C.GoString(*p))
	}
	return names
}

// PeakFLOPS measures what threads threads reach together with nothing but the
// multiply-adds that the kernels of isa ("" for the best) make of dtype, in FLOP/s: the
// rate that a kernel's is a fraction of. Takes some 50 ms; 0 for an isa that this CPU
// lacks.
func PeakFLOPS(threads int, isa string, dtype ring.DType) float64 {
	best := make([]float64, threads)
	for range 8 {
		for i, r := range rates(threads, isa, dtype, 5*time.Millisecond) {
			best[i] = max(best[i], r)
		}
	}
	return sum(best)
}

// rates measures what each of threads threads reaches on average over some time.
func rates(threads int, isa string, dtype ring.DType, d time.Duration) []float64 {
	name := C.CString(isa)
	defer C.free(unsafe.Pointer(name))
	rates := make([]float64, threads)
	var wg sync.WaitGroup
	for i := range rates {
		wg.Go(func() { rates[i] = float64(C.rattn_cpu_rate(name, C.int32_t(dtype), C.double(d.Seconds()))) })
	}
	wg.Wait()
	return rates
}

func sum(x []float64) float64 {
	s := 0.0
	for _, x := range x {
		s += x
	}
	return s
}

// table makes a ring.Backend of the C functions of one kind of device.
type table struct {
	fn   C.table
	ctx  *C.rattn_ctx
	args *C.call_args
	name string
}

func openTable(fn C.table, device, threads int, isa string) (*table, error) {
	if fn.version != C.RATTN_ABI_VERSION || uintptr(fn.size) != unsafe.Sizeof(*fn) {
		return nil, fmt.Errorf("kernels: open: table of version %d and %d bytes, want %d and %d",
			fn.version, fn.size, C.RATTN_ABI_VERSION, unsafe.Sizeof(*fn))
	}
	if threads != int(int32(threads)) {
		return nil, fmt.Errorf("kernels: open: %d threads", threads)
	}
	name := C.CString(isa)
	defer C.free(unsafe.Pointer(name))
	t := &table{fn: fn}
	runtime.LockOSThread() // the text of an error of open belongs to the thread
	defer runtime.UnlockOSThread()
	if C.call_open(fn, C.int32_t(device), C.int32_t(threads), name, &t.ctx) != C.RATTN_OK {
		return nil, fmt.Errorf("kernels: open: %s", C.GoString(C.call_error(fn, nil)))
	}
	t.args = (*C.call_args)(C.calloc(1, C.sizeof_call_args))
	t.name = C.GoString(C.call_name(fn, t.ctx))
	return t, nil
}

// check makes an error of the status that a call returned.
func (t *table) check(call string, status C.int32_t) error {
	if status == C.RATTN_OK {
		return nil
	}
	err := fmt.Errorf("kernels: %s: %s", call, C.GoString(C.call_error(t.fn, t.ctx)))
	if status == C.RATTN_ERR_MEMORY {
		err = fmt.Errorf("%w: %w", ring.ErrMemory, err)
	}
	return err
}

func (t *table) Name() string { return t.name }

func (t *table) Alloc(bytes int64) (unsafe.Pointer, error) {
	err := t.check("alloc", C.call_alloc(t.fn, t.ctx, C.int64_t(bytes), &t.args.p))
	if err != nil {
		return nil, err
	}
	return t.args.p, nil
}

func (t *table) Free(p unsafe.Pointer) { C.call_free(t.fn, t.ctx, p) }

func (t *table) Write(dst unsafe.Pointer, src []byte) error {
	p := unsafe.Pointer(unsafe.SliceData(src))
	return t.check("write", C.call_write(t.fn, t.ctx, dst, p, C.int64_t(len(src))))
}

func (t *table) Read(dst []byte, src unsafe.Pointer) error {
	p := unsafe.Pointer(unsafe.SliceData(dst))
	return t.check("read", C.call_read(t.fn, t.ctx, p, src, C.int64_t(len(dst))))
}

func (t *table) Zero(p unsafe.Pointer, bytes int64) error {
	return t.check("zero", C.call_zero(t.fn, t.ctx, p, C.int64_t(bytes)))
}

// cShape carries a shape over; a number that C's int32 cannot hold becomes 0, which
// the callee refuses.
func cShape(s ring.Shape) C.rattn_shape {
	n := func(x int) C.int32_t {
		if x != int(int32(x)) {
			return 0
		}
		return C.int32_t(x)
	}
	return C.rattn_shape{
		dtype: C.int32_t(s.DType), heads: n(s.Heads), kv_heads: n(s.KVHeads),
		head_dim: n(s.HeadDim), scale: C.float(s.Scale),
	}
}

func cRows(r ring.Rows) C.rattn_rows {
	return C.rattn_rows{start: C.int64_t(r.Start), n: C.int64_t(r.N), lo: (*C.int32_t)(r.Lo), hi: (*C.int32_t)(r.Hi), span: C.int64_t(r.Span), tiles: C.int64_t(r.Tiles)}
}

func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// errRows is the one check that needs what C is not told, the number of queries.
var errRows = errors.New("rows beyond the rank's tokens")

func checkRows(call string, t *ring.Tensors, r ring.Rows) error {
	if r.Start < 0 || r.N < 0 || r.N > t.Tokens-r.Start {
		return fmt.Errorf("kernels: %s: %w: %d from %d of %d", call, errRows, r.N, r.Start, t.Tokens)
	}
	return nil
}

func (t *table) Forward(s ring.Shape, x *ring.Tensors, c ring.Chunk, rows ring.Rows, first bool) error {
	if err := checkRows("forward", x, rows); err != nil {
		return err
	}
	a := &t.args.forward
	a.shape, a.rows, a.tokens = cShape(s), cRows(rows), C.int64_t(c.Tokens)
	a.q, a.kv = x.Q, c.KV
	a.out, a.lse = (*C.float)(x.Out), (*C.float)(x.LSE)
	a.first = flag(first)
	return t.check("forward", C.call_forward(t.fn, t.ctx, a))
}

func (t *table) Delta(s ring.Shape, x *ring.Tensors) error {
	a := &t.args.delta
	a.shape, a.tokens = cShape(s), C.int64_t(x.Tokens)
	a.out, a.dout, a.delta = (*C.float)(x.Out), x.DOut, (*C.float)(x.Delta)
	return t.check("delta", C.call_delta(t.fn, t.ctx, a))
}

func (t *table) Backward(s ring.Shape, x *ring.Tensors, c ring.Chunk, rows ring.Rows, dkv unsafe.Pointer, first bool) error {
	if err := checkRows("backward", x, rows); err != nil {
		return err
	}
	a := &t.args.backward
	a.shape, a.rows, a.tokens = cShape(s), cRows(rows), C.int64_t(c.Tokens)
	a.q, a.kv, a.dout = x.Q, c.KV, x.DOut
	a.lse, a.delta = (*C.float)(x.LSE), (*C.float)(x.Delta)
	a.dq, a.dkv = (*C.float)(x.DQ), (*C.float)(dkv)
	a.first = flag(first)
	return t.check("backward", C.call_backward(t.fn, t.ctx, a))
}

func (t *table) Add(dst, src unsafe.Pointer, n int64) error {
	return t.check("add", C.call_add(t.fn, t.ctx, (*C.float)(dst), (*C.float)(src), C.int64_t(n)))
}

func (t *table) Round(dst, src unsafe.Pointer, n int64) error {
	return t.check("round", C.call_round(t.fn, t.ctx, (*C.uint16_t)(dst), (*C.float)(src), C.int64_t(n)))
}

func (t *table) AddRounded(dst, src unsafe.Pointer, n int64) error {
	return t.check("add_rounded", C.call_add_rounded(t.fn, t.ctx, (*C.float)(dst), (*C.uint16_t)(src), C.int64_t(n)))
}

func (t *table) Move(m ring.Rearrangement) error {
	a := &t.args.move
	a.dst, a.src, a.n, a.bytes = m.Dst, m.Src, C.int64_t(m.N), C.int64_t(m.Bytes)
	a.dst_stride, a.src_stride = C.int64_t(m.DstStride), C.int64_t(m.SrcStride)
	a.to, a.from, a.add = (*C.int32_t)(m.To), (*C.int32_t)(m.From), flag(m.Add)
	return t.check("move", C.call_move(t.fn, t.ctx, a))
}

func (t *table) Record() (ring.Event, error) {
	err := t.check("record", C.call_record(t.fn, t.ctx, &t.args.event))
	return ring.Event(t.args.event), err
}

func (t *table) Query(e ring.Event) (bool, error) {
	err := t.check("query", C.call_query(t.fn, t.ctx, C.int64_t(e), &t.args.done))
	return t.args.done != 0, err
}

func (t *table) Sync() error { return t.check("sync", C.call_sync(t.fn, t.ctx)) }

func (t *table) Close() error {
	C.call_close(t.fn, t.ctx)
	C.free(unsafe.Pointer(t.args))
	t.ctx, t.args = nil, nil
	return nil
}

// hostAlloc and hostFree are the reference backend's memory.
func hostAlloc(bytes int64) (unsafe.Pointer, error) {
	p := C.aligned_alloc(64, C.size_t((max(bytes, 1)+63)/64*64))
	if p == nil {
		return nil, fmt.Errorf("no memory for %d bytes", bytes)
	}
	return p, nil
}

func hostFree(p unsafe.Pointer) { C.free(p) }
