package cmd

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"ringattn/inproc"
	"ringattn/ring"
)

// Tokens that pass through a small buffer, as they do to a GPU, give the bytes that
// tokens in place give: of every layout of documents and padding, of one tensor in a
// memory and of two.
func TestBufferedTokensAreTheSame(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files")
	}
	output := func(in, layout, size string) []byte {
		t.Setenv("RINGATTN_TEST_BUFFER_BYTES", size)
		text, err := os.ReadFile(runTo(t, in, "--ranks", "3", "--layout", layout, "--threads", "1"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for i, in := range files {
		layout := []string{"zigzag", "contiguous"}[i%2]
		want := output(in, layout, "")
		for _, size := range []string{"1", "5000"} {
			if !bytes.Equal(output(in, layout, size), want) {
				t.Errorf("%s, %s: a buffer of %s bytes gives another file", in, layout, size)
			}
		}
	}
}

func TestBufferedCheck(t *testing.T) {
	t.Setenv("RINGATTN_TEST_BUFFER_BYTES", "3000")
	for _, args := range [][]string{
		{"--golden", goldenDir, "--ranks", "2"},
		{"--ranks", "3", "--seq", "101", "--batch", "2", "--mask", "docs:lognormal:9:1,window:5", "--dtype", "bf16"},
	} {
		if out, code, err := execute(append([]string{"check"}, args...)...); code != exitOK {
			t.Errorf("%v: exit %d: %v\n%s", args, code, err, out)
		}
	}
}

func TestPack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		// Some of so many tokens, each once, in any order, with padding between them.
		var at []int32
		for _, token := range rng.Perm(rng.IntN(40)) {
			if rng.IntN(4) == 0 {
				at = append(at, -1)
			}
			if rng.IntN(4) > 0 {
				at = append(at, int32(token))
			}
		}
		if rng.IntN(2) == 0 {
			slices.Sort(at)
		}
		p := pack(at)
		memory := map[int]int{} // from the place in the buffer
		for _, r := range p.runs {
			for i := range r.n {
				if _, twice := memory[r.slot+i]; twice {
					t.Fatalf("%v: two runs have slot %d", at, r.slot+i)
				}
				memory[r.slot+i] = r.at + i
			}
		}
		real := 0
		for i, token := range at {
			switch {
			case token < 0 && p.at[i] != -1:
				t.Fatalf("%v: padding has slot %d", at, p.at[i])
			case token >= 0 && memory[int(p.at[i])] != int(token):
				t.Fatalf("%v: token %d has slot %d, which is that of token %d", at, token, p.at[i], memory[int(p.at[i])])
			case token >= 0:
				real++
			}
		}
		if real != p.tokens || len(memory) != real {
			t.Fatalf("%v: %d tokens, %d slots, want %d", at, p.tokens, len(memory), real)
		}
		for i := 1; i < len(p.runs); i++ {
			if p.runs[i-1].at+p.runs[i-1].n >= p.runs[i].at {
				t.Fatalf("%v: runs %+v could be fewer, or are out of order", at, p.runs)
			}
		}
	}
}

// A view gives each token's own bytes, whatever the order in which it is asked, and
// keeps the first error.
func TestView(t *testing.T) {
	t.Setenv("RINGATTN_TEST_BUFFER_BYTES", "50")
	b, err := (&world{Comm: ring.Comm{Transport: inproc.New(1)[0]}, options: testOptions("zigzag", "ref")}).openBackend(nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHeld(b, 10, 4, "k", "v")
	if err != nil {
		t.Fatal(err)
	}
	err = h.write(consecutive(0, 6), func(memory []byte, at []int32) error {
		for i, token := range at {
			copy(memory[int(token)*8:], []byte{'k', byte(i), 0, 0, 'v', byte(i), 1, 1})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k, v := h.view("k"), h.view("v")
	for _, at := range []int{0, 1, 5, 2, 2, 0} {
		if !bytes.Equal(k.token(at), []byte{'k', byte(at), 0, 0}) || !bytes.Equal(v.token(at), []byte{'v', byte(at), 1, 1}) {
			t.Errorf("token %d is %v and %v", at, k.token(at), v.token(at))
		}
	}
	if k.err != nil || h.window() == math.MaxInt {
		t.Errorf("error %v, window %d", k.err, h.window())
	}
	b.Free(h.p)
}
