package tensorfile

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var outputSpecs = []Spec{
	{"out", BF16, []int64{2, 3, 37, 5}},
	{"lse", F32, []int64{2, 3, 37}},
	{"dq", F16, []int64{2, 3, 37, 5}},
	{"empty", I64, []int64{0, 4}},
	{"flags", BOOL, []int64{37}},
}

func TestEncodeBytes(t *testing.T) {
	header, tensors, size, err := Encode([]Spec{
		{"m", U8, []int64{3}}, {"a\"<é", F32, []int64{1, 2}},
	}, map[string]string{"window": "16", "causal": "true"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"__metadata__":{"causal":"true","window":"16"},"m":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"a\"\u003cé":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}`
	got := string(header[8:])
	if strings.TrimRight(got, " ") != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(header)%8 != 0 || len(got) > len(want)+7 || header[0] != byte(len(got)) || size != int64(len(header))+11 {
		t.Errorf("%d bytes of header, length %d, file of %d", len(header), header[0], size)
	}
	begin := int64(len(header))
	if diff := cmp.Diff([]Tensor{
		{"m", U8, []int64{3}, begin + 8, 3}, {"a\"<é", F32, []int64{1, 2}, begin, 8},
	}, tensors); diff != "" {
		t.Error(diff)
	}
	header, tensors, size, err = Encode(nil, nil)
	if err != nil || string(header[8:]) != "{}      " || len(tensors) != 0 || size != 16 {
		t.Errorf("nothing: %q, %v, %d, %v", header, tensors, size, err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name     string
		specs    []Spec
		metadata map[string]string
		want     string
	}{
		{"unknown dtype", []Spec{{"q", "F8_X", nil}}, nil, `tensor "q": unknown dtype "F8_X"`},
		{"negative", []Spec{{"q", F32, []int64{-1}}}, nil, `tensor "q": negative dimension`},
		{"overflow", []Spec{{"q", F32, []int64{1 << 40, 1 << 40}}}, nil, `tensor "q": shape`},
		{"overflow of the sum", []Spec{{"q", U8, []int64{1 << 59}}, {"k", U8, []int64{1 << 60, 4}}}, nil, `tensor "k": shape`},
		{"overflow of the file", manyLarge(9), nil, "overflow the size of a file"},
		{"dimensions", []Spec{{"q", F32, make([]int64, 65)}}, nil, `tensor "q": shape of 65 dimensions`},
		{"duplicate", []Spec{{"q", F32, nil}, {"q", F32, nil}}, nil, `tensor "q": duplicate name`},
		{"reserved", []Spec{{metadataKey, F32, nil}}, nil, `tensor "__metadata__": reserved name`},
		{"name", []Spec{{"q\xff", F32, nil}}, nil, `tensor "q\xff": name is not UTF-8`},
		{"metadata", nil, map[string]string{"a": "\xff"}, `metadata "a" is not UTF-8`},
		{"size", nil, map[string]string{"a": strings.Repeat("a", maxRoom)}, "more than 8 MiB"},
	} {
		if _, _, _, err := Encode(c.specs, c.metadata); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// manyLarge are n tensors of 2^60-1 bytes, the most that one may have; eight of
// them fit a file and nine do not.
func manyLarge(n int) []Spec {
	var specs []Spec
	for i := range n {
		specs = append(specs, Spec{string(rune('a' + i)), U8, []int64{1<<60 - 1}})
	}
	return specs
}

// Ranks write interleaved pieces at the same time, each by its own descriptor.
func TestRoundTripOfConcurrentWriters(t *testing.T) {
	const ranks, piece = 5, 11 // piece: bytes, across element and page bounds
	path := filepath.Join(t.TempDir(), "out.safetensors")
	metadata := map[string]string{"layout": "BHSD"}
	header, tensors, size, err := Encode(outputSpecs, metadata)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	data := map[string][]byte{}
	for _, x := range tensors {
		data[x.Name] = make([]byte, x.Bytes)
		for i := range data[x.Name] {
			data[x.Name][i] = byte(random.Uint32())
		}
	}
	temp, err := CreateTemp(path, header, size)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for rank := range ranks {
		wg.Go(func() {
			// The layout again, as another process would.
			_, own, _, err := Encode(outputSpecs, metadata)
			if err != nil {
				t.Error(err)
				return
			}
			w, err := OpenForWrite(temp, own)
			if err != nil {
				t.Error(err)
				return
			}
			for _, x := range own {
				for at := int64(rank) * piece; at < x.Bytes; at += ranks * piece {
					p := data[x.Name][at:min(at+piece, x.Bytes)]
					if err := w.WriteAt(x, p, at); err != nil {
						t.Error(err)
					}
				}
			}
			if err := errors.Join(w.Sync(), w.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the output exists before Commit: %v", err)
	}
	if err := Commit(temp, path); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, x := range tensors {
		got, ok := f.Lookup(x.Name)
		if diff := cmp.Diff(x, got); !ok || diff != "" {
			t.Errorf("tensor %s:\n%s", x.Name, diff)
		}
		p := make([]byte, x.Bytes)
		if err := f.ReadAt(x, p, 0); err != nil || !bytes.Equal(p, data[x.Name]) {
			t.Errorf("tensor %s: other bytes than written (%v)", x.Name, err)
		}
	}
	if diff := cmp.Diff(metadata, f.Metadata()); diff != "" {
		t.Error(diff)
	}
	onlyFile(t, path)
}

// onlyFile checks that nothing lies beside path.
func onlyFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestAbortLeavesTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.safetensors")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	header, _, size, err := Encode(outputSpecs, nil)
	if err != nil {
		t.Fatal(err)
	}
	temp, err := CreateTemp(path, header, size)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(temp, path+".partial-") {
		t.Errorf("temporary name %s", temp)
	}
	// A damaged file is not committed.
	if err := os.Truncate(temp, size-1); err != nil {
		t.Fatal(err)
	}
	if err := Commit(temp, path); !errors.Is(err, ErrFormat) {
		t.Errorf("Commit of a short file: %v", err)
	}
	for range 2 { // the second time it is gone already
		if err := Abort(temp); err != nil {
			t.Error(err)
		}
	}
	if err := Abort(path); err == nil {
		t.Error("Abort of a file that is not temporary: no error")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("the old file: %q, %v", got, err)
	}
	onlyFile(t, path)
}

func TestCreateTempRefuses(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	header, _, size, err := Encode(outputSpecs, nil)
	if err != nil {
		t.Fatal(err)
	}
	locked := filepath.Join(dir, "locked")
	if err := os.Mkdir(locked, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path string
		size       int64
		want       string
	}{
		{"empty path", "", size, "empty path"},
		{"directory", locked, size, locked + ": is a directory"},
		{"device", os.DevNull, size, "is not a regular file"},
		{"no directory", filepath.Join(dir, "none", "f"), size, "its directory: "},
		{"file as directory", filepath.Join(plain, "f"), size, plain + " is not a directory"},
		{"size", filepath.Join(dir, "f"), int64(len(header)) - 1, "less than the header"},
		{"locked directory", filepath.Join(locked, "f"), size, "create a file in directory " + locked},
	} {
		if c.name == "locked directory" && os.Getuid() == 0 {
			continue // root may write anywhere
		}
		temp, err := CreateTemp(c.path, header, c.size)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %q, %v, want %q", c.name, temp, err, c.want)
		}
	}
	// Few file systems have room for this; one that has takes it.
	if temp, err := CreateTemp(filepath.Join(dir, "f"), header, 1<<63-1); err == nil {
		if err := Abort(temp); err != nil {
			t.Error(err)
		}
	} else if !strings.Contains(err.Error(), "of 9223372036854775807 bytes") {
		t.Errorf("impossible size: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.partial-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestWriterRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.safetensors")
	header, tensors, size, err := Encode(outputSpecs, nil)
	if err != nil {
		t.Fatal(err)
	}
	temp, err := CreateTemp(path, header, size)
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenForWrite(temp, tensors[:2])
	if err != nil {
		t.Fatal(err)
	}
	lse := tensors[1]
	for _, c := range []struct {
		tensor Tensor
		n      int
		off    int64
		want   string
	}{
		{lse, 1, -1, "outside its 888 bytes"},
		{lse, 1, 888, "outside its 888 bytes"},
		{lse, 889, 0, "outside its 888 bytes"},
		{lse, 2, 1<<63 - 1, "outside its 888 bytes"},
		{tensors[2], 1, 0, "is not of this file"},
		{Tensor{Name: "lse", Bytes: 1000}, 1, 0, "is not of this file"},
	} {
		if err := w.WriteAt(c.tensor, make([]byte, c.n), c.off); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d bytes at %d of %s: got %v, want %q", c.n, c.off, c.tensor.Name, err, c.want)
		}
	}
	if err := w.WriteAt(lse, nil, 888); err != nil {
		t.Errorf("nothing at the end: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteAt(lse, []byte{1}, 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := OpenForWrite(path, tensors); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	lse.Offset = size - 4
	if _, err := OpenForWrite(temp, []Tensor{lse}); err == nil || !strings.Contains(err.Error(), `tensor "lse"`) {
		t.Errorf("tensor past the end: %v", err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Commit(temp, path); err == nil {
		t.Error("Commit over a directory: no error")
	}
	if err := Abort(temp); err != nil {
		t.Error(err)
	}
}
