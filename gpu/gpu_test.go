package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The fake library's errors.
var (
	errUnsupported = errors.New("Not Supported")            //nolint:staticcheck // NVML's own words
	errPermission  = errors.New("Insufficient Permissions") //nolint:staticcheck // NVML's own words
)

// fakeLibrary is a machine of GPUs.
type fakeLibrary struct{ gpus []fakeDevice }

func (l fakeLibrary) Driver() (string, error) { return "580.1", nil }
func (l fakeLibrary) Count() (int, error)     { return len(l.gpus), nil }

func (l fakeLibrary) Device(i int) (Device, error) {
	if i < 0 || i >= len(l.gpus) {
		return nil, errors.New("Invalid Argument")
	}
	return l.gpus[i], nil
}

func (l fakeLibrary) ByUUID(uuid string) (Device, error) {
	for _, d := range l.gpus {
		for _, d := range append([]fakeDevice{d}, d.parts...) {
			if d.uuid == uuid {
				return d, nil
			}
		}
	}
	return nil, errors.New("Not Found")
}

// fakeDevice is a GPU, or a part of one that tells little.
type fakeDevice struct {
	uuid  string
	parts []fakeDevice
	wrong map[string]error // by method
}

func answer[T any](d fakeDevice, method string, x T) (T, error) {
	if err := d.wrong[method]; err != nil {
		return *new(T), err
	}
	return x, nil
}

func (d fakeDevice) Name() (string, error)      { return answer(d, "Name", "NVIDIA H200") }
func (d fakeDevice) UUID() (string, error)      { return answer(d, "UUID", d.uuid) }
func (d fakeDevice) PCI() (string, error)       { return answer(d, "PCI", "00000000:3b:00.0") }
func (d fakeDevice) SMClock() (int, error)      { return answer(d, "SMClock", 1980) }
func (d fakeDevice) MaxSMClock() (int, error)   { return answer(d, "MaxSMClock", 1980) }
func (d fakeDevice) MemoryClock() (int, error)  { return answer(d, "MemoryClock", 3201) }
func (d fakeDevice) Power() (int, error)        { return answer(d, "Power", 112_500) }
func (d fakeDevice) Energy() (int64, error)     { return answer(d, "Energy", int64(2_000_500)) }
func (d fakeDevice) TotalBytes() (int64, error) { return answer(d, "TotalBytes", int64(150e9)) }
func (d fakeDevice) FreeBytes() (int64, error)  { return answer(d, "FreeBytes", int64(149e9)) }
func (d fakeDevice) Parts() (p []Device, e error) {
	for _, x := range d.parts {
		p = append(p, x)
	}
	return p, d.wrong["Parts"]
}

func fakes(uuids ...string) fakeLibrary {
	var l fakeLibrary
	for _, u := range uuids {
		l.gpus = append(l.gpus, fakeDevice{uuid: u})
	}
	return l
}

func uuids(devices []Device) []string {
	var all []string
	for _, d := range devices {
		u, err := d.UUID()
		if err != nil {
			u = err.Error()
		}
		all = append(all, u)
	}
	return all
}

func TestVisible(t *testing.T) {
	four := fakes("GPU-aaaa", "GPU-abbb", "GPU-cccc", "GPU-dddd")
	cut := fakes("GPU-eeee", "GPU-ffff")
	cut.gpus[0].parts = []fakeDevice{{uuid: "MIG-1"}, {uuid: "MIG-2"}}
	cut.gpus[1].wrong = map[string]error{"Parts": errPermission}
	for _, c := range []struct {
		lib      Library
		variable string
		want     string
	}{
		{four, "unset", "GPU-aaaa GPU-abbb GPU-cccc GPU-dddd"},
		{four, "2,0", "GPU-cccc GPU-aaaa"},
		{four, " 1 , 3", "GPU-abbb GPU-dddd"},
		{four, "", ""},
		{four, "NoDevFiles", ""},
		{four, "0,-1,2", "GPU-aaaa"},
		{four, "0,9,2", "GPU-aaaa"},
		{four, "GPU-c,GPU-aaaa", "GPU-cccc GPU-aaaa"},
		{four, "GPU-a", ""}, // of two
		{four, "cccc", ""},  // no UUID
		{four, "GPU-d,GPU-zz", "GPU-dddd"},
		{cut, "unset", "MIG-1 GPU-ffff"},
		{cut, "MIG-2", "MIG-2"},
		{cut, "1,MIG-1", "GPU-ffff MIG-1"},
	} {
		devices, err := Visible(c.lib, c.variable, c.variable != "unset")
		if got := strings.Join(uuids(devices), " "); err != nil || got != c.want {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s: %q, %v, want %q", c.variable, got, err, c.want)
		}
	}
	if _, err := Visible(cut, "MIG-9", true); err == nil || !strings.Contains(err.Error(), "MIG-9") {
		t.Errorf("a part that is not there: error %v", err)
	}
}

