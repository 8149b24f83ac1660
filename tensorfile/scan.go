package tensorfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON from a range of a file, a buffer at a time, in bounded
// memory. encoding/json is not used because it buffers a string of any length,
// keeps the last of several equal keys, and replaces what is not UTF-8.
type scanner struct {
	r          io.ReaderAt
	start      int64 // of the range in the file, in bytes
	fetch, end int64 // next byte to fetch, end of the range
	mem        []byte
	buf        []byte // fetched and not yet consumed
	sum        hash.Hash
	room       int    // bytes that may still be kept
	str        []byte // the string being read
	err        error  // a failed read
}

func newScanner(r io.ReaderAt, start, end int64) *scanner {
	return &scanner{
		r: r, start: start, fetch: start, end: end,
		mem: make([]byte, min(end-start, 64<<10)), sum: sha256.New(), room: maxRoom,
	}
}

// take says whether n more bytes may be kept, and counts them.
func (s *scanner) take(n int) bool {
	s.room -= n
	return s.room >= 0
}

// fill makes sure that a byte is in the buffer; false at the end of the range.
func (s *scanner) fill() bool {
	if len(s.buf) > 0 {
		return true
	}
	if s.err != nil || s.fetch == s.end {
		return false
	}
	p := s.mem[:min(int64(len(s.mem)), s.end-s.fetch)]
	if s.err = readFull(s.r, p, s.fetch); s.err != nil {
		return false
	}
	s.sum.Write(p)
	s.fetch += int64(len(p))
	s.buf = p
	return true
}

// peek returns the next byte without consuming it; false at the end.
func (s *scanner) peek() (byte, bool) {
	if !s.fill() {
		return 0, false
	}
	return s.buf[0], true
}

// token skips white space and returns the next byte without consuming it.
func (s *scanner) token() (byte, bool) {
	for s.fill() {
		for i, c := range s.buf {
			if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
				s.buf = s.buf[i:]
				return c, true
			}
		}
		s.buf = nil
	}
	return 0, false
}

// unexpected is the error for the next byte being something else than what.
func (s *scanner) unexpected(what string) error {
	at := s.fetch - int64(len(s.buf)) - s.start
	c, ok := s.peek()
	if !ok {
		return fmt.Errorf("header byte %d: want %s, got the end of the header", at, what)
	}
	return fmt.Errorf("header byte %d: want %s, got %q", at, what, []byte{c})
}

// want consumes the byte c after white space.
func (s *scanner) want(c byte, what string) error {
	if got, ok := s.token(); !ok || got != c {
		return s.unexpected(what)
	}
	s.buf = s.buf[1:]
	return nil
}

// object reads an object, calling member after each key and its colon; member
// reads the value.
func (s *scanner) object(member func(key string) error) error {
	if err := s.want('{', "an object"); err != nil {
		return err
	}
	if c, ok := s.token(); ok && c == '}' {
		s.buf = s.buf[1:]
		return nil
	}
	for {
		key, err := s.string()
		if err != nil {
			return err
		}
		if err := s.want(':', "':'"); err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if c, ok := s.token(); ok && c == ',' {
			s.buf = s.buf[1:]
			continue
		}
		return s.want('}', "',' or '}'")
	}
}

// ints reads an array of at most limit whole numbers.
func (s *scanner) ints(limit int) ([]int64, error) {
	if err := s.want('[', "an array"); err != nil {
		return nil, err
	}
	v := []int64{}
	if c, ok := s.token(); ok && c == ']' {
		s.buf = s.buf[1:]
		return v, nil
	}
	for {
		n, err := s.int()
		if err != nil {
			return nil, err
		}
		if len(v) == limit {
			return nil, fmt.Errorf("more than %d numbers", limit)
		}
		v = append(v, n)
		if c, ok := s.token(); ok && c == ',' {
			s.buf = s.buf[1:]
			continue
		}
		return v, s.want(']', "',' or ']'")
	}
}

