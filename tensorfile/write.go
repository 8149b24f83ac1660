package tensorfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// partialMark stands in the name of every file of CreateTemp.
const partialMark = ".partial-"

// CreateTemp makes a file beside path, named path + ".partial-" + random
// letters, of size bytes: header, then zeros that take no room on disk until
// they are written. Its mode is 0644 less the umask. header and size are those
// of Encode. On one process alone; the caller ends with Commit or Abort.
//
// It fails, leaving nothing behind, if path is a directory or another thing
// that is not a regular file, or if its directory is missing or not writable.
// A file that exists at path stays as it is until Commit; a symbolic link at
// path is what Commit replaces, not its target.
func CreateTemp(path string, header []byte, size int64) (tempPath string, err error) {
	if path == "" {
		return "", errors.New("tensorfile: create: empty path")
	}
	if size < int64(len(header)) {
		return "", fmt.Errorf("tensorfile: create %s: size %d is less than the header of %d bytes", path, size, len(header))
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return "", fmt.Errorf("tensorfile: create %s: is a directory", path)
	} else if err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("tensorfile: create %s: exists and is not a regular file (%s)", path, info.Mode().Type())
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("tensorfile: create %s: its directory: %w", path, err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("tensorfile: create %s: %s is not a directory", path, dir)
	}
	tempPath = path + partialMark + rand.Text()
	// Not os.CreateTemp, which makes the mode 0600 whatever the umask.
	fd, err := os.OpenFile(tempPath, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", fmt.Errorf("tensorfile: create a file in directory %s: %w", dir, err)
	}
	_, err = fd.WriteAt(header, 0)
	if err == nil {
		err = fd.Truncate(size)
	}
	// Closed before others open it: on NFS that is what makes it visible.
	if err := errors.Join(err, fd.Close()); err != nil {
		return "", fmt.Errorf("tensorfile: create %s of %d bytes: %w", path, size, errors.Join(err, os.Remove(tempPath)))
	}
	return tempPath, nil
}

// Writer writes ranges of tensors. WriteAt may be called from several
// goroutines at once.
type Writer struct {
	fd      *os.File
	path    string
	tensors map[string]Tensor
}

// OpenForWrite opens the file that CreateTemp has made, on any number of
// processes. tensors are those of Encode. It fails if the file is missing or
// too short for them. The caller closes the Writer.
func OpenForWrite(tempPath string, tensors []Tensor) (*Writer, error) {
	// Write-only: so NFS keeps track of the bytes written instead of whole
	// pages, which would carry stale bytes of another rank's range.
	fd, err := os.OpenFile(tempPath, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("tensorfile: open for writing: %w", err)
	}
	info, err := fd.Stat()
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("tensorfile: open for writing: %w", err)
	}
	w := &Writer{fd: fd, path: tempPath, tensors: make(map[string]Tensor, len(tensors))}
	for _, t := range tensors {
		if t.Offset < 8 || t.Bytes < 0 || t.Offset > info.Size() || t.Bytes > info.Size()-t.Offset {
			fd.Close()
			return nil, fmt.Errorf("tensorfile: open %s for writing: tensor %s, bytes %d to %d, is not inside the file's %d bytes",
				tempPath, quote(t.Name), t.Offset, t.Offset+t.Bytes, info.Size())
		}
		w.tensors[t.Name] = t
	}
	return w, nil
}

// WriteAt writes p at byte off of t, which must be one of the Writer's tensors
// and have room for it. Ranges that two callers write must not overlap. An
// error (a full disk, say) leaves the range undefined.
func (w *Writer) WriteAt(t Tensor, p []byte, off int64) error {
	own, ok := w.tensors[t.Name]
	if !ok || own.Offset != t.Offset || own.Bytes != t.Bytes {
		return fmt.Errorf("tensorfile: write %s: tensor %s is not of this file", w.path, quote(t.Name))
	}
	if err := t.checkRange(off, len(p)); err != nil {
		return fmt.Errorf("tensorfile: write %s: %w", w.path, err)
	}
	if len(p) == 0 {
		return nil
	}
	if n, err := w.fd.WriteAt(p, t.Offset+off); err != nil {
		return fmt.Errorf("tensorfile: write tensor %s, %d of %d bytes from byte %d: %w", quote(t.Name), n, len(p), off, err)
	}
	return nil
}

// Sync makes what this Writer's process has written durable. Every rank calls
// it before rank 0 commits: rank 0's own sync does not reach what lies in the
// memory of other nodes.
func (w *Writer) Sync() error {
	if err := w.fd.Sync(); err != nil {
		return fmt.Errorf("tensorfile: sync: %w", err)
	}
	return nil
}

// Close closes the file, without Sync. A network file system may report a
// failed write only here.
func (w *Writer) Close() error {
	if err := w.fd.Close(); err != nil {
		return fmt.Errorf("tensorfile: close: %w", err)
	}
	return nil
}

// Commit makes the file of CreateTemp durable and renames it to path, replacing
// what was there. On one process, after every Writer has been closed. It checks
// the header again. On an error before the rename path is as it was and the
// caller calls Abort; after the rename only the last step can fail, making the
// directory durable, and the error says so.
func Commit(tempPath, path string) error {
	f, err := Open(tempPath)
	if err != nil {
		return fmt.Errorf("tensorfile: commit %s: %w", path, err)
	}
	err = f.closer.(*os.File).Sync()
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("tensorfile: commit %s: %w", path, err)
	}
	if err := os.Rename(tempPath, path); err != nil {
		return fmt.Errorf("tensorfile: commit: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err == nil {
		err = dir.Sync()
		dir.Close()
	}
	// Some file systems cannot sync a directory, and need not.
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("tensorfile: commit %s: written, but it may not survive a crash of the machine: %w", path, err)
	}
	return nil
}

// Abort removes the file of CreateTemp. It is no error if that is gone already.
func Abort(tempPath string) error {
	if !strings.Contains(filepath.Base(tempPath), partialMark) {
		return fmt.Errorf("tensorfile: abort: %s is not a file of CreateTemp", tempPath)
	}
	if err := os.Remove(tempPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("tensorfile: abort: %w", err)
	}
	return nil
}
