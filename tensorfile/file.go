package tensorfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// ErrFormat is wrapped by the error of Open and Parse when the bytes of the
// file are wrong, and not by their other errors (missing file, failed read).
var ErrFormat = errors.New("malformed safetensors")

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	DType DType
	// Shape is in elements, slowest dimension first; empty for a scalar. It is
	// shared by all copies of the Tensor: not to be changed.
	Shape []int64
	// Offset is where the tensor begins, in bytes from the start of the file.
	// It need not be aligned to the dtype.
	Offset int64
	// Bytes is the tensor's length in bytes.
	Bytes int64
}

// File is a safetensors file open for reading. Its methods may be called from
// several goroutines at once, Close excepted.
type File struct {
	r         io.ReaderAt
	closer    io.Closer
	name      string
	size      int64
	headerLen int64
	digest    [sha256.Size]byte
	tensors   []Tensor // by offset
	index     map[string]int
	metadata  map[string]string
}

// Open opens the file at path, which must be a regular file, and reads and
// checks its header. The caller closes the File. The error names the file, the
// tensor and the reason, and wraps ErrFormat if the content is at fault.
func Open(path string) (*File, error) {
	// Before opening, as opening a FIFO would wait for a writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tensorfile: open: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("tensorfile: open %s: not a regular file (%s)", path, info.Mode().Type())
	}
	fd, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tensorfile: open: %w", err)
	}
	info, err = fd.Stat()
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("tensorfile: open: %w", err)
	}
	f, err := parse(fd, info.Size(), path)
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("tensorfile: open %s: %w", path, err)
	}
	f.closer = fd
	return f, nil
}

// Parse is Open for a file of size bytes behind r, which must allow concurrent
// calls if the File is to be read concurrently. Closing the File leaves r open.
func Parse(r io.ReaderAt, size int64) (*File, error) {
	f, err := parse(r, size, "(unnamed)")
	if err != nil {
		return nil, fmt.Errorf("tensorfile: parse: %w", err)
	}
	return f, nil
}

func parse(r io.ReaderAt, size int64, name string) (*File, error) {
	if size < 8 {
		return nil, fmt.Errorf("%w: %d bytes, too short for the 8 bytes of the header length", ErrFormat, size)
	}
	var prefix [8]byte
	if err := readFull(r, prefix[:], 0); err != nil {
		return nil, fmt.Errorf("read the header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader {
		return nil, fmt.Errorf("%w: header length %d is over the limit of %d bytes", ErrFormat, n, maxHeader)
	}
	if n > uint64(size-8) {
		return nil, fmt.Errorf("%w: header length %d does not fit a file of %d bytes", ErrFormat, n, size)
	}
	f := &File{r: r, name: name, size: size, headerLen: int64(n)}
	s := newScanner(r, 8, 8+int64(n))
	s.sum.Write(prefix[:])
	if err := f.header(s); err != nil {
		if s.err != nil {
			return nil, fmt.Errorf("read the header: %w", s.err)
		}
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	s.sum.Sum(f.digest[:0])
	return f, nil
}

// Tensors returns the tensors in the order in which they lie in the file.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Lookup returns the tensor of that name, and whether there is one.
func (f *File) Lookup(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Metadata returns a copy of the file's metadata strings; empty, not nil,
// without any.
func (f *File) Metadata() map[string]string {
	m := maps.Clone(f.metadata)
	if m == nil {
		m = map[string]string{}
	}
	return m
}

// Digest is the SHA-256 of the length and the header as they were when the file
// was opened. It says nothing of the tensors' values.
func (f *File) Digest() [sha256.Size]byte { return f.digest }

// Header reads the header's JSON again, padding included and the 8-byte length
// excluded, into a new slice. It fails if the file can no longer be read, or if
// its header is no longer the one that Open checked.
func (f *File) Header() ([]byte, error) {
	p := make([]byte, 8+f.headerLen)
	if err := readFull(f.r, p, 0); err != nil {
		return nil, fmt.Errorf("tensorfile: read the header of %s: %w", f.name, err)
	}
	if got := sha256.Sum256(p); !bytes.Equal(got[:], f.digest[:]) {
		return nil, fmt.Errorf("tensorfile: read the header of %s: it has changed since the file was opened", f.name)
	}
	return p[8:], nil
}

// Size is the size of the file in bytes.
func (f *File) Size() int64 { return f.size }

// Close closes the file. Reads after it fail.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	if err := f.closer.Close(); err != nil {
		return fmt.Errorf("tensorfile: close: %w", err)
	}
	return nil
}

// ReadAt fills p with the bytes of t from byte off of t on. t must be of this
// file, and the range inside t. A read that ends early is an error
// (io.ErrUnexpectedEOF if the file has become shorter), and p is then undefined.
func (f *File) ReadAt(t Tensor, p []byte, off int64) error {
	i, ok := f.index[t.Name]
	if !ok || f.tensors[i].Offset != t.Offset || f.tensors[i].Bytes != t.Bytes {
		return fmt.Errorf("tensorfile: read %s: tensor %s is not of this file", f.name, quote(t.Name))
	}
	if err := t.checkRange(off, len(p)); err != nil {
		return fmt.Errorf("tensorfile: read %s: %w", f.name, err)
	}
	if err := readFull(f.r, p, t.Offset+off); err != nil {
		return fmt.Errorf("tensorfile: read %s: tensor %s, %d bytes from byte %d: %w", f.name, quote(t.Name), len(p), off, err)
	}
	return nil
}

func (t Tensor) checkRange(off int64, n int) error {
	if off < 0 || off > t.Bytes || int64(n) > t.Bytes-off {
		return fmt.Errorf("tensor %s: %d bytes from byte %d are outside its %d bytes", quote(t.Name), n, off, t.Bytes)
	}
	return nil
}

// readFull reads exactly len(p) bytes; io.ReaderAt may report io.EOF both with
// and without having read them all.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("got %d of %d bytes: %w", n, len(p), io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("got %d of %d bytes: %w", n, len(p), err)
}
