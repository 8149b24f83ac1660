package kernels

import (
	"fmt"
	"math"
	"unsafe"

	"ringattn/half"
	"ringattn/ring"
)

// Reference returns the slow truth: every call is computed at once, row by row, in
// float64 from the definition. Running outputs and gradients are float32 between
// calls, as the interface says. One thread, no C.
func Reference() ring.Backend { return &reference{} }

type reference struct{ calls ring.Event }

func (r *reference) Name() string { return "ref" }

func (r *reference) Alloc(bytes int64) (unsafe.Pointer, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("kernels: alloc: size is %d bytes", bytes)
	}
	p, err := hostAlloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("kernels: alloc: %w", err)
	}
	return p, nil
}

func (r *reference) Free(p unsafe.Pointer) { hostFree(p) }

func (r *reference) Write(dst unsafe.Pointer, src []byte) error {
	if len(src) > 0 {
		copy(unsafe.Slice((*byte)(dst), len(src)), src)
	}
	return nil
}

func (r *reference) Read(dst []byte, src unsafe.Pointer) error {
	if len(dst) > 0 {
		copy(dst, unsafe.Slice((*byte)(src), len(dst)))
	}
	return nil
}

func (r *reference) Zero(p unsafe.Pointer, bytes int64) error {
	r.calls++
	if bytes > 0 {
		clear(unsafe.Slice((*byte)(p), bytes))
	}
	return nil
}

func (r *reference) Add(dst, src unsafe.Pointer, n int64) error {
	r.calls++
	if n > 0 {
		d, s := unsafe.Slice((*float32)(dst), n), unsafe.Slice((*float32)(src), n)
		for i := range d {
			d[i] += s[i]
		}
	}
	return nil
}

func (r *reference) Round(dst, src unsafe.Pointer, n int64) error {
	r.calls++
	if n > 0 {
		d, s := unsafe.Slice((*uint16)(dst), n), unsafe.Slice((*float32)(src), n)
		for i := range d {
			d[i] = half.F32ToBF16(s[i])
		}
	}
	return nil
}

func (r *reference) AddRounded(dst, src unsafe.Pointer, n int64) error {
	r.calls++
	if n > 0 {
		d, s := unsafe.Slice((*float32)(dst), n), unsafe.Slice((*uint16)(src), n)
		for i := range d {
			d[i] += half.BF16ToF32(s[i])
		}
	}
	return nil
}

func (r *reference) Move(m ring.Rearrangement) error {
	r.calls++
	if m.N < 0 || m.Bytes < 0 || m.To == nil && m.DstStride < m.Bytes || m.From == nil && m.SrcStride < m.Bytes {
		return fmt.Errorf("kernels: move: %d rows of %d bytes that stand %d and %d apart", m.N, m.Bytes, m.DstStride, m.SrcStride)
	}
	at := func(base, index unsafe.Pointer, i int, stride int64) []byte {
		if index != nil {
			i = int(unsafe.Slice((*int32)(index), m.N)[i])
		}
		return unsafe.Slice((*byte)(unsafe.Add(base, int64(i)*stride)), m.Bytes)
	}
	for i := 0; i < m.N && m.Bytes > 0; i++ {
		dst, src := at(m.Dst, m.To, i, m.DstStride), at(m.Src, m.From, i, m.SrcStride)
		if !m.Add {
			copy(dst, src)
			continue
		}
		d := unsafe.Slice((*float32)(unsafe.Pointer(&dst[0])), m.Bytes/4)
		for k, x := range unsafe.Slice((*float32)(unsafe.Pointer(&src[0])), m.Bytes/4) {
			d[k] += x
		}
	}
	return nil
}

func (r *reference) Record() (ring.Event, error)      { return r.calls, nil }
func (r *reference) Query(e ring.Event) (bool, error) { return e <= r.calls, nil }
func (r *reference) Sync() error                      { return nil }
func (r *reference) Close() error                     { return nil }

