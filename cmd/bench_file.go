package cmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
)

// benchFile is a file of results that grows by a point at a time, on rank 0. What a point
// has to say is written at once and synced, the result or link last: a file that was cut off, at
// any byte, loses that point alone.
type benchFile struct {
	file  *os.File
	begun []byte          // meta and ranks, written with the first point of this run
	done  map[string]bool // by key: points that were there, and whether their results were wrong
}

// recordStart is how each line begins.
const recordStart = `{"type":"`

// openBenchFile opens a file, which must not be there or be empty unless its points are to
// be resumed. What stands behind the last whole result is cut off; a file with anything
// in it that bench does not write is refused, and left as it is.
func openBenchFile(path string, resume bool) (*benchFile, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, usageError("--out: %s is not a regular file", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, usageError("--out: %w", err)
	}
	b, err := readBenchFile(f, path, resume)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return b, nil
}

func readBenchFile(f *os.File, path string, resume bool) (*benchFile, error) {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, environmentError("--out: another ringattn bench writes to %s", path)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	if len(text) > 0 && !resume {
		return nil, usageError("--out: %s is there; --resume goes on with it", path)
	}
	b := &benchFile{done: map[string]bool{}}
	whole := 0
	for at := 0; ; {
		n := bytes.IndexByte(text[at:], '\n')
		if n < 0 {
			torn := string(text[at:])
			if !strings.HasPrefix(torn, recordStart) && !strings.HasPrefix(recordStart, torn) {
				return nil, foreign(path, at)
			}
			break
		}
		line := text[at : at+n]
		at += n + 1
		var record struct {
			Type  string `json:"type"`
			Key   string `json:"key"`
			Wrong int    `json:"wrong"`
		}
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, foreign(path, at-n-1)
		}
		switch record.Type {
		case "meta", "rank", "sample":
		case "result", "link":
			b.done[record.Key], whole = record.Wrong > 0, at
		default:
			return nil, foreign(path, at-n-1)
		}
	}
	b.file = f
	if err := f.Truncate(int64(whole)); err != nil {
		return nil, err
	}
	if _, err := f.Seek(int64(whole), 0); err != nil {
		return nil, err
	}
	return b, nil
}

func foreign(path string, at int) error {
	return usageError("--resume: %s, byte %d: not a line of bench --output jsonl", path, at)
}

func (b *benchFile) head(meta metaRecord, ranks []rankRecord) error {
	var text bytes.Buffer
	err := benchLines{&text}.head(meta, ranks)
	b.begun = text.Bytes()
	return err
}

func (b *benchFile) point(samples []sampleRecord, result resultRecord) error {
	return b.add(func(l benchLines) error { return l.point(samples, result) })
}

func (b *benchFile) link(x linkRecord) error {
	return b.add(func(l benchLines) error { return l.link(x) })
}

func (b *benchFile) add(lines func(benchLines) error) error {
	text := bytes.NewBuffer(b.begun)
	b.begun = nil
	if err := lines(benchLines{text}); err != nil {
		return err
	}
	if _, err := b.file.Write(text.Bytes()); err != nil {
		return err
	}
	return b.file.Sync()
}

func (b *benchFile) end() error { return b.file.Close() }
