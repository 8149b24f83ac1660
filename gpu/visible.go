package gpu

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Index is the device, counted as CUDA counts those that a process may use, for the rank
// that is localRank-th of its node: ranks take GPUs in turn. With one GPU visible to
// each rank that is 0, whatever its rank.
func Index(devices, localRank int) int { return localRank % devices }

// Visible lists what CUDA_VISIBLE_DEVICES lets a process use, in the order in which CUDA
// then counts: set is false where the variable is not there, and all GPUs are visible.
// As in CUDA an entry that names nothing ends the list, and of a GPU that is cut into
// parts (MIG) without one being named only the first can be used.
//
// Indexes count along the PCI bus, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID; its
// own order is the same where the GPUs of a machine are alike.
func Visible(lib Library, variable string, set bool) ([]Device, error) {
	if !set {
		n, err := lib.Count()
		if err != nil {
			return nil, err
		}
		indexes := make([]string, n)
		for i := range indexes {
			indexes[i] = strconv.Itoa(i)
		}
		variable = strings.Join(indexes, ",")
	}
	var devices []Device
	for entry := range strings.SplitSeq(variable, ",") {
		d, err := lookup(lib, strings.TrimSpace(entry))
		if errors.Is(err, errNothing) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("gpu: CUDA_VISIBLE_DEVICES entry %q: %w", entry, err)
		}
		devices = append(devices, d)
	}
	return devices, nil
}

var errNothing = errors.New("names no GPU")

func lookup(lib Library, entry string) (Device, error) {
	if strings.HasPrefix(entry, "MIG-") {
		return lib.ByUUID(entry)
	}
	n, err := lib.Count()
	if err != nil {
		return nil, err
	}
	index, err := strconv.Atoi(entry)
	if err != nil {
		if index, err = byPrefix(lib, n, entry); err != nil {
			return nil, err
		}
	}
	if index < 0 || index >= n {
		return nil, errNothing
	}
	d, err := lib.Device(index)
	if err != nil {
		return nil, err
	}
	// Not every driver or user may ask for parts.
	if parts, err := d.Parts(); err == nil && len(parts) > 0 {
		return parts[0], nil
	}
	return d, nil
}

// byPrefix finds the one GPU whose UUID begins with the entry.
func byPrefix(lib Library, n int, entry string) (int, error) {
	found := -1
	for i := range n {
		d, err := lib.Device(i)
		if err != nil {
			return 0, err
		}
		uuid, err := d.UUID()
		if err != nil {
			return 0, err
		}
		if strings.HasPrefix(entry, "GPU-") && strings.HasPrefix(uuid, entry) {
			if found >= 0 {
				return 0, errNothing
			}
			found = i
		}
	}
	if found < 0 {
		return 0, errNothing
	}
	return found, nil
}

// Find is the GPU that CUDA counts as index and says has this UUID, which decides. Only
// a part of a GPU has another in CUDA than in NVML: it is found by its place.
func Find(lib Library, variable string, set bool, index int, uuid string) (Device, error) {
	devices, err := Visible(lib, variable, set)
	if err == nil && index < len(devices) && isPart(devices[index]) {
		return devices[index], nil
	}
	d, byUUID := lib.ByUUID(uuid)
	if byUUID == nil {
		return d, nil
	}
	if err == nil && index < len(devices) {
		return devices[index], nil
	}
	return nil, fmt.Errorf("gpu: no GPU %s: %w", uuid, byUUID)
}

func isPart(d Device) bool {
	uuid, err := d.UUID()
	return err == nil && strings.HasPrefix(uuid, "MIG-")
}
