//go:build mpi && cgo

package ring_test

// How much of the exchange hides behind kernels under a real MPI:
//
//	CGO_CFLAGS=... CGO_LDFLAGS=... go test -c -tags mpi -o ring.test ./ring   # the flags of mpi/flags.sh
//	mpirun -n 2 --mca pml ob1 --mca btl self,tcp ./ring.test -test.run OverlapMPI
//
// The network inside a machine is too fast to be hidden behind anything. One that is
// not, in a namespace of its own (as root; tc is in iproute2):
//
//	unshare --net sh -c 'ip link set lo up
//	  tc qdisc add dev lo root tbf rate 400mbit burst 256kb limit 100mb
//	  mpirun ...'

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"ringattn/kernels"
	"ringattn/mpi"
	"ringattn/ring"
	"ringattn/segments"
)

// Each pass is run with messages that cost nothing, with kernels that cost nothing,
// and as it is, in turn. With more tokens the exchange grows, and the kernels grow
// with the square: as many are taken as make the exchange 80% of the kernels, by both
// alone. Medians, of the slowest rank; exposed is a mean over the ranks.
func TestOverlapMPI(t *testing.T) {
	if mpi.Launched().Size == 0 {
		t.Skip("not under a launcher")
	}
	runtime.LockOSThread() // MPI has it for good
	c, err := mpi.Start()
	if err != nil {
		t.Fatal(err)
	}
	cpu, err := kernels.CPU(1, "")
	if err != nil {
		t.Fatal(err)
	}
	m := overlapMPI{t: t, comm: ring.Comm{Transport: c, Timeout: time.Minute}, cpu: cpu}
	m.print("ranks  mask        pass      tokens   kernels alone  exchange alone  exposed  slower\n")
	for _, v := range []struct {
		name   string
		layout func(tokens, ranks int) segments.Layout
		causal bool
	}{
		{"full", segments.Contiguous, false},
		{"zigzag", segments.Zigzag, true},
		{"contiguous", segments.Contiguous, true},
	} {
		for _, pass := range []ring.Pass{ring.Forward, ring.Backward} {
			job := func(tokens int) *ring.Job {
				return mustJob(t, v.layout(tokens, c.Size()), segments.Mask{Causal: v.causal, Rows: []segments.Row{segments.SingleDocument(tokens)}})
			}
			tokens := 4096
			for range 2 {
				part := m.measure(job(tokens), pass, 5).exchange
				tokens = min(max(int(float64(tokens)*part/0.8)/64, 8), 512) * 64
			}
			f := m.measure(job(tokens), pass, 15)
			m.print("%5d  %-10s  %-8v  %6d  %10.1f ms  %13.0f%%  %6.1f%%  %5.1f%%\n",
				c.Size(), v.name, pass, tokens, 1e3*f.kernel, 100*f.exchange, 100*f.exposed, 100*f.slower)
		}
	}
	cpu.Close()
	if err := mpi.Stop(); err != nil {
		t.Fatal(err)
	}
}

type overlapMPI struct {
	t    *testing.T
	comm ring.Comm
	cpu  ring.Backend
}

// overlapFigures are seconds (kernel) and parts of the kernel time.
type overlapFigures struct{ kernel, exchange, exposed, slower float64 }

func (m *overlapMPI) print(format string, args ...any) {
	if m.comm.Rank() == 0 {
		fmt.Printf(format, args...)
	}
}

func (m *overlapMPI) measure(job *ring.Job, pass ring.Pass, repeats int) overlapFigures {
	still := m.comm
	still.Transport = stillTransport{m.comm.Transport}
	var kernel, exchange, exposed, slower []float64
	for range repeats {
		alone := m.once(job, pass, still, m.cpu)
		link := m.once(job, pass, m.comm, stillBackend{m.cpu})
		both := m.once(job, pass, m.comm, m.cpu)
		kernel = append(kernel, alone.kernel)
		exchange = append(exchange, link.wall/alone.kernel)
		exposed = append(exposed, both.exposed)
		slower = append(slower, both.wall/alone.kernel-1)
	}
	return overlapFigures{median(kernel), median(exchange), median(exposed), median(slower)}
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// once runs a pass on all ranks: seconds of the slowest, and how much of the kernel
// time was exposed.
func (m *overlapMPI) once(job *ring.Job, pass ring.Pass, comm ring.Comm, cpu ring.Backend) (f struct{ kernel, wall, exposed float64 }) {
	shape := ring.Shape{DType: ring.F32, Heads: 2, KVHeads: 2, HeadDim: 64, Scale: 0.125}
	s, err := overlapRank(job, comm, m.comm, cpu, shape, pass)
	if err != nil {
		m.t.Fatal(err)
	}
	most, err := m.comm.AllReduceMax(context.Background(), []float64{s.Kernel.Seconds(), s.Wall.Seconds()})
	if err != nil {
		m.t.Fatal(err)
	}
	sum, err := m.comm.AllReduceSum(context.Background(), []float64{s.Kernel.Seconds(), s.Exposed.Seconds()})
	if err != nil {
		m.t.Fatal(err)
	}
	f.kernel, f.wall, f.exposed = most[0], most[1], sum[1]/sum[0]
	return f
}

// stillTransport moves nothing: every message is there at once.
type stillTransport struct{ ring.Transport }

func (stillTransport) Irecv(unsafe.Pointer, int64, int, int) (ring.Request, error) { return 1, nil }
func (stillTransport) Isend(unsafe.Pointer, int64, int, int) (ring.Request, error) { return 1, nil }
func (stillTransport) Test(ring.Request) (bool, error)                             { return true, nil }

// stillBackend computes nothing.
type stillBackend struct{ ring.Backend }

func (stillBackend) Zero(unsafe.Pointer, int64) error       { return nil }
func (stillBackend) Delta(ring.Shape, *ring.Tensors) error  { return nil }
func (stillBackend) Add(_, _ unsafe.Pointer, _ int64) error { return nil }

func (stillBackend) Round(_, _ unsafe.Pointer, _ int64) error { return nil }

func (stillBackend) AddRounded(_, _ unsafe.Pointer, _ int64) error { return nil }

func (stillBackend) Move(ring.Rearrangement) error  { return nil }
func (stillBackend) Record() (ring.Event, error)    { return 1, nil }
func (stillBackend) Query(ring.Event) (bool, error) { return true, nil }
func (stillBackend) Forward(ring.Shape, *ring.Tensors, ring.Chunk, ring.Rows, bool) error {
	return nil
}

func (stillBackend) Backward(ring.Shape, *ring.Tensors, ring.Chunk, ring.Rows, unsafe.Pointer, bool) error {
	return nil
}
