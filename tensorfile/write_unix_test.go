//go:build unix

package tensorfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestModeHonoursUmaskAndFileIsSparse(t *testing.T) {
	const bytes = 1 << 36
	header, tensors, size, err := Encode([]Spec{{"q", U8, []int64{bytes}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for umask, want := range map[int]os.FileMode{0o022: 0o644, 0o077: 0o600, 0: 0o644} {
		path := filepath.Join(t.TempDir(), "out.safetensors")
		old := syscall.Umask(umask)
		temp, err := CreateTemp(path, header, size)
		syscall.Umask(old)
		if err != nil {
			t.Skipf("no sparse file of %d bytes here: %v", size, err)
		}
		w, err := OpenForWrite(temp, tensors)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteAt(tensors[0], []byte{7}, bytes-1); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := Commit(temp, path); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want || info.Size() != size {
			t.Errorf("umask %o: mode %o, %d bytes, want %o, %d", umask, info.Mode().Perm(), info.Size(), want, size)
		}
		if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > 1<<20 {
			t.Errorf("takes %d bytes on disk", used)
		}
	}
}
