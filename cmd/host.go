package cmd

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// hostFacts is what a rank knows of the machine it runs on.
type hostFacts struct {
	Host string
	CPUs []int // that this process may run on
	// CPULimit is how many CPUs' worth of time it may use, after any quota of its
	// control group.
	CPULimit    int
	FreeBytes   int64 // memory that the node can give without swapping, 0: unknown
	StartMemory int64 // bytes resident before the tensors, after MPI_Init
}

func readHost() hostFacts {
	h := hostFacts{CPULimit: runtime.GOMAXPROCS(0)}
	h.Host, _ = os.Hostname()
	h.CPUs, _ = parseList(procField("/proc/self/status", "Cpus_allowed_list"))
	if n := len(h.CPUs); n > 0 {
		h.CPULimit = min(h.CPULimit, n)
	}
	h.FreeBytes = procKilobytes("/proc/meminfo", "MemAvailable")
	if limit, used := cgroupMemory(); limit > 0 {
		h.FreeBytes = min(h.FreeBytes, limit-used)
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
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func procKilobytes(path, name string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(procField(path, name), " kB"), 10, 64)
	return n * 1024
}

// cgroupMemory is the memory limit of this process's control group (version 2)
// and what is used of it; 0 without a limit.
func cgroupMemory() (limit, used int64) {
	number := func(name string) int64 {
		text, err := os.ReadFile("/sys/fs/cgroup/" + name)
		if err != nil {
			return 0
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return n
	}
	return number("memory.max"), number("memory.current")
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