func checkShape(call string, s ring.Shape) error {
	if s.Heads < 1 || s.KVHeads < 1 || s.HeadDim < 1 || s.Heads%s.KVHeads != 0 || s.DType < ring.F32 || s.DType > ring.F16 {
		return fmt.Errorf("kernels: %s: %v, %d/%d heads, head_dim %d", call, s.DType, s.Heads, s.KVHeads, s.HeadDim)
	}
	return nil
}

// vectors is a tensor [T, heads, dim] in float64.
type vectors struct {
	x          []float64
	heads, dim int
}

// widen reads rows [start, start+n) of a tensor [T, heads, dim] of dtype d.
//
//go:norace
func widen(p unsafe.Pointer, d ring.DType, start, n, heads, dim int) vectors {
	v := vectors{make([]float64, n*heads*dim), heads, dim}
	if len(v.x) == 0 {
		return v
	}
	p = unsafe.Add(p, int64(start)*int64(heads)*int64(dim)*d.Size())
	switch d {
	case ring.F32:
		for i, x := range unsafe.Slice((*float32)(p), len(v.x)) {
			v.x[i] = float64(x)
		}
	case ring.BF16:
		for i, x := range unsafe.Slice((*uint16)(p), len(v.x)) {
			v.x[i] = float64(half.BF16ToF32(x))
		}
	case ring.F16:
		for i, x := range unsafe.Slice((*uint16)(p), len(v.x)) {
			v.x[i] = float64(half.F16ToF32(x))
		}
	}
	return v
}

// at is head h of row t.
func (v vectors) at(t, h int) []float64 { return v.x[(t*v.heads+h)*v.dim:][:v.dim] }

// floats is head h of row t of a float32 tensor [T, heads, dim].
func floats(p unsafe.Pointer, heads, dim, t, h int) []float32 {
	at := (int64(t)*int64(heads) + int64(h)) * int64(dim)
	return unsafe.Slice((*float32)(unsafe.Add(p, 4*at)), dim)
}

// dot and addScaled are all of the work. They see their arguments alone, so the race
// detector, which makes them ten times slower, is told to leave them out.
//
//go:norace
func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// addScaled computes dst += w x.
//
//go:norace
func addScaled(dst []float64, w float64, x []float64) {
	for i := range dst {
		dst[i] += w * x[i]
	}
}

// visible is what row i of rows sees of a chunk of n tokens.
func visible(call string, rows ring.Rows, i, n int) (lo, hi int, err error) {
	lo = int(unsafe.Slice((*int32)(rows.Lo), rows.N)[i])
	hi = int(unsafe.Slice((*int32)(rows.Hi), rows.N)[i])
	if lo < hi && (lo < 0 || hi > n) {
		return 0, 0, fmt.Errorf("kernels: %s: row %d sees keys [%d, %d) of a chunk of %d", call, rows.Start+i, lo, hi, n)
	}
	return lo, max(lo, hi), nil
}

func checkCall(call string, s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows) error {
	if err := checkShape(call, s); err != nil {
		return err
	}
	if rows.Start < 0 || rows.N < 0 || rows.N > t.Tokens-rows.Start {
		return fmt.Errorf("kernels: %s: %d rows from %d of %d", call, rows.N, rows.Start, t.Tokens)
	}
	if c.Tokens < 0 || c.Tokens > ring.MaxChunkTokens {
		return fmt.Errorf("kernels: %s: %d keys, the limit is %d", call, c.Tokens, ring.MaxChunkTokens)
	}
	return nil
}