// int reads a whole number that fits 64 bits, without fraction or exponent.
func (s *scanner) int() (int64, error) {
	const what = "a whole number"
	if c, ok := s.token(); !ok || (c != '-' && (c < '0' || c > '9')) {
		return 0, s.unexpected(what)
	}
	var text []byte
	for len(text) < 40 { // longer than any number that fits
		c, ok := s.peek()
		if !ok || !bytes.ContainsRune([]byte("+-.0123456789Ee"), rune(c)) {
			break
		}
		text = append(text, c)
		s.buf = s.buf[1:]
	}
	digits := bytes.TrimPrefix(text, []byte("-"))
	n, err := strconv.ParseInt(string(text), 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%s does not fit 64 bits", text)
	}
	if err != nil || digits[0] == '+' || (digits[0] == '0' && (len(digits) > 1 || text[0] == '-')) {
		return 0, fmt.Errorf("want %s, got %s", what, text)
	}
	return n, nil
}

// string reads a string that fits the room left; it does not take the room.
func (s *scanner) string() (string, error) {
	if err := s.want('"', "a string"); err != nil {
		return "", err
	}
	s.str = s.str[:0]
	for s.fill() {
		n := slices.IndexFunc(s.buf, func(c byte) bool { return c == '"' || c == '\\' || c < ' ' })
		if n < 0 {
			n = len(s.buf)
		}
		if len(s.str)+n > s.room {
			return "", errRoom
		}
		if n > cap(s.str)-len(s.str) { // double, as append grows by a quarter
			s.str = slices.Grow(s.str, len(s.str)+n)
		}
		s.str = append(s.str, s.buf[:n]...)
		s.buf = s.buf[n:]
		if len(s.buf) == 0 {
			continue
		}
		switch s.buf[0] {
		case '"':
			s.buf = s.buf[1:]
			if !utf8.Valid(s.str) {
				return "", fmt.Errorf("string %s is not UTF-8", quote(string(s.str)))
			}
			return string(s.str), nil
		case '\\':
			s.buf = s.buf[1:]
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			s.str = utf8.AppendRune(s.str, r)
		default:
			return "", s.unexpected("an escaped control character")
		}
	}
	return "", s.unexpected("the end of a string")
}

// escape reads what follows a backslash.
func (s *scanner) escape() (rune, error) {
	const what = "an escape"
	c, ok := s.peek()
	if !ok {
		return 0, s.unexpected(what)
	}
	if i := bytes.IndexByte([]byte(`"\/bfnrt`), c); i >= 0 {
		s.buf = s.buf[1:]
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return 0, s.unexpected(what)
	}
	r, err := s.hex()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if c, ok := s.peek(); !ok || c != '\\' {
		return 0, s.unexpected("the second half of a surrogate pair")
	}
	s.buf = s.buf[1:]
	second, err := s.hex()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, second); r == utf8.RuneError {
		return 0, errors.New("a string holds half a surrogate pair")
	}
	return r, nil
}

// hex reads u and four hexadecimal digits.
func (s *scanner) hex() (rune, error) {
	var text [5]byte
	for i := range text {
		c, ok := s.peek()
		if !ok || (i == 0 && c != 'u') {
			return 0, s.unexpected(`\u and four hexadecimal digits`)
		}
		text[i] = c
		s.buf = s.buf[1:]
	}
	n, err := strconv.ParseUint(string(text[1:]), 16, 16)
	if err != nil {
		return 0, fmt.Errorf(`want four hexadecimal digits after \u, got %q`, text[1:])
	}
	return rune(n), nil
}

// padding reads the rest of the range, which may hold spaces only.
func (s *scanner) padding() error {
	for s.fill() {
		if i := slices.IndexFunc(s.buf, func(c byte) bool { return c != ' ' }); i >= 0 {
			s.buf = s.buf[i:]
			return s.unexpected("spaces after the object")
		}
		s.buf = nil
	}
	return s.err
}
