package tensorfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
)

// hostileBytes bounds all that is ever allocated, so also what is ever held.
const hostileBytes = 50 << 20

// endless is a file of size bytes whose header is begin and then unit without
// end, where a '#' in unit is a number of 8 letters that differs from unit to
// unit. It holds nothing in memory.
type endless struct {
	begin, unit string
	header      int64
	size        int64
}

func (e endless) ReadAt(p []byte, off int64) (int, error) {
	var prefix [8]byte
	binary.LittleEndian.PutUint64(prefix[:], uint64(e.header))
	begin := string(prefix[:]) + e.begin
	unit := []byte(strings.ReplaceAll(e.unit, "#", "########"))
	mark := strings.IndexByte(e.unit, '#')
	if mark < 0 {
		unit = bytes.Repeat(unit, 1+4096/len(unit)) // or the test would time itself
	}
	n := 0
	for n < len(p) && off < e.size {
		if off < int64(len(begin)) {
			k := copy(p[n:], begin[off:])
			n, off = n+k, off+int64(k)
			continue
		}
		at := off - int64(len(begin))
		if mark >= 0 {
			i := at / int64(len(unit))
			for j := range 8 {
				unit[mark+j] = byte('a' + i>>(4*j)&15)
			}
		}
		k := copy(p[n:], unit[at%int64(len(unit)):])
		n, off = n+k, off+int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func TestHostileHeaders(t *testing.T) {
	const entry = `"#":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`
	const full = hostileHeader
	for _, c := range []struct {
		name        string
		begin, unit string
		header      int64
		want        string
	}{
		{"zeros", "", "\x00", full, "does not begin with"},
		{"spaces inside", "{", " ", full, "got the end of the header"},
		{"spaces after, and trailing bytes", "{}", " ", full, "trailing bytes"},
		{"nested arrays", "", "[", full, "does not begin with"},
		{"nested objects", "", `{"a":`, full, "unknown key"},
		{"endless name", `{"`, "n", full, "more than 8 MiB"},
		{"endless name of escapes", `{"`, `\n`, full, "more than 8 MiB"},
		{"endless dtype", `{"q":{"dtype":"`, "n", full, "more than 8 MiB"},
		{"endless key of an entry", `{"q":{"`, "n", full, "more than 8 MiB"},
		{"endless metadata value", `{"__metadata__":{"a":"`, "n", full, "more than 8 MiB"},
		{"endless metadata", `{"__metadata__":{`, `"#":"",`, full, "more than 8 MiB"},
		{"endless shape", `{"q":{"shape":[1`, ",1", full, "more than 64 numbers"},
		{"endless number", `{"q":{"shape":[1`, "1", full, "does not fit 64 bits"},
		{"endless tensors", "{", entry, full, "more than 8 MiB"},
		{"endless tensors of many dimensions", "{", strings.Replace(entry, "[0]", "[0"+strings.Repeat(",1", 63)+"]", 1), full, "more than 8 MiB"},
		{"a header over the cap", "{", " ", maxHeader + 1, "over the limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := endless{begin: c.begin, unit: c.unit, header: c.header, size: full + 108}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := Parse(e, e.size)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrFormat) {
				t.Errorf("got %v, want ErrFormat with %q", err, c.want)
			}
			allocated := after.TotalAlloc - before.TotalAlloc
			t.Logf("%v, %d KiB allocated", took, allocated>>10)
			if allocated > hostileBytes {
				t.Errorf("allocated %d bytes, want under %d", allocated, hostileBytes)
			}
		})
	}
}

// brokenReader fails after the first good bytes.
type brokenReader struct {
	data []byte
	good int64
}

var errBroken = errors.New("input/output error")

func (b brokenReader) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > b.good {
		return 0, errBroken
	}
	return copy(p, b.data[off:]), nil
}

// A read that fails is not the file's fault and must not look like it.
func TestFailedReadIsNotMalformed(t *testing.T) {
	file := one("U8", "[4]", "[0,4]", 4)
	for _, good := range []int64{0, 8, int64(len(file)) - 4} {
		f, err := Parse(brokenReader{file, good}, int64(len(file)))
		if err == nil {
			q, _ := f.Lookup("q")
			err = f.ReadAt(q, make([]byte, 4), 0)
		}
		if !errors.Is(err, errBroken) || errors.Is(err, ErrFormat) {
			t.Errorf("%d good bytes: got %v, want the reader's error", good, err)
		}
	}
	// A file that became shorter between stat and read.
	for _, size := range []int{4, 20, len(file) - 2} {
		f, err := Parse(strings.NewReader(string(file[:size])), int64(len(file)))
		if err == nil {
			q, _ := f.Lookup("q")
			err = f.ReadAt(q, make([]byte, 4), 0)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrFormat) {
			t.Errorf("%d bytes: got %v, want io.ErrUnexpectedEOF", size, err)
		}
	}
}
