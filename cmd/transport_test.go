package cmd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"ringattn/inproc"
	"ringattn/kernels"
	"ringattn/mpi"
	"ringattn/ring"
	"ringattn/ring/devicetest"
)

func TestNewWiring(t *testing.T) {
	no, unknown := mpi.DeviceMemory{State: mpi.DeviceNo, Why: "w"}, mpi.DeviceMemory{Why: "w"}
	yes, forced := mpi.DeviceMemory{State: mpi.DeviceYes, Why: "w"}, mpi.DeviceMemory{State: mpi.DeviceForced, Why: "w"}
	const host, direct, through, refused = "host memory", "device memory (w)", "device memory through host memory (w)", ""
	for _, c := range []struct {
		flag   string
		device bool
		takes  mpi.DeviceMemory
		ranks  int
		want   string
	}{
		{"auto", false, yes, 2, host},
		{"device", false, no, 2, host},
		{"auto", true, yes, 2, direct},
		{"auto", true, forced, 2, direct},
		{"auto", true, unknown, 2, through},
		{"auto", true, no, 2, through},
		{"auto", true, no, 1, "device memory (one rank, no messages)"},
		{"device", true, yes, 2, direct},
		{"device", true, forced, 2, direct},
		{"device", true, unknown, 2, "device memory (forced by --transport device; w)"},
		{"device", true, no, 2, refused},
		{"device", true, no, 1, "device memory (one rank, no messages)"},
		{"host", true, yes, 2, "device memory through host memory (--transport host)"},
		{"host", true, no, 1, "device memory through host memory (--transport host)"},
	} {
		got, err := newWiring(c.flag, c.device, c.takes, c.ranks)
		if c.want == refused {
			if exitCode(err) != exitEnvironment || !strings.Contains(err.Error(), mpi.ForceDeviceEnv) {
				t.Errorf("%+v: the error is %v", c, err)
			}
			continue
		}
		if err != nil || got.String() != c.want {
			t.Errorf("%+v: got %q, %v", c, got, err)
		}
	}
}

// connectAll connects ranks of which some have device memory; it gives what rank 0 says
// of them, and the error of the job.
func connectAll(t *testing.T, flag string, takes mpi.DeviceMemory, devices ...bool) (*connection, *world, error) {
	connections, worlds, errs := make([]*connection, len(devices)), make([]*world, len(devices)), make([]error, len(devices))
	var all sync.WaitGroup
	for rank, end := range inproc.New(len(devices)) {
		all.Go(func() {
			w := &world{Comm: ring.Comm{Transport: end, Timeout: 10 * time.Second}, options: &options{transport: flag}, takes: takes}
			b := kernels.Reference()
			if devices[rank] {
				b = devicetest.New(b, devicetest.Mapped())
			}
			worlds[rank] = w
			connections[rank], errs[rank] = w.connect(context.Background(), b)
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	for _, c := range connections {
		if err == nil && (c.staged == nil) != (connections[0].staged == nil) {
			t.Errorf("some ranks cut their messages and some do not: %+v", c.ranks)
		}
	}
	return connections[0], worlds[0], err
}

func TestConnect(t *testing.T) {
	no, yes := mpi.DeviceMemory{State: mpi.DeviceNo, Why: "w"}, mpi.DeviceMemory{State: mpi.DeviceYes, Why: "w"}
	const carrier = "memory copies between 3 ranks of one process"
	for _, c := range []struct {
		flag       string
		takes      mpi.DeviceMemory
		devices    []bool
		staged     bool
		text, kind string
	}{
		{"auto", no, []bool{false, false, false}, false, carrier, "host"},
		{"auto", yes, []bool{true, true, true}, false, carrier + "; device memory (w)", "device"},
		{"auto", no, []bool{true, true, true}, true, carrier + "; device memory through host memory (w)", "host"},
		{"host", yes, []bool{false, true, false}, true, carrier + "; ranks 0,2: host memory; ranks 1: device memory through host memory (--transport host)", "host"},
		{"device", yes, []bool{false, true, true}, false, carrier + "; ranks 0: host memory; ranks 1-2: device memory (w)", "device"},
	} {
		got, w, err := connectAll(t, c.flag, c.takes, c.devices...)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if (got.staged != nil) != c.staged || got.describe(w) != c.text || got.kind(w) != c.kind {
			t.Errorf("%+v: got %v, %q, %q", c, got.staged != nil, got.describe(w), got.kind(w))
		}
		got.close()
	}
	if _, _, err := connectAll(t, "device", yes, false, false); exitCode(err) != exitEnvironment || !strings.Contains(err.Error(), "no rank") {
		t.Errorf("--transport device without a device: %v", err)
	}
}

func TestDelayed(t *testing.T) {
	t.Setenv("RINGATTN_TEST_KERNEL_DELAY", "soon")
	if _, err := delayed(kernels.Reference(), 0); exitCode(err) != exitEnvironment {
		t.Errorf("a delay of no duration: %v", err)
	}
	t.Setenv("RINGATTN_TEST_KERNEL_DELAY", "1h")
	b, err := delayed(kernels.Reference(), 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Alloc(4)
	if err == nil {
		err = b.Zero(p, 4)
	}
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.Record()
	if err != nil {
		t.Fatal(err)
	}
	if done, err := b.Query(e); done || err != nil {
		t.Errorf("a kernel that is an hour late is done: %v, %v", done, err)
	}
}
