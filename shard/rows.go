package shard

import (
	"encoding/binary"
	"errors"
	"fmt"

	"ringattn/segments"
	"ringattn/tensorfile"
)

// ReadRows reads the ids, token types and padding of every batch row, a row at
// a time.
func (in *Input) ReadRows() ([]segments.Row, error) {
	rows := make([]segments.Row, in.Batch)
	for b := range rows {
		ids, err := in.readRow(in.IDs, b)
		if err != nil {
			return nil, err
		}
		types, err := in.readRow(in.Types, b)
		if err != nil {
			return nil, err
		}
		padding, err := in.readRow(in.Padding, b)
		if err != nil {
			return nil, err
		}
		rows[b] = segments.NewRow(in.Tokens, ids, types, padding)
	}
	return rows, nil
}

func (in *Input) readRow(t *tensorfile.Tensor, b int) ([]int64, error) {
	if t == nil {
		return nil, nil
	}
	raw := make([]byte, int64(in.Tokens)*t.DType.Size())
	if err := in.File.ReadAt(*t, raw, int64(b*len(raw))); err != nil {
		return nil, err
	}
	return tensorfile.DecodeInt(t.DType, raw)
}

// Mask is the mask of the input, given what ReadRows read.
func (in *Input) Mask(rows []segments.Row) segments.Mask {
	return segments.Mask{Causal: in.Causal, Window: in.Window, Vision: in.Vision, Rows: rows}
}

// EncodeRows writes rows as a byte string, a few bytes a run, to be sent to the
// other ranks.
func EncodeRows(rows []segments.Row) []byte {
	p := binary.AppendUvarint(nil, uint64(len(rows)))
	span := func(at int, s segments.Span) int {
		p = binary.AppendUvarint(p, uint64(s.Start-at))
		p = binary.AppendUvarint(p, uint64(s.Len()))
		return s.End
	}
	for _, row := range rows {
		p = binary.AppendUvarint(p, uint64(len(row.Docs)))
		at := 0
		for _, d := range row.Docs {
			at = span(at, d.Span)
			p = binary.AppendUvarint(p, uint64(d.Doc))
		}
		p = binary.AppendUvarint(p, uint64(len(row.Images)))
		at = 0
		for _, s := range row.Images {
			at = span(at, s)
		}
	}
	return p
}

var errRows = errors.New("shard: the encoded rows are damaged")

// DecodeRows reads what EncodeRows wrote.
func DecodeRows(p []byte) (rows []segments.Row, err error) {
	number := func() int {
		v, n := binary.Uvarint(p)
		if n <= 0 || v > 1<<40 {
			err = errRows
			p = nil
			return 0
		}
		p = p[n:]
		return int(v)
	}
	count := func() int {
		n := number()
		if n > len(p) { // each takes a byte at least
			err = errRows
			return 0
		}
		return n
	}
	span := func(at int) segments.Span {
		start := at + number()
		return segments.Span{Start: start, End: start + number()}
	}
	rows = make([]segments.Row, count())
	for b := range rows {
		at := 0
		if n := count(); n > 0 {
			rows[b].Docs = make([]segments.DocRun, n)
		}
		for i := range rows[b].Docs {
			s := span(at)
			rows[b].Docs[i] = segments.DocRun{Span: s, Doc: number()}
			at = s.End
		}
		at = 0
		if n := count(); n > 0 {
			rows[b].Images = make([]segments.Span, n)
		}
		for i := range rows[b].Images {
			rows[b].Images[i] = span(at)
			at = rows[b].Images[i].End
		}
	}
	if err == nil && len(p) > 0 {
		err = fmt.Errorf("%w: %d bytes are left over", errRows, len(p))
	}
	return rows, err
}
