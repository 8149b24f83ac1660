package devicetest_test

import (
	"runtime/debug"
	"testing"
	"unsafe"

	"ringattn/kernels"
	"ringattn/ring"
	"ringattn/ring/backendtest"
	"ringattn/ring/devicetest"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(*testing.T) ring.Backend {
		b, err := kernels.CPU(1, "portable")
		if err != nil { // a build without cgo
			b = kernels.Reference()
		}
		return devicetest.New(b, devicetest.Mapped())
	})
}

// touch reads or writes a byte, and reports whether that was a fault.
func touch(p unsafe.Pointer, write bool) (fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() != nil }()
	if write {
		*(*byte)(p) = 1
	} else {
		_ = *(*byte)(p) + 1
	}
	return false
}

func TestHostCannotTouch(t *testing.T) {
	m := devicetest.Mapped()
	pieces := map[unsafe.Pointer]byte{}
	for i := range byte(20) {
		p, err := m.Alloc(1 << 12)
		if err != nil {
			t.Fatal(err)
		}
		pieces[p] = i
		*(*byte)(m.View(p)) = i
		*(*byte)(m.View(unsafe.Add(p, 4095))) = i
	}
	for p, i := range pieces {
		for _, at := range []unsafe.Pointer{p, unsafe.Add(p, 4095)} {
			if !touch(at, true) || !touch(at, false) {
				t.Fatal("the host reads or writes device memory")
			}
			if touch(m.View(at), false) {
				t.Fatal("the host cannot read its own view")
			}
			if got := *(*byte)(m.View(at)); got != i {
				t.Errorf("piece %d holds %d", i, got)
			}
		}
		m.Free(p)
	}
	if m.View(unsafe.Pointer(t)) != nil {
		t.Error("host memory has a view")
	}
}

// A host address in a call is an error of the call, which does nothing.
func TestHostAddress(t *testing.T) {
	d := devicetest.New(kernels.Reference(), devicetest.Mapped())
	host := make([]float32, 4)
	host[0] = 7
	p := unsafe.Pointer(&host[0])
	device, err := d.Alloc(16)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"zero":  d.Zero(p, 16),
		"add":   d.Add(device, p, 4),
		"write": d.Write(p, make([]byte, 16)),
		"copy":  func() error { _, err := d.CopyIn(p, device, 16); return err }(),
	} {
		if err == nil {
			t.Errorf("%s takes a host address", name)
		}
	}
	if err := d.Zero(device, 16); err != nil || host[0] != 7 {
		t.Errorf("after errors: %v, %v", err, host)
	}
}

// A copy breaks its destination at once and is made when it is asked for often enough.
func TestCopies(t *testing.T) {
	d := devicetest.New(kernels.Reference(), devicetest.Mapped())
	device, err := d.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.HostAlloc(8)
	if err != nil {
		t.Fatal(err)
	}
	defer d.HostFree(p)
	host := unsafe.Slice((*byte)(p), 8)
	copy(host, "contents")
	for _, start := range []func() (ring.Copy, error){
		func() (ring.Copy, error) { return d.CopyIn(device, p, 8) },
		func() (ring.Copy, error) { return d.CopyOut(p, device, 8) },
	} {
		c, err := start()
		if err != nil || c == 0 {
			t.Fatal(c, err)
		}
		asked := 0
		for done := false; !done; asked++ {
			if done, err = d.Copied(c); err != nil {
				t.Fatal(err)
			}
		}
		if asked < 2 {
			t.Error("a copy is done at once")
		}
		if _, err := d.Copied(c); err == nil {
			t.Error("a copy that is done can be asked for")
		}
	}
	if string(host) != "contents" {
		t.Errorf("there and back: %q", host)
	}
}
