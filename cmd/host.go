package cmd

import (
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"ringattn/kernels"
	"ringattn/ring"
)

// hostFacts is what a rank knows of the machine it runs on.
type hostFacts struct {
	Host string
	CPUs []int // that this process may run on
	// CPULimit is how many CPUs' worth of time it may use, after any quota of its
	// control group.
	CPULimit    int
	FreeBytes   int64  // memory that the node can give without swapping, 0: unknown
	GPU         string // UUID of the one that it computes on, "" for none
	GPUModel    string // its name and capability
	CPUModel    string // the CPU's name and the instruction set of its kernels
	StartMemory int64  // bytes resident before the tensors, after MPI_Init
}

// nodes numbers the hosts that the ranks are on.
func (w *world) nodes() (nodes ring.Nodes) {
	numbers := map[string]int{}
	for _, h := range w.hosts {
		if _, ok := numbers[h.Host]; !ok {
			numbers[h.Host] = len(numbers)
		}
		nodes = append(nodes, numbers[h.Host])
	}
	return nodes
}

func readHost() hostFacts {
	h := hostFacts{CPULimit: runtime.GOMAXPROCS(0)}
	h.Host, _ = os.Hostname()
	h.CPUs, _ = parseList(procField("/proc/self/status", "Cpus_allowed_list"))
	if n := len(h.CPUs); n > 0 {
		h.CPULimit = min(h.CPULimit, n)
	}
	isa := testISA()
	if all := kernels.ISAs(); isa == "" && len(all) > 0 {
		isa = all[0]
	}
	h.CPUModel = strings.TrimSpace(procField("/proc/cpuinfo", "model name") + " " + isa)
	h.FreeBytes = procKilobytes("/proc/meminfo", "MemAvailable")
	if free, limited := cgroupFree(); limited {
		h.FreeBytes = max(1, min(h.FreeBytes, free))
	}
	// Writing 5 sets the peak back to the present.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	h.StartMemory = procKilobytes("/proc/self/status", "VmRSS")
	return h
}

// peakMemory is the most that was resident since readHost.
func peakMemory() int64 { return procKilobytes("/proc/self/status", "VmHWM") }

// procField is the value of a "Name: value" line of a file in /proc, "" if
// there is none.
func procField(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func procKilobytes(path, name string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(procField(path, name), " kB"), 10, 64)
	return n * 1024
}

// cgroupFree is what the control groups of this process leave it of memory: the
// least over its own group and those above of the limit less what is in use and
// could not be reclaimed. false: there is no limit.
func cgroupFree() (free int64, limited bool) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		// hierarchy:controllers:path; version 2 has one hierarchy, numbered 0.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		root, limit, usage := "/sys/fs/cgroup", "memory.max", "memory.current"
		if slices.Contains(strings.Split(f[1], ","), "memory") {
			root, limit, usage = root+"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		} else if f[0] != "0" {
			continue
		}
		for dir := f[2]; ; dir = path.Dir(dir) {
			group := path.Join(root, dir)
			most, ok := readNumber(path.Join(group, limit))
			used, _ := readNumber(path.Join(group, usage))
			if ok && most < 1<<60 { // version 1 has no word for none
				left := max(0, most-max(0, used-reclaimable(group)))
				if !limited || left < free {
					free, limited = left, true
				}
			}
			if dir == "/" || dir == "." {
				break
			}
		}
	}
	return free, limited
}

// reclaimable is the page cache of a group that the kernel gives up first.
func reclaimable(group string) int64 {
	text, err := os.ReadFile(path.Join(group, "memory.stat"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == "inactive_file" || key == "total_inactive_file" {
			n, _ := strconv.ParseInt(value, 10, 64)
			return n
		}
	}
	return 0
}

func readNumber(name string) (int64, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// parseList reads a list of numbers like "0-3,8".
func parseList(text string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			return nil, fmt.Errorf("%q is no list of numbers", text)
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil {
				return nil, fmt.Errorf("%q is no list of numbers", text)
			}
		}
		for n := a; n <= b; n++ {
			out = append(out, n)
		}
	}
	return out, nil
}

// formatList writes ascending numbers as parseList reads them.
func formatList(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
