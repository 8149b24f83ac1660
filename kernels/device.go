//go:build cgo

package kernels

/*
#include "rattn.h"

typedef const rattn_backend *table;
static int32_t call_host_alloc(table t, rattn_ctx *c, int64_t n, void **p) { return t->host_alloc(c, n, p); }
static void call_host_free(table t, rattn_ctx *c, void *p) { t->host_free(c, p); }
static int32_t call_copy_out(table t, rattn_ctx *c, void *h, const void *s, int64_t n, int64_t *e) { return t->copy_out(c, h, s, n, e); }
static int32_t call_copy_in(table t, rattn_ctx *c, void *d, const void *h, int64_t n, int64_t *e) { return t->copy_in(c, d, h, n, e); }
static int32_t call_copied(table t, rattn_ctx *c, int64_t e, int32_t *done) { return t->copied(c, e, done); }
*/
import "C"

import (
	"unsafe"

	"ringattn/ring"
)

// deviceTable is a table whose memory the host cannot reach.
type deviceTable struct{ *table }

var _ ring.Device = deviceTable{}

func (t deviceTable) HostAlloc(bytes int64) (unsafe.Pointer, error) {
	err := t.check("host_alloc", C.call_host_alloc(t.fn, t.ctx, C.int64_t(bytes), &t.args.p))
	if err != nil {
		return nil, err
	}
	return t.args.p, nil
}

func (t deviceTable) HostFree(p unsafe.Pointer) { C.call_host_free(t.fn, t.ctx, p) }

func (t deviceTable) CopyOut(host, src unsafe.Pointer, bytes int64) (ring.Copy, error) {
	err := t.check("copy_out", C.call_copy_out(t.fn, t.ctx, host, src, C.int64_t(bytes), &t.args.event))
	if err != nil {
		return 0, err
	}
	return ring.Copy(t.args.event), nil
}

func (t deviceTable) CopyIn(dst, host unsafe.Pointer, bytes int64) (ring.Copy, error) {
	err := t.check("copy_in", C.call_copy_in(t.fn, t.ctx, dst, host, C.int64_t(bytes), &t.args.event))
	if err != nil {
		return 0, err
	}
	return ring.Copy(t.args.event), nil
}

func (t deviceTable) Copied(c ring.Copy) (bool, error) {
	err := t.check("copied", C.call_copied(t.fn, t.ctx, C.int64_t(c), &t.args.done))
	return err == nil && t.args.done != 0, err
}
