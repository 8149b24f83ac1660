package segmentstest

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"ringattn/segments"
)

// Documents is a row of documents of the given lengths, end to end, the last one cut
// where the row ends.
func Documents(tokens int, length func(i int) int) (row segments.Row) {
	for at := 0; at < tokens; {
		end := min(at+length(len(row.Docs)), tokens)
		row.Docs = append(row.Docs, segments.DocRun{Span: segments.Span{Start: at, End: end}, Doc: len(row.Docs)})
		at = end
	}
	return row
}

// Packed is a row of documents of the lengths in a file of testdata/lengths, repeated or
// cut to fill it.
func Packed(t testing.TB, file string, tokens int) segments.Row {
	text, err := os.ReadFile("../testdata/lengths/" + file)
	if err != nil {
		t.Fatal(err)
	}
	lengths := strings.Fields(string(text))
	return Documents(tokens, func(i int) int {
		n, err := strconv.Atoi(lengths[i%len(lengths)])
		if err != nil {
			t.Fatal(err)
		}
		return n
	})
}
