package devicetest

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// Mapped is memory of two addresses: two mappings of one file without a name. At the
// first nothing may be read or written.
func Mapped() Memory { return &mapped{} }

type mapped struct{ pieces []piece }

type piece struct{ device, view []byte }

func (m *mapped) Alloc(bytes int64) (unsafe.Pointer, error) {
	device, view, err := mapTwice(max(bytes, 1))
	if err != nil {
		return nil, fmt.Errorf("devicetest: memory for %d bytes: %w", bytes, err)
	}
	m.pieces = append(m.pieces, piece{device, view})
	return unsafe.Pointer(unsafe.SliceData(device)), nil
}

func mapTwice(bytes int64) (device, view []byte, err error) {
	f, err := os.CreateTemp("", "ringattn-device-memory")
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return nil, nil, err
	}
	if err := f.Truncate(bytes); err != nil {
		return nil, nil, err
	}
	device, err = syscall.Mmap(int(f.Fd()), 0, int(bytes), syscall.PROT_NONE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	view, err = syscall.Mmap(int(f.Fd()), 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return device, view, err
}

func (m *mapped) Free(p unsafe.Pointer) {
	for i, c := range m.pieces {
		if unsafe.Pointer(unsafe.SliceData(c.device)) == p {
			_ = syscall.Munmap(c.device)
			_ = syscall.Munmap(c.view)
			m.pieces = append(m.pieces[:i], m.pieces[i+1:]...)
			return
		}
	}
}

func (m *mapped) View(p unsafe.Pointer) unsafe.Pointer {
	// The end of a piece counts, as long as no other begins there: a range of no bytes may
	// stand at it.
	for _, past := range []uintptr{0, 1} {
		for _, c := range m.pieces {
			start := uintptr(unsafe.Pointer(unsafe.SliceData(c.device)))
			if at := uintptr(p) - start; uintptr(p) >= start && at < uintptr(len(c.device))+past {
				return unsafe.Add(unsafe.Pointer(unsafe.SliceData(c.view)), at)
			}
		}
	}
	return nil
}