func (r *reference) Forward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, first bool) error {
	if err := checkCall("forward", s, t, c, rows); err != nil {
		return err
	}
	r.calls++
	dim, group := s.HeadDim, s.Heads/s.KVHeads
	qs := widen(t.Q, s.DType, rows.Start, rows.N, s.Heads, dim)
	kv := widen(c.KV, s.DType, 0, c.Tokens, 2*s.KVHeads, dim)
	sum := make([]float64, dim)
	scores := make([]float64, c.Tokens)
	for i := range rows.N {
		lo, hi, err := visible("forward", rows, i, c.Tokens)
		if err != nil {
			return err
		}
		row := rows.Start + i
		for h := range s.Heads {
			out, lse := floats(t.Out, s.Heads, dim, row, h), &floats(t.LSE, s.Heads, 1, row, h)[0]
			if first {
				clear(out)
				*lse = float32(math.Inf(-1))
			}
			if lo >= hi {
				continue
			}
			q := qs.at(i, h)
			top := float64(*lse)
			for j := lo; j < hi; j++ {
				scores[j] = float64(s.Scale) * dot(q, kv.at(j, h/group))
				top = math.Max(top, scores[j])
			}
			if math.IsInf(top, -1) {
				continue // scores of -Inf alone, so far: as if it saw nothing
			}
			total := math.Exp(float64(*lse) - top)
			for d := range sum {
				sum[d] = total * float64(out[d])
			}
			for j := lo; j < hi; j++ {
				p := math.Exp(scores[j] - top)
				total += p
				addScaled(sum, p, kv.at(j, s.KVHeads+h/group))
			}
			for d := range sum {
				out[d] = float32(sum[d] / total)
			}
			*lse = float32(top + math.Log(total))
		}
	}
	return nil
}

func (r *reference) Delta(s ring.Shape, t *ring.Tensors) error {
	if err := checkShape("delta", s); err != nil {
		return err
	}
	r.calls++
	out := widen(t.Out, ring.F32, 0, t.Tokens, s.Heads, s.HeadDim)
	dout := widen(t.DOut, s.DType, 0, t.Tokens, s.Heads, s.HeadDim)
	for i := range t.Tokens {
		for h := range s.Heads {
			floats(t.Delta, s.Heads, 1, i, h)[0] = float32(dot(out.at(i, h), dout.at(i, h)))
		}
	}
	return nil
}

func (r *reference) Backward(s ring.Shape, t *ring.Tensors, c ring.Chunk, rows ring.Rows, dkv unsafe.Pointer, first bool) error {
	if err := checkCall("backward", s, t, c, rows); err != nil {
		return err
	}
	r.calls++
	dim, group := s.HeadDim, s.Heads/s.KVHeads
	qs := widen(t.Q, s.DType, rows.Start, rows.N, s.Heads, dim)
	douts := widen(t.DOut, s.DType, rows.Start, rows.N, s.Heads, dim)
	kv := widen(c.KV, s.DType, 0, c.Tokens, 2*s.KVHeads, dim)
	dq := make([]float64, dim)
	grad := make([]float64, c.Tokens*2*s.KVHeads*dim) // this call's dk, dv
	for i := range rows.N {
		lo, hi, err := visible("backward", rows, i, c.Tokens)
		if err != nil {
			return err
		}
		row := rows.Start + i
		for h := range s.Heads {
			dst := floats(t.DQ, s.Heads, dim, row, h)
			if first {
				clear(dst)
			}
			lse := float64(floats(t.LSE, s.Heads, 1, row, h)[0])
			if lo >= hi || math.IsInf(lse, -1) {
				continue
			}
			delta := float64(floats(t.Delta, s.Heads, 1, row, h)[0])
			q, dout := qs.at(i, h), douts.at(i, h)
			clear(dq)
			for j := lo; j < hi; j++ {
				k, v := kv.at(j, h/group), kv.at(j, s.KVHeads+h/group)
				p := math.Exp(float64(s.Scale)*dot(q, k) - lse)
				ds := float64(s.Scale) * p * (dot(dout, v) - delta)
				at := (j*2*s.KVHeads + h/group) * dim
				addScaled(dq, ds, k)
				addScaled(grad[at:][:dim], ds, q)
				addScaled(grad[at+s.KVHeads*dim:][:dim], p, dout)
			}
			for d := range dst {
				dst[d] += float32(dq[d])
			}
		}
	}
	if len(grad) > 0 {
		dst := unsafe.Slice((*float32)(dkv), len(grad))
		for i, g := range grad {
			dst[i] += float32(g)
		}
	}
	return nil
}
