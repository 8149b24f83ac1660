package mpi

import (
	"os"
	"testing"
)

func TestIsConnection(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		name string
		fd   int
		want bool
	}{{"pipe", int(r.Fd()), true}, {"device", int(file.Fd()), false}, {"nothing", 1 << 20, false}, {"negative", -1, false}} {
		if got := isConnection(c.fd); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	r.Close()
}
