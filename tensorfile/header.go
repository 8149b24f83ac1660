package tensorfile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

const (
	// maxHeader is the format's own limit on the header, in bytes.
	maxHeader = 100_000_000
	// maxRoom bounds what is kept of a header, in bytes: a valid header of
	// maxHeader bytes could describe two million tensors.
	maxRoom = 8 << 20
	// tensorRoom and metadataRoom are what an entry takes of it besides its
	// strings and dimensions: the struct and its place in the index.
	tensorRoom, metadataRoom = 128, 64
	// maxRank is the largest number of dimensions, as in NumPy.
	maxRank = 64

	metadataKey = "__metadata__"
)

var errRoom = fmt.Errorf("names, shapes and metadata of the header take more than %d MiB", maxRoom>>20)

// header reads the header from s into f and checks it. The format allows
// nothing but strings in the metadata and three known keys in a tensor's entry,
// so a value nested deeper is refused at its first byte and no recursion is
// needed.
func (f *File) header(s *scanner) error {
	if c, ok := s.peek(); !ok || c != '{' {
		return errors.New("the header does not begin with '{'")
	}
	f.index = map[string]int{}
	err := s.object(func(name string) error {
		if name == metadataKey {
			if f.metadata != nil {
				return fmt.Errorf("duplicate %s", metadataKey)
			}
			f.metadata = map[string]string{}
			if err := s.metadata(f.metadata); err != nil {
				return fmt.Errorf("%s: %w", metadataKey, err)
			}
			return nil
		}
		if _, ok := f.index[name]; ok {
			return fmt.Errorf("tensor %s: duplicate name", quote(name))
		}
		t, err := s.tensor(name, 8+f.headerLen, f.size)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		f.index[name] = len(f.tensors)
		if len(f.tensors) == cap(f.tensors) { // double, as append grows by a quarter
			f.tensors = slices.Grow(f.tensors, len(f.tensors)+1)
		}
		f.tensors = append(f.tensors, t)
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.padding(); err != nil {
		return err
	}
	slices.SortFunc(f.tensors, func(a, b Tensor) int {
		// An empty tensor comes before the one that begins where it does.
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Name, b.Name))
	})
	for i, t := range f.tensors {
		f.index[t.Name] = i
	}
	return f.checkTiling()
}

// checkTiling checks that the tensors, sorted, cover the data exactly once.
func (f *File) checkTiling() error {
	data := 8 + f.headerLen
	at, before := data, "the header"
	for _, t := range f.tensors {
		if t.Offset < at {
			return fmt.Errorf("tensor %s: overlaps %s: begins at data byte %d, before data byte %d", quote(t.Name), before, t.Offset-data, at-data)
		}
		if t.Offset > at {
			return fmt.Errorf("tensor %s: hole of %d bytes between %s and it", quote(t.Name), t.Offset-at, before)
		}
		at, before = t.Offset+t.Bytes, "tensor "+quote(t.Name)
	}
	if at < f.size {
		return fmt.Errorf("%d trailing bytes after %s", f.size-at, before)
	}
	return nil
}

// metadata reads the metadata object into m.
func (s *scanner) metadata(m map[string]string) error {
	return s.object(func(key string) error {
		if _, ok := m[key]; ok {
			return fmt.Errorf("duplicate key %s", quote(key))
		}
		if !s.take(metadataRoom + len(key)) {
			return errRoom
		}
		value, err := s.string()
		if err != nil {
			return fmt.Errorf("value of %s: %w", quote(key), err)
		}
		if !s.take(len(value)) {
			return errRoom
		}
		m[key] = value
		return nil
	})
}

// tensor reads one tensor's entry and checks it by itself; data and end are
// where the data section of the file begins and ends.
func (s *scanner) tensor(name string, data, end int64) (Tensor, error) {
	t := Tensor{Name: name}
	var offsets []int64
	seen := map[string]bool{}
	err := s.object(func(key string) error {
		if seen[key] {
			return fmt.Errorf("duplicate key %s", quote(key))
		}
		var err error
		switch key {
		case "dtype":
			var v string
			v, err = s.string()
			t.DType = DType(v)
		case "shape":
			t.Shape, err = s.ints(maxRank)
		case "data_offsets":
			if offsets, err = s.ints(2); err == nil && len(offsets) != 2 {
				err = fmt.Errorf("want 2 numbers, got %d", len(offsets))
			}
		default:
			return fmt.Errorf("unknown key %s", quote(key))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		seen[key] = true
		return nil
	})
	if err != nil {
		return t, err
	}
	for _, key := range []string{"dtype", "shape", "data_offsets"} {
		if !seen[key] {
			return t, fmt.Errorf("%s is missing", key)
		}
	}
	need, err := byteSize(t.DType, t.Shape)
	if err != nil {
		return t, err
	}
	first, last := offsets[0], offsets[1]
	switch {
	case first < 0 || last < 0:
		return t, fmt.Errorf("data_offsets %v: negative", offsets)
	case last < first:
		return t, fmt.Errorf("data_offsets %v: end before they begin", offsets)
	case last > end-data:
		return t, fmt.Errorf("data_offsets %v: end after the %d data bytes of the file", offsets, end-data)
	case last-first != need:
		return t, fmt.Errorf("data_offsets %v: %d bytes, but shape %v of %s takes %d", offsets, last-first, t.Shape, t.DType, need)
	}
	if !s.take(tensorRoom + len(name) + 8*len(t.Shape)) {
		return t, errRoom
	}
	t.Offset, t.Bytes = data+first, need
	return t, nil
}

// quote is s in quotes, shortened if long, for a message.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q...", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
