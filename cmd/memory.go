package cmd

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"unsafe"

	"ringattn/ring"
	"ringattn/shard"
)

// held is a piece of the backend's memory that holds the rank's tokens, one after
// another in kernel order: of one tensor, or of several side by side.
//
// Where this process can read and write that memory it is used in place. Else tokens
// pass through a buffer of some mebibytes, whole tokens at a time.
type held struct {
	backend ring.Backend
	p       unsafe.Pointer
	names   []string // of the tensors, in the order in which a token has them
	width   int64    // bytes of one tensor of one token
	tokens  int
	host    []byte // the memory, nil where only the backend can read and write it
	buffer  int64  // bytes of the buffer, where there is no host
	reading sync.Mutex
	err     error // the first one of a view; its tokens are zeros after it
}

// bufferBytes is enough for copies to a device at full speed.
const bufferBytes = 16 << 20

// newHeld allocates memory of a backend for tensors of so many bytes a token. The test
// switch RINGATTN_TEST_BUFFER_BYTES gives the size of the buffer, and has all memory
// pass through it.
func newHeld(b ring.Backend, tokens int, width int64, names ...string) (*held, error) {
	h := &held{backend: b, names: names, width: width, tokens: tokens, buffer: bufferBytes}
	p, err := b.Alloc(int64(tokens) * h.stride())
	if err != nil {
		return nil, err
	}
	h.p = p
	if n, set, err := testBytes("RINGATTN_TEST_BUFFER_BYTES"); err != nil {
		return nil, err
	} else if set {
		h.buffer = n
	} else if _, ok := b.(ring.Device); !ok {
		h.host = unsafe.Slice((*byte)(p), int64(tokens)*h.stride())
	}
	return h, nil
}

// stride is the bytes of a token.
func (h *held) stride() int64 { return h.width * int64(len(h.names)) }

// place is where a tensor stands in the tokens.
func (h *held) place(name string) shard.Place {
	return shard.Place{Offset: int64(slices.Index(h.names, name)) * h.width, Stride: h.stride()}
}

// window is how many tokens may be read or written at a time.
func (h *held) window() int {
	if h.host != nil {
		return math.MaxInt
	}
	return int(max(1, h.buffer/h.stride()))
}

// write writes the tokens that at lists, window of them at most; -1 is no token. fill
// puts them, whole, into the memory that it is given, and is told their places in it.
func (h *held) write(at []int32, fill func(memory []byte, at []int32) error) error {
	if h.host != nil {
		return fill(h.host, at)
	}
	p := pack(at)
	buffer := make([]byte, int64(p.tokens)*h.stride())
	if err := fill(buffer, p.at); err != nil {
		return err
	}
	return h.each(p, buffer, func(p unsafe.Pointer, part []byte) error { return h.backend.Write(p, part) })
}

// read gives use the tokens that at lists, and their places in the memory that it gets.
func (h *held) read(at []int32, use func(memory []byte, at []int32) error) error {
	if h.host != nil {
		return use(h.host, at)
	}
	p := pack(at)
	buffer := make([]byte, int64(p.tokens)*h.stride())
	if err := h.each(p, buffer, func(p unsafe.Pointer, part []byte) error { return h.backend.Read(part, p) }); err != nil {
		return err
	}
	return use(buffer, p.at)
}

// each calls do for the pieces of the buffer that are one piece of the memory as well.
func (h *held) each(p packed, buffer []byte, do func(p unsafe.Pointer, part []byte) error) error {
	for _, r := range p.runs {
		part := buffer[int64(r.slot)*h.stride():][:int64(r.n)*h.stride()]
		if err := do(unsafe.Add(h.p, int64(r.at)*h.stride()), part); err != nil {
			return err
		}
	}
	return nil
}

// packed says how the tokens of a window stand in a buffer that has room for no others.
type packed struct {
	tokens int
	at     []int32 // by position in the window: place in the buffer, -1: none
	runs   []run
}

// run is n tokens that follow each other in memory, from at, and in the buffer, from slot.
type run struct{ at, slot, n int }

// pack keeps the order that the tokens have in memory, so that runs are long.
func pack(at []int32) packed {
	p := packed{at: slices.Repeat([]int32{-1}, len(at))}
	var order []int
	for i, token := range at {
		if token >= 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(at[i], at[j]) })
	p.tokens = len(order)
	for slot, i := range order {
		token := int(at[i])
		p.at[i] = int32(slot)
		if n := len(p.runs); n > 0 && p.runs[n-1].at+p.runs[n-1].n == token {
			p.runs[n-1].n++
		} else {
			p.runs = append(p.runs, run{token, slot, 1})
		}
	}
	return p
}

// consecutive lists n tokens.
func consecutive(first, n int) []int32 {
	at := make([]int32, n)
	for i := range at {
		at[i] = int32(first + i)
	}
	return at
}

// view shows one tensor's tokens to whoever goes through them in kernel order. Several may
// be in use at a time.
type view struct {
	*held
	offset int64 // of the tensor in a token
	first  int   // the token that the buffer starts with
	buffer []byte
}

func (h *held) view(name string) *view { return &view{held: h, offset: h.place(name).Offset} }

// token is the tensor's bytes of one token. They are good until the next call.
func (v *view) token(at int) []byte {
	memory, i, stride := v.host, int64(at), v.stride()
	if memory == nil {
		if i -= int64(v.first); i < 0 || (i+1)*stride > int64(len(v.buffer)) {
			n := min(max(1, v.window()/parts()), v.tokens-at)
			v.first, v.buffer, i = at, make([]byte, int64(n)*stride), 0
			v.reading.Lock()
			if v.err == nil {
				v.err = v.backend.Read(v.buffer, unsafe.Add(v.p, int64(at)*stride))
			}
			v.reading.Unlock()
		}
		memory = v.buffer
	}
	return memory[i*stride+v.offset:][:v.width]
}
