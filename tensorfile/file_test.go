package tensorfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// numbered is a file of the U8 tensors a (5 bytes) and b (7 bytes) whose data
// bytes count from 0.
func numbered(t *testing.T) (path string, data []byte) {
	t.Helper()
	file := raw(`{"__metadata__":{"causal":"true"},"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[7],"data_offsets":[5,12]}}`, 12)
	data = file[len(file)-12:]
	for i := range data {
		data[i] = byte(i)
	}
	path = filepath.Join(t.TempDir(), "in.safetensors")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, data
}

func TestReadAt(t *testing.T) {
	path, data := numbered(t)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, ok := f.Lookup("b")
	if !ok {
		t.Fatal("no tensor b")
	}
	var wg sync.WaitGroup
	for off := range int64(8) {
		for n := range 8 - off {
			wg.Go(func() {
				p := make([]byte, n)
				if err := f.ReadAt(b, p, off); err != nil || !bytes.Equal(p, data[5+off:5+off+n]) {
					t.Errorf("%d bytes from %d: got %v, %v", n, off, p, err)
				}
			})
		}
	}
	wg.Wait()
	for _, c := range []struct {
		tensor Tensor
		n      int
		off    int64
		want   string
	}{
		{b, 1, -1, "1 bytes from byte -1 are outside its 7 bytes"},
		{b, 1, 7, "1 bytes from byte 7 are outside its 7 bytes"},
		{b, 8, 0, "8 bytes from byte 0 are outside its 7 bytes"},
		{b, 0, 8, "outside its 7 bytes"},
		{b, 4, 1<<63 - 2, "outside its 7 bytes"},
		{Tensor{Name: "b", Offset: 0, Bytes: 100}, 4, 0, "is not of this file"},
		{Tensor{Name: "c"}, 0, 0, "is not of this file"},
	} {
		err := f.ReadAt(c.tensor, make([]byte, c.n), c.off)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `"`+c.tensor.Name+`"`) {
			t.Errorf("%d bytes from %d: got %v, want file, tensor and %q", c.n, c.off, err, c.want)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.ReadAt(b, make([]byte, 1), 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestHeaderAndDigest(t *testing.T) {
	path, _ := numbered(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	header := whole[:len(whole)-12]
	if got, err := f.Header(); err != nil || !bytes.Equal(got, header[8:]) {
		t.Errorf("Header: %q, %v", got, err)
	}
	if f.Digest() != sha256.Sum256(header) {
		t.Error("Digest is not the SHA-256 of length and header")
	}
	if f.Size() != int64(len(whole)) {
		t.Errorf("Size %d, want %d", f.Size(), len(whole))
	}
	m := f.Metadata()
	m["causal"] = "false"
	if diff := cmp.Diff(map[string]string{"causal": "true"}, f.Metadata()); diff != "" {
		t.Errorf("metadata, after a caller's change:\n%s", diff)
	}
	whole[10] = 'X'
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Header(); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("Header of a changed file: %v", err)
	}
}

func TestOpenWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrFormat) {
		t.Errorf("missing file: %v", err)
	}
	for _, path := range []string{dir, os.DevNull} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path+": not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestDecodeInt(t *testing.T) {
	for _, c := range []struct {
		dtype DType
		in    []byte
		want  []int64
	}{
		{I64, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0x80}, []int64{1, -2, -1 << 63}},
		{I32, []byte{1, 2, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x80}, []int64{513, -1, -1 << 31}},
		{U8, []byte{0, 1, 255}, []int64{0, 1, 255}},
		{BOOL, []byte{0, 1, 2}, []int64{0, 1, 2}},
		{I32, nil, []int64{}},
	} {
		got, err := DecodeInt(c.dtype, c.in)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", c.dtype, err, diff)
		}
	}
	for _, c := range []struct {
		dtype DType
		n     int
		want  string
	}{
		{F32, 4, `dtype "F32", want I64, I32, U8 or BOOL`},
		{"F8_X", 4, `dtype "F8_X"`},
		{I64, 12, "12 bytes are not a whole number of I64 elements"},
		{I32, 3, "3 bytes are not a whole number of I32 elements"},
	} {
		if _, err := DecodeInt(c.dtype, make([]byte, c.n)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.dtype, err, c.want)
		}
	}
}

// Files that another writer of the format made.
func TestGoldenFilesOpen(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "testdata", "golden", "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Fatal("no golden files in testdata")
	}
	for _, path := range paths {
		f, err := Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range []string{"q", "k", "v", "out", "lse"} {
			x, ok := f.Lookup(name)
			if !ok {
				t.Errorf("%s: no tensor %s", path, name)
			} else if err := f.ReadAt(x, make([]byte, x.Bytes), 0); err != nil {
				t.Error(err)
			}
		}
		f.Close()
	}
}
