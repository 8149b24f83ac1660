//go:build cuda && cgo

package kernels

import (
	"bytes"
	"strings"
	"testing"
	"unsafe"

	"ringattn/ring"
	"ringattn/ring/backendtest"
)

// needGPU skips where there is no GPU, and says why.
func needGPU(t *testing.T) {
	t.Helper()
	if facts := LookCUDA(); facts.Devices == 0 {
		t.Skipf("there is no GPU to test on: %v", facts.Why)
	}
}

func openCUDA(t *testing.T) ring.Backend {
	b, err := CUDA(0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCUDA(t *testing.T) {
	needGPU(t)
	backendtest.RunWithin(t, backendtest.Limits{RoundsBF16: true, RoundsF16: true, MaxHeadDim: MaxCUDAHeadDim}, openCUDA)
}

// One context gives the bits of another.
func TestCUDARepeats(t *testing.T) {
	needGPU(t)
	backendtest.Same(t, openCUDA, openCUDA, openCUDA)
}

// A context knows when its kernels ran.
func TestCUDATimed(t *testing.T) {
	needGPU(t)
	b := openCUDA(t)
	checkTimed(t, b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// Facts are there, or the reason is, with or without a GPU.
func TestCUDAFacts(t *testing.T) {
	f := LookCUDA()
	if f.BuiltWith == "" {
		t.Error("the runtime has no version")
	}
	if f.Devices == 0 {
		if f.Why == nil {
			t.Fatal("no devices, and no reason")
		}
		_, byCUDA := CUDA(0)
		_, bySelect := SelectCUDA(0)
		if byCUDA == nil || !strings.Contains(byCUDA.Error(), strings.TrimPrefix(f.Why.Error(), "kernels: ")) || bySelect == nil {
			t.Errorf("the reason is %v; CUDA says %v, SelectCUDA %v", f.Why, byCUDA, bySelect)
		}
		needGPU(t)
	}
	d, err := SelectCUDA(0)
	if err != nil {
		t.Fatal(err)
	}
	if d.Name == "" || !strings.HasPrefix(d.UUID, "GPU-") || len(d.UUID) != 40 || len(d.PCI) != 16 || !strings.HasPrefix(d.Capability, "sm_") ||
		d.FreeBytes <= 0 || d.FreeBytes > d.TotalBytes {
		t.Errorf("%+v", d)
	}
	t.Logf("%+v, %+v", f, d)
	for _, device := range []int{-1, f.Devices} {
		if b, err := CUDA(device); err == nil || b != nil {
			t.Errorf("device %d of %d opens", device, f.Devices)
		}
		if _, err := SelectCUDA(device); err == nil {
			t.Errorf("device %d of %d can be selected", device, f.Devices)
		}
	}
}

// Bytes come through every kind of copy: to a context and back, between two contexts,
// and beside the kernels through page-locked memory.
func TestCUDACopies(t *testing.T) {
	needGPU(t)
	const n = 3<<20 + 1
	a, b := openCUDA(t), openCUDA(t)
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i*i>>3 + i)
	}
	pa, err := a.Alloc(n)
	check(t, err)
	pb, err := b.Alloc(n)
	check(t, err)
	check(t, a.Write(pa, want))
	check(t, CopyCUDA(pb, pa, n))
	got := make([]byte, n)
	check(t, b.Read(got, pb))
	if !bytes.Equal(got, want) {
		t.Error("a copy between contexts differs")
	}
	clear(got)
	check(t, CopyCUDA(unsafe.Pointer(&got[0]), pb, n))
	if !bytes.Equal(got, want) {
		t.Error("a copy to the host differs")
	}
	d := b.(ring.Device)
	host, err := d.HostAlloc(n)
	check(t, err)
	check(t, b.Zero(pb, n))
	check(t, b.Sync())
	out, err := a.(ring.Device).CopyOut(host, pa, n)
	check(t, err)
	finish(t, a.(ring.Device), out)
	in, err := d.CopyIn(pb, host, n)
	check(t, err)
	finish(t, d, in)
	clear(got)
	check(t, b.Read(got, pb))
	if !bytes.Equal(got, want) {
		t.Error("a copy through page-locked memory differs")
	}
	d.HostFree(host)
	a.Free(pa)
	b.Free(pb)
	check(t, a.Close())
	check(t, b.Close())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func finish(t *testing.T, d ring.Device, c ring.Copy) {
	t.Helper()
	for done := false; !done; {
		var err error
		done, err = d.Copied(c)
		check(t, err)
	}
}

// A context takes no more of the GPU beside its tensors than WorkspaceCUDA says. Others
// must leave the GPU alone meanwhile.
func TestCUDAWorkspace(t *testing.T) {
	needGPU(t)
	const tokens = 20_000
	for _, s := range []ring.Shape{
		{DType: ring.F32, Heads: 8, KVHeads: 2, HeadDim: 63, Scale: 0.1},
		{DType: ring.BF16, Heads: 8, KVHeads: 8, HeadDim: 100, Scale: 0.1},
		{DType: ring.F16, Heads: 16, KVHeads: 4, HeadDim: 64, Scale: -0.1},
		{DType: ring.BF16, Heads: 4, KVHeads: 1, HeadDim: 512, Scale: 0.1},
	} {
		for _, n := range []int{100, tokens} { // the first loads the kernels
			taken := workspace(t, s, n)
			// Memory comes in pieces of 2 MiB, for each of the few buffers.
			if most := WorkspaceCUDA(0, s, int64(n), int64(n), true) + 12<<20; n == tokens && taken > most {
				t.Errorf("%+v: %d bytes were taken, %d are the most", s, taken, most)
			}
		}
	}
}

// workspace runs both passes of n tokens and says what the GPU has less afterwards.
func workspace(t *testing.T, s ring.Shape, n int) int64 {
	b := openCUDA(t)
	var memory []unsafe.Pointer
	alloc := func(bytes int64) unsafe.Pointer {
		p, err := b.Alloc(bytes)
		check(t, err)
		check(t, b.Zero(p, bytes))
		memory = append(memory, p)
		return p
	}
	q := int64(s.Heads * s.HeadDim)
	token := int64(n)
	x := ring.Tensors{
		Tokens: n, Q: alloc(token * q * s.DType.Size()), KV: alloc(token * s.KVTokenBytes()), Out: alloc(token * q * 4),
		LSE: alloc(token * int64(s.Heads) * 4), DOut: alloc(token * q * s.DType.Size()), Delta: alloc(token * int64(s.Heads) * 4),
		DQ: alloc(token * q * 4), DKV: alloc(token * s.GradTokenBytes()),
	}
	hi := make([]int32, n)
	for i := range hi {
		hi[i] = int32(min(i+1, 50))
	}
	rows := ring.Rows{N: n, Lo: alloc(4 * token), Hi: alloc(4 * token)}
	check(t, b.Write(rows.Hi, unsafe.Slice((*byte)(unsafe.Pointer(&hi[0])), 4*n)))
	before, err := SelectCUDA(0)
	check(t, err)
	chunk := ring.Chunk{Tokens: n, KV: x.KV}
	check(t, b.Forward(s, &x, chunk, rows, true))
	check(t, b.Delta(s, &x))
	check(t, b.Backward(s, &x, chunk, rows, x.DKV, true))
	check(t, b.Sync())
	after, err := SelectCUDA(0)
	check(t, err)
	for _, p := range memory {
		b.Free(p)
	}
	check(t, b.Close())
	return before.FreeBytes - after.FreeBytes
}
