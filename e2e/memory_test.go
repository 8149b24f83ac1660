package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"ringattn/tensorfile"
)

// The largest that a rank's memory may grow to over its tensors: q, k, v, dout,
// out, lse, dq, dk, dv, and two slots each for keys and values and for gradients.
// The rest is file buffers, intervals, workspaces and what MPI takes.
const memoryOverTensors = 1.35

// A rank holds its own tensors and two shards' worth of others', whatever the
// number of ranks: a long sequence, both passes, 4 processes.
func TestMemoryOfARank(t *testing.T) {
	bin, mpirun := os.Getenv("RINGATTN_BIN"), os.Getenv("RINGATTN_MPIRUN")
	if bin == "" || mpirun == "" {
		t.Skip("needs a binary and a launcher in RINGATTN_BIN and RINGATTN_MPIRUN; make e2e gives them")
	}
	const ranks, tokens, heads, dim = 4, 1 << 18, 8, 16
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.safetensors"), filepath.Join(dir, "out.safetensors")
	writeLong(t, in, tokens, heads, dim)
	text, err := exec.Command(mpirun, strconv.Itoa(ranks), bin, "run", "--in", in, "--out", out, "--layout", "contiguous").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	m := regexp.MustCompile(`memory +fullest rank: .*\((\d+) bytes\) resident`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no memory in:\n%s", text)
	}
	peak, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	perToken := 4 * (heads*dim*(5+3+4+4) + heads)
	tensors := float64(perToken * tokens / ranks)
	t.Logf("peak resident memory of a rank over its tensors: %.3f (%.0f of %.0f bytes)\n%s", peak/tensors, peak, tensors, text)
	if ratio := peak / tensors; ratio > memoryOverTensors || ratio < 0.5 {
		t.Errorf("a rank's memory is %.2f of its tensors, want at most %.2f", ratio, memoryOverTensors)
	}
}

// writeLong makes a long input: causal, window 256, documents of 1 to 20,000
// tokens.
func writeLong(t *testing.T, path string, tokens, heads, dim int) {
	t.Helper()
	shape := []int64{1, int64(heads), int64(tokens), int64(dim)}
	specs := []tensorfile.Spec{
		{Name: "q", DType: tensorfile.F32, Shape: shape},
		{Name: "k", DType: tensorfile.F32, Shape: shape},
		{Name: "v", DType: tensorfile.F32, Shape: shape},
		{Name: "dout", DType: tensorfile.F32, Shape: shape},
		{Name: "packed_seq_ids", DType: tensorfile.I32, Shape: []int64{1, int64(tokens)}},
	}
	header, places, size, err := tensorfile.Encode(specs, map[string]string{"causal": "true", "window": "256"})
	if err != nil {
		t.Fatal(err)
	}
	temp, err := tensorfile.CreateTemp(path, header, size)
	if err != nil {
		t.Fatal(err)
	}
	w, err := tensorfile.OpenForWrite(temp, places)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%032d", 7))))
	block := make([]byte, 1<<20)
	for _, x := range places[:4] {
		for off := int64(0); off < x.Bytes; off += int64(len(block)) {
			_, _ = random.Read(block)
			for i := 3; i < len(block); i += 4 {
				block[i], block[i-1] = block[i]&0x80|0x3f, block[i-1]&0x7f // +-0.5 to 1
			}
			if err := w.WriteAt(x, block[:min(int64(len(block)), x.Bytes-off)], off); err != nil {
				t.Fatal(err)
			}
		}
	}
	var ids bytes.Buffer
	for id := uint32(1); ids.Len() < 4*tokens; id++ {
		for range 1 + random.Uint64()%20000 {
			ids.Write([]byte{byte(id), byte(id >> 8), 0, 0})
		}
	}
	if err := w.WriteAt(places[4], ids.Bytes()[:4*tokens], 0); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := tensorfile.Commit(temp, path); err != nil {
		t.Fatal(err)
	}
}
