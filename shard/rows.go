package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"ringattn/segments"
	"ringattn/tensorfile"
)

// ReadRows reads the ids, token types and padding of every batch row, a block of
// tokens at a time.
func (in *Input) ReadRows() ([]segments.Row, error) {
	if in.IDs == nil && in.Types == nil && in.Padding == nil {
		return slices.Repeat([]segments.Row{segments.SingleDocument(in.Tokens)}, in.Batch), nil
	}
	rows := make([]segments.Row, in.Batch)
	const block = blockBytes / 8
	for b := range rows {
		var row segments.RowBuilder
		for at := 0; at < in.Tokens; at += block {
			n := min(block, in.Tokens-at)
			ids, err1 := in.readTokens(in.IDs, b, at, n)
			types, err2 := in.readTokens(in.Types, b, at, n)
			padding, err3 := in.readTokens(in.Padding, b, at, n)
			if err := errors.Join(err1, err2, err3); err != nil {
				return nil, err
			}
			row.Add(n, ids, types, padding)
		}
		rows[b] = row.Row()
	}
	return rows, nil
}

func (in *Input) readTokens(t *tensorfile.Tensor, row, at, n int) ([]int64, error) {
	if t == nil {
		return nil, nil
	}
	size := t.DType.Size()
	raw := make([]byte, int64(n)*size)
	if err := in.File.ReadAt(*t, raw, (int64(row)*int64(in.Tokens)+int64(at))*size); err != nil {
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