// F9: the GPU of a rank goes by its number on its node and by what it is let see.
func TestRanksTakeGPUs(t *testing.T) {
	node := fakes("GPU-0", "GPU-1", "GPU-2", "GPU-3")
	take := func(variable string, localRank int) string {
		devices, err := Visible(node, variable, true)
		if err != nil {
			t.Fatal(err)
		}
		d, err := Find(node, variable, true, Index(len(devices), localRank), uuids(devices)[Index(len(devices), localRank)])
		if err != nil {
			t.Fatal(err)
		}
		return uuids([]Device{d})[0]
	}
	for _, c := range []struct {
		name     string
		variable func(rank int) string
		local    func(rank int) int
		want     string
	}{
		{"two nodes of two ranks", func(r int) string { return []string{"0,1", "2,3"}[r/2] }, func(r int) int { return r % 2 }, "GPU-0 GPU-1 GPU-2 GPU-3"},
		{"four ranks, two GPUs", func(int) string { return "1,3" }, func(r int) int { return r }, "GPU-1 GPU-3 GPU-1 GPU-3"},
		{"one GPU visible to each", func(r int) string { return fmt.Sprint(r) }, func(r int) int { return r }, "GPU-0 GPU-1 GPU-2 GPU-3"},
	} {
		var got []string
		for r := range 4 {
			got = append(got, take(c.variable(r), c.local(r)))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}

func TestFind(t *testing.T) {
	lib := fakes("GPU-0", "GPU-1")
	lib.gpus[1].parts = []fakeDevice{{uuid: "MIG-1"}}
	for _, c := range []struct {
		variable string
		index    int
		uuid     string
		want     string
	}{
		{"unset", 0, "GPU-0", "GPU-0"},
		{"unset", 1, "GPU-0", "MIG-1"}, // CUDA gives a part the UUID of something else
		{"1,0", 0, "GPU-0", "MIG-1"},   // likewise
		{"0", 0, "GPU-1", "GPU-1"},     // CUDA counts in another order: the UUID decides
		{"0", 0, "GPU-unknown", "GPU-0"},
	} {
		d, err := Find(lib, c.variable, c.variable != "unset", c.index, c.uuid)
		if err != nil || uuids([]Device{d})[0] != c.want {
			t.Errorf("%+v: %v, %v", c, d, err)
		}
	}
	if _, err := Find(lib, "0", true, 1, "GPU-unknown"); err == nil || !strings.Contains(err.Error(), "GPU-unknown") {
		t.Errorf("a GPU that is not there: error %v", err)
	}
}

func TestRead(t *testing.T) {
	lib := fakes("GPU-0")
	f := Read(lib, lib.gpus[0])
	if *f.PowerW != 112.5 || *f.EnergyJ != 2000.5 || *f.SMClockMHz != 1980 || *f.Name != "NVIDIA H200" || *f.UUID != "GPU-0" ||
		*f.PCI != "00000000:3b:00.0" || *f.Driver != "580.1" || *f.TotalBytes != 150e9 || *f.FreeBytes != 149e9 || f.Unread != nil {
		t.Errorf("%+v", f)
	}
}

// H3: what a part of a GPU does not tell is null with the reason, and never 0.
func TestWhatCannotBeReadIsAbsent(t *testing.T) {
	d := fakeDevice{uuid: "MIG-1", wrong: map[string]error{
		"SMClock": errUnsupported, "MaxSMClock": errUnsupported, "MemoryClock": errUnsupported, "Energy": errUnsupported,
		"Power": errPermission,
	}}
	text, err := json.Marshal(Read(fakeLibrary{}, d))
	if err != nil {
		t.Fatal(err)
	}
	var f map[string]any
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	unread := f["unread"].(map[string]any)
	for _, name := range []string{"sm_clock_mhz", "max_sm_clock_mhz", "memory_clock_mhz", "energy_j", "power_w"} {
		want := "Not Supported"
		if name == "power_w" {
			want = "Insufficient Permissions"
		}
		if x, there := f[name]; !there || x != nil || unread[name] != want {
			t.Errorf("%s is %v, and the reason is %v, want null and %q", name, x, unread[name], want)
		}
	}
	if f["total_bytes"] != 150e9 || len(unread) != 5 {
		t.Errorf("%s", text)
	}
}

// H1: without the library all fields are absent, and the reason is there.
func TestNone(t *testing.T) {
	text, err := json.Marshal(None(errors.New("libnvidia-ml.so.1 is not on this machine")))
	if err != nil || !strings.Contains(string(text), `"nvml":"libnvidia-ml.so.1 is not`) || strings.Contains(string(text), ":0") {
		t.Errorf("%s, %v", text, err)
	}
	if lib, closeLibrary, err := Open(); err == nil {
		closeLibrary() // this machine has one
		if lib == nil {
			t.Error("no library and no error")
		}
	} else if !slices.ContainsFunc([]string{"libnvidia-ml.so.1", "without"}, func(s string) bool { return strings.Contains(err.Error(), s) }) {
		t.Errorf("the error does not say why: %v", err)
	}
}
