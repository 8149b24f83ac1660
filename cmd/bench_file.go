package cmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
)

// benchFile is a file of results that grows by a point at a time, on rank 0. What a point
// has to say is written at once and synced, the result last: a file that was cut off, at
// any byte, loses that point alone.
type benchFile struct {
	file  *os.File
	begun []byte          // meta and ranks, written with the first point of this run
	done  map[string]bool // by key: points that were there, and whether their results were wrong
}

// openBenchFile opens a file, which must not be there or be empty unless its points are to
// be resumed. What stands behind the last whole result is cut off.
func openBenchFile(path string, resume bool) (*benchFile, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
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
			return nil, usageError("--resume: %s, byte %d: not a line of bench --output jsonl: %v", path, at-n-1, err)
		}
		if record.Type == "result" {
			b.done[record.Key], whole = record.Wrong > 0, at
		}
	}
	if b.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	if err := b.file.Truncate(int64(whole)); err != nil {
		return nil, errors.Join(err, b.file.Close())
	}
	if _, err := b.file.Seek(int64(whole), 0); err != nil {
		return nil, errors.Join(err, b.file.Close())
	}
	return b, nil
}

func (b *benchFile) head(meta metaRecord, ranks []rankRecord) error {
	var text bytes.Buffer
	err := benchLines{&text}.head(meta, ranks)
	b.begun = text.Bytes()
	return err
}

func (b *benchFile) point(samples []sampleRecord, result resultRecord) error {
	text := bytes.NewBuffer(b.begun)
	b.begun = nil
	if err := (benchLines{text}).point(samples, result); err != nil {
		return err
	}
	if _, err := b.file.Write(text.Bytes()); err != nil {
		return err
	}
	return b.file.Sync()
}

func (b *benchFile) end() error { return b.file.Close() }
