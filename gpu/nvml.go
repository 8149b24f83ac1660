//go:build cuda && cgo && linux

package gpu

import (
	"errors"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Open loads NVML. close gives it back.
func Open() (lib Library, close func(), err error) {
	l := nvml.New()
	if r := l.Init(); r != nvml.SUCCESS {
		if r == nvml.ERROR_LIBRARY_NOT_FOUND {
			return nil, nil, errors.New("gpu: libnvidia-ml.so.1, NVIDIA's management library, is not on this machine")
		}
		return nil, nil, fmt.Errorf("gpu: libnvidia-ml.so.1 does not start: %s", r.Error())
	}
	return library{l}, func() { _ = l.Shutdown() }, nil
}

// ReadIndex reads the GPU that CUDA counts as index and says has this UUID.
func ReadIndex(index int, uuid string) Facts {
	lib, closeLibrary, err := Open()
	if err != nil {
		return None(err)
	}
	defer closeLibrary()
	variable, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	d, err := Find(lib, variable, set, index, uuid)
	if err != nil {
		return None(err)
	}
	return Read(lib, d)
}

type library struct{ nvml.Interface }

func failed(r nvml.Return) error {
	if r == nvml.SUCCESS {
		return nil
	}
	return errors.New(r.Error())
}

func (l library) Driver() (string, error) {
	v, r := l.SystemGetDriverVersion()
	return v, failed(r)
}

func (l library) Count() (int, error) {
	n, r := l.DeviceGetCount()
	return n, failed(r)
}

func (l library) Device(index int) (Device, error) {
	d, r := l.DeviceGetHandleByIndex(index)
	return device{d}, failed(r)
}

func (l library) ByUUID(uuid string) (Device, error) {
	d, r := l.DeviceGetHandleByUUID(uuid)
	return device{d}, failed(r)
}

type device struct{ nvml.Device }

func (d device) Name() (string, error) {
	s, r := d.GetName()
	return s, failed(r)
}

func (d device) UUID() (string, error) {
	s, r := d.GetUUID()
	return s, failed(r)
}

func (d device) PCI() (string, error) {
	p, r := d.GetPciInfo()
	return fmt.Sprintf("%08x:%02x:%02x.0", p.Domain, p.Bus, p.Device), failed(r)
}

func (d device) SMClock() (int, error) {
	x, r := d.GetClockInfo(nvml.CLOCK_SM)
	return int(x), failed(r)
}

func (d device) MaxSMClock() (int, error) {
	x, r := d.GetMaxClockInfo(nvml.CLOCK_SM)
	return int(x), failed(r)
}

func (d device) MemoryClock() (int, error) {
	x, r := d.GetClockInfo(nvml.CLOCK_MEM)
	return int(x), failed(r)
}

func (d device) Power() (int, error) {
	x, r := d.GetPowerUsage()
	return int(x), failed(r)
}

func (d device) Energy() (int64, error) {
	x, r := d.GetTotalEnergyConsumption()
	return int64(x), failed(r)
}

func (d device) TotalBytes() (int64, error) {
	m, r := d.GetMemoryInfo()
	return int64(m.Total), failed(r)
}

func (d device) FreeBytes() (int64, error) {
	m, r := d.GetMemoryInfo()
	return int64(m.Free), failed(r)
}

func (d device) Parts() ([]Device, error) {
	on, _, r := d.GetMigMode()
	if r == nvml.ERROR_NOT_SUPPORTED {
		return nil, nil
	}
	if r != nvml.SUCCESS {
		return nil, failed(r)
	}
	if on != nvml.DEVICE_MIG_ENABLE {
		return nil, nil
	}
	n, r := d.GetMaxMigDeviceCount()
	if r != nvml.SUCCESS {
		return nil, failed(r)
	}
	var parts []Device
	for i := range n {
		part, r := d.GetMigDeviceHandleByIndex(i)
		if r == nvml.ERROR_NOT_FOUND {
			continue // places may be empty
		}
		if r != nvml.SUCCESS {
			return nil, failed(r)
		}
		parts = append(parts, device{part})
	}
	return parts, nil
}
