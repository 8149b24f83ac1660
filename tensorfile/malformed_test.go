package tensorfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// raw is a file with that header and that many zero data bytes.
func raw(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

// length is a file whose first 8 bytes are n, whatever follows.
func length(n uint64, rest string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
}

// one is a file with a single tensor q.
func one(dtype, shape, offsets string, data int) []byte {
	return raw(fmt.Sprintf(`{"q":{"dtype":"%s","shape":%s,"data_offsets":%s}}`, dtype, shape, offsets), data)
}

// two is a file with the U8 tensors a, of 4 elements, and b, of n, at those offsets.
func two(a, b string, n, data int) []byte {
	return raw(fmt.Sprintf(`{"a":{"dtype":"U8","shape":[4],"data_offsets":%s},"b":{"dtype":"U8","shape":[%d],"data_offsets":%s}}`, a, n, b), data)
}

var deep = strings.Repeat("[", 1<<20)

// malformed are files that must be refused. I1 marks those of case I1.
var malformed = []struct {
	name string
	file []byte
	want []string // fragments of the message
}{
	{"empty file", nil, []string{"0 bytes, too short"}},
	{"7 bytes", make([]byte, 7), []string{"7 bytes, too short"}},
	{"I1 header length 2^63", length(1<<63, "{}"), []string{"header length 9223372036854775808 is over the limit"}},
	{"header length 2^64-1", length(1<<64-1, "{}"), []string{"over the limit"}},
	{"header length over the cap", length(maxHeader+1, "{}"), []string{"header length 100000001 is over the limit of 100000000"}},
	{"I1 header length = file size", length(10, "{}"), []string{"header length 10 does not fit a file of 10 bytes"}},
	{"header length one too many", length(3, "{}"), []string{"header length 3 does not fit a file of 10 bytes"}},
	{"header length 0", length(0, ""), []string{"does not begin with '{'"}},

	{"not JSON", raw("pickle", 0), []string{"does not begin with '{'"}},
	{"space first", raw(" {}", 0), []string{"does not begin with '{'"}},
	{"array", raw("[]", 0), []string{"does not begin with '{'"}},
	{"cut short", raw(`{"q":{"dtype":"F3`, 0), []string{`"q"`, "dtype", "got the end of the header"}},
	{"cut after brace", raw(`{`, 0), []string{"want a string, got the end of the header"}},
	{"key not a string", raw(`{1:2}`, 0), []string{`want a string, got "1"`}},
	{"no colon", raw(`{"q" 1}`, 0), []string{`want ':', got "1"`}},
	{"trailing comma", raw(`{"__metadata__":{},}`, 0), []string{`want a string, got "}"`}},
	{"trailing text", raw(`{} x`, 0), []string{`header byte 3: want spaces after the object, got "x"`}},
	{"trailing newline", raw("{}\n", 0), []string{"want spaces after the object"}},
	{"trailing zero", raw("{}\x00", 0), []string{"want spaces after the object"}},
	{"second object", raw("{}{}", 0), []string{"want spaces after the object"}},
	{"bad UTF-8", raw("{\"q\xff\":{}}", 0), []string{"is not UTF-8"}},
	{"control character", raw("{\"q\n\":{}}", 0), []string{"want an escaped control character"}},
	{"bad escape", raw(`{"\x":{}}`, 0), []string{`want an escape, got "x"`}},
	{"bad hex", raw(`{"\u12g4":{}}`, 0), []string{`want four hexadecimal digits`, "12g4"}},
	{"half a pair", raw(`{"\ud800":{}}`, 0), []string{"second half of a surrogate pair"}},
	{"wrong pair", raw(`{"\ud800\u0041":{}}`, 0), []string{"half a surrogate pair"}},
	{"lone second half", raw(`{"\udc00\udc00":{}}`, 0), []string{"half a surrogate pair"}},
	{"deep nesting at the top", raw(deep, 0), []string{"does not begin with '{'"}},
	{"deep nesting in an entry", raw(`{"q":`+deep, 0), []string{`"q"`, `want an object, got "["`}},
	{"deep nesting in a shape", raw(`{"q":{"shape":`+deep, 0), []string{`"q"`, `shape`, `want a whole number, got "["`}},
	{"deep objects", raw(strings.Repeat(`{"a":`, 1<<18), 0), []string{`tensor "a": unknown key "a"`}},

	{"duplicate name", raw(`{"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), []string{`tensor "q": duplicate name`}},
	{"duplicate name by escape", raw(`{"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0071":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), []string{`tensor "q": duplicate name`}},
	{"duplicate metadata", raw(`{"__metadata__":{},"__metadata__":{}}`, 0), []string{"duplicate __metadata__"}},
	{"duplicate metadata key", raw(`{"__metadata__":{"causal":"true","causal":"false"}}`, 0), []string{`__metadata__: duplicate key "causal"`}},
	{"metadata not an object", raw(`{"__metadata__":"x"}`, 0), []string{`__metadata__: `, "want an object"}},
	{"metadata null", raw(`{"__metadata__":null}`, 0), []string{`__metadata__: `, "want an object"}},
	{"metadata number", raw(`{"__metadata__":{"window":16}}`, 0), []string{`__metadata__: value of "window": `, `want a string, got "1"`}},
	{"metadata nested", raw(`{"__metadata__":{"window":{"a":"b"}}}`, 0), []string{`value of "window"`, "want a string"}},

	{"entry not an object", raw(`{"q":5}`, 0), []string{`tensor "q": `, `want an object, got "5"`}},
	{"entry null", raw(`{"q":null}`, 0), []string{`tensor "q": `, `want an object`}},
	{"duplicate dtype", raw(`{"q":{"dtype":"U8","dtype":"U8"}}`, 0), []string{`tensor "q": duplicate key "dtype"`}},
	{"unknown key", raw(`{"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"stride":[1]}}`, 0), []string{`tensor "q": unknown key "stride"`}},
	{"key in capitals", raw(`{"q":{"DType":"U8"}}`, 0), []string{`tensor "q": unknown key "DType"`}},
	{"no dtype", raw(`{"q":{"shape":[0],"data_offsets":[0,0]}}`, 0), []string{`tensor "q": dtype is missing`}},
	{"no shape", raw(`{"q":{"dtype":"U8","data_offsets":[0,0]}}`, 0), []string{`tensor "q": shape is missing`}},
	{"no data_offsets", raw(`{"q":{"dtype":"U8","shape":[0]}}`, 0), []string{`tensor "q": data_offsets is missing`}},
	{"empty entry", raw(`{"q":{}}`, 0), []string{`tensor "q": dtype is missing`}},
	{"dtype number", raw(`{"q":{"dtype":1}}`, 0), []string{`tensor "q": dtype: `, "want a string"}},
	{"shape string", one("U8", `"4"`, "[0,4]", 4), []string{`tensor "q": shape: `, "want an array"}},

	{"I1 unknown dtype past the end", one("F8_X", "[1000]", "[0,1000000]", 8), []string{`tensor "q": unknown dtype "F8_X"`}},
	{"dtype in small letters", one("f32", "[1]", "[0,4]", 4), []string{`tensor "q": unknown dtype "f32"`}},
	{"I1 short range", one("F32", "[1000,1000]", "[0,4]", 4), []string{`tensor "q": data_offsets [0 4]: 4 bytes, but shape [1000 1000] of F32 takes 4000000`}},
	{"long range", one("F32", "[1]", "[0,8]", 8), []string{`tensor "q": `, "8 bytes, but shape [1] of F32 takes 4"}},
	{"I1 end before begin", one("F32", "[1]", "[8,4]", 8), []string{`tensor "q": data_offsets [8 4]: end before they begin`}},
	{"I1 negative offset", one("F32", "[2]", "[-4,4]", 4), []string{`tensor "q": data_offsets [-4 4]: negative`}},
	{"I1 end past the file", one("F32", "[2]", "[0,8]", 7), []string{`tensor "q": data_offsets [0 8]: end after the 7 data bytes`}},
	{"both past the file", one("F32", "[2]", "[800,808]", 8), []string{`tensor "q": data_offsets [800 808]: end after`}},
	{"offset 2^63-1", one("U8", "[1]", "[9223372036854775806,9223372036854775807]", 8), []string{`tensor "q": `, "end after"}},
	{"offset 2^63", one("U8", "[1]", "[0,9223372036854775808]", 8), []string{`tensor "q": data_offsets: 9223372036854775808 does not fit 64 bits`}},
	{"one offset", one("U8", "[1]", "[0]", 1), []string{`tensor "q": data_offsets: want 2 numbers, got 1`}},
	{"three offsets", one("U8", "[1]", "[0,1,1]", 1), []string{`tensor "q": data_offsets: more than 2 numbers`}},

	{"shape overflow", one("F32", "[4294967296,4294967296]", "[0,0]", 0), []string{`tensor "q": shape [4294967296 4294967296] of F32 overflows`}},
	{"shape overflow to 4", one("U8", "[4294967297,4294967297,4]", "[0,4]", 4), []string{`tensor "q": `, "overflows"}},
	{"shape overflow by dtype", one("F64", "[2305843009213693952]", "[0,0]", 0), []string{`tensor "q": `, "overflows"}},
	{"shape overflow beside 0", one("F32", "[0,4294967296,4294967296]", "[0,0]", 0), []string{`tensor "q": `, "overflows"}},
	{"negative dimension", one("U8", "[-1]", "[0,0]", 0), []string{`tensor "q": negative dimension -1 in shape [-1]`}},
	{"two negative dimensions", one("U8", "[-2,-2]", "[0,4]", 4), []string{`tensor "q": negative dimension -2`}},
	{"dimension 1e3", one("U8", "[1e3]", "[0,1000]", 1000), []string{`tensor "q": shape: want a whole number, got 1e3`}},
	{"dimension 1.5", one("U8", "[1.5]", "[0,1]", 1), []string{`tensor "q": shape: want a whole number, got 1.5`}},
	{"dimension 4.0", one("U8", "[4.0]", "[0,4]", 4), []string{`tensor "q": shape: want a whole number, got 4.0`}},
	{"dimension 04", one("U8", "[04]", "[0,4]", 4), []string{`tensor "q": shape: want a whole number, got 04`}},
	{"dimension -0", one("U8", "[-0]", "[0,0]", 0), []string{`tensor "q": shape: want a whole number, got -0`}},
	{"dimension -", one("U8", "[-]", "[0,0]", 0), []string{`tensor "q": shape: want a whole number, got -`}},
	{"dimension null", one("U8", "[null]", "[0,0]", 0), []string{`tensor "q": shape: `, `want a whole number, got "n"`}},
	{"array comma", one("U8", "[4,]", "[0,4]", 4), []string{`tensor "q": shape: `, `want a whole number, got "]"`}},
	{"array without comma", one("U8", "[2 2]", "[0,4]", 4), []string{`tensor "q": shape: `, `want ',' or ']', got "2"`}},
	{"65 dimensions", one("U8", "[1"+strings.Repeat(",1", 64)+"]", "[0,1]", 1), []string{`tensor "q": shape: more than 64 numbers`}},
	{"half a byte", one("F4", "[3]", "[0,1]", 1), []string{`tensor "q": `, "not a whole number of bytes"}},

	{"overlap", two("[0,4]", "[3,8]", 5, 8), []string{`tensor "b": overlaps tensor "a"`}},
	{"overlap, other order", two("[4,8]", "[0,5]", 5, 8), []string{`tensor "a": overlaps tensor "b"`}},
	{"same place twice", two("[0,4]", "[0,4]", 4, 4), []string{`tensor "b": overlaps tensor "a"`}},
	{"empty tensor inside another", two("[0,4]", "[2,2]", 0, 4), []string{`tensor "b": overlaps tensor "a"`}},
	{"hole", two("[0,4]", "[5,8]", 3, 8), []string{`tensor "b": hole of 1 bytes between tensor "a" and it`}},
	{"hole before the first", one("U8", "[4]", "[4,8]", 8), []string{`tensor "q": hole of 4 bytes between the header and it`}},
	{"hole before an empty tensor", one("U8", "[0]", "[4,4]", 4), []string{`tensor "q": hole of 4 bytes`}},
	{"trailing bytes", one("U8", "[4]", "[0,4]", 7), []string{`3 trailing bytes after tensor "q"`}},
	{"trailing bytes without tensors", raw("{}", 1), []string{"1 trailing bytes after the header"}},
	{"a long name is cut in the message", raw(`{"`+strings.Repeat("n", 1000)+`":5}`, 0), []string{`nnn"...: `}},
}

func TestMalformedIsRefused(t *testing.T) {
	for _, c := range malformed {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.safetensors")
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := Open(path)
			if err == nil {
				t.Fatalf("accepted, with tensors %v", f.Tensors())
			}
			if !errors.Is(err, ErrFormat) {
				t.Errorf("not ErrFormat: %v", err)
			}
			for _, want := range append(c.want, "tensorfile: open "+path+": ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("message %q lacks %q", err, want)
				}
			}
			if len(err.Error()) > 1000 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
			if _, err := Parse(bytes.NewReader(c.file), int64(len(c.file))); !errors.Is(err, ErrFormat) {
				t.Errorf("Parse: %v", err)
			}
		})
	}
}

