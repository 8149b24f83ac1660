package gpu

// Library is what this package wants of NVML. Errors have the library's own words.
type Library interface {
	Driver() (string, error)
	// Count is the number of GPUs of the machine, in the order of the PCI bus, whatever
	// CUDA_VISIBLE_DEVICES says.
	Count() (int, error)
	Device(index int) (Device, error)
	ByUUID(uuid string) (Device, error)
}

// Device is a GPU, or a part of one (MIG).
type Device interface {
	Name() (string, error)
	UUID() (string, error)
	PCI() (string, error)
	SMClock() (mhz int, err error)
	MaxSMClock() (mhz int, err error)
	MemoryClock() (mhz int, err error)
	Power() (milliwatts int, err error)
	Energy() (millijoules int64, err error) // since the driver was loaded
	TotalBytes() (int64, error)
	FreeBytes() (int64, error)
	// Parts lists the MIG devices of a GPU: none where MIG is off.
	Parts() ([]Device, error)
}

// Facts is what could be read of a GPU at one time. A field is nil where it could not be
// read, and Unread says why, by the field's name in JSON.
type Facts struct {
	Name           *string           `json:"name"`
	UUID           *string           `json:"uuid"`
	PCI            *string           `json:"pci"`
	Driver         *string           `json:"driver"`
	SMClockMHz     *int              `json:"sm_clock_mhz"`
	MaxSMClockMHz  *int              `json:"max_sm_clock_mhz"`
	MemoryClockMHz *int              `json:"memory_clock_mhz"`
	PowerW         *float64          `json:"power_w"`
	EnergyJ        *float64          `json:"energy_j"` // since the driver was loaded
	TotalBytes     *int64            `json:"total_bytes"`
	FreeBytes      *int64            `json:"free_bytes"`
	Unread         map[string]string `json:"unread,omitempty"`
}

// Read reads all that a GPU tells.
func Read(lib Library, d Device) Facts {
	var f Facts
	read(&f, "driver", &f.Driver, lib.Driver)
	read(&f, "name", &f.Name, d.Name)
	read(&f, "uuid", &f.UUID, d.UUID)
	read(&f, "pci", &f.PCI, d.PCI)
	read(&f, "sm_clock_mhz", &f.SMClockMHz, d.SMClock)
	read(&f, "max_sm_clock_mhz", &f.MaxSMClockMHz, d.MaxSMClock)
	read(&f, "memory_clock_mhz", &f.MemoryClockMHz, d.MemoryClock)
	read(&f, "power_w", &f.PowerW, thousandths(d.Power))
	read(&f, "energy_j", &f.EnergyJ, thousandths(d.Energy))
	read(&f, "total_bytes", &f.TotalBytes, d.TotalBytes)
	read(&f, "free_bytes", &f.FreeBytes, d.FreeBytes)
	return f
}

// None is Facts of which nothing could be read, and why.
func None(why error) Facts {
	var f Facts
	f.unread("nvml", why)
	return f
}

func (f *Facts) unread(field string, why error) {
	if f.Unread == nil {
		f.Unread = map[string]string{}
	}
	f.Unread[field] = why.Error()
}

func read[T any](f *Facts, field string, into **T, get func() (T, error)) {
	x, err := get()
	if err != nil {
		f.unread(field, err)
		return
	}
	*into = &x
}

func thousandths[T int | int64](get func() (T, error)) func() (float64, error) {
	return func() (float64, error) {
		x, err := get()
		return float64(x) / 1e3, err
	}
}