// wellFormed are files that must be accepted, with the tensors as Go prints them.
var wellFormed = []struct {
	name string
	file []byte
	want string // name dtype shape begin+bytes (from the data), in file order
}{
	{"no tensors", raw("{}", 0), ""},
	{"spaces after", raw("{}      ", 0), ""},
	{"white space inside", raw("{ \"q\"\t:\n{\"dtype\" : \"U8\" , \"shape\" : [ 2 , 2 ] , \"data_offsets\" : [ 0 , 4 ] } }", 4), "q U8 [2 2] 0+4;"},
	{"empty white space inside", raw(`{"__metadata__": { } }`, 0), ""},
	{"scalar", one("F32", "[]", "[0,4]", 4), "q F32 [] 0+4;"},
	{"keys in another order", raw(`{"q":{"data_offsets":[0,4],"shape":[1],"dtype":"I32"}}`, 4), "q I32 [1] 0+4;"},
	{"empty tensor", one("F32", "[0,5]", "[0,0]", 0), "q F32 [0 5] 0+0;"},
	{"empty tensor between", two("[0,4]", "[4,4]", 0, 4), "a U8 [4] 0+4;b U8 [0] 4+0;"},
	{"empty tensor first", two("[0,4]", "[0,0]", 0, 4), "b U8 [0] 0+0;a U8 [4] 0+4;"},
	{"file order is not header order", two("[3,7]", "[0,3]", 3, 7), "b U8 [3] 0+3;a U8 [4] 3+4;"},
	{"unaligned", raw(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}}`, 7), "a U8 [3] 0+3;b F32 [1] 3+4;"},
	{"small floats", raw(`{"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F4","shape":[2],"data_offsets":[3,4]},"c":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[4,7]}}`, 7), "a F8_E4M3 [3] 0+3;b F4 [2] 3+1;c F6_E2M3 [4] 4+3;"},
	{"wide types", raw(`{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"U64","shape":[1],"data_offsets":[8,16]}}`, 16), "a C64 [1] 0+8;b U64 [1] 8+8;"},
	{"escapes", raw(`{"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), "\"\\/\b\f\n\r\té😀 U8 [0] 0+0;"},
	{"64 dimensions", one("U8", "[1"+strings.Repeat(",1", 63)+"]", "[0,1]", 1), "q U8 [1" + strings.Repeat(" 1", 63) + "] 0+1;"},
}

func TestWellFormedIsAccepted(t *testing.T) {
	for _, c := range wellFormed {
		t.Run(c.name, func(t *testing.T) {
			f, err := Parse(bytes.NewReader(c.file), int64(len(c.file)))
			if err != nil {
				t.Fatal(err)
			}
			var got string
			for _, x := range f.Tensors() {
				got += fmt.Sprintf("%s %s %v %d+%d;", x.Name, x.DType, x.Shape, x.Offset-8-f.headerLen, x.Bytes)
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
