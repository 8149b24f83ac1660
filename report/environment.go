package report

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// fact is one thing that two points must have in common to be compared.
type fact struct{ name, value string }

// environment is what a point was measured on, but for the number of ranks and hosts.
func (x *Point) environment() []fact {
	var kernels, gpus, bindings []string
	for i := range x.Run.Ranks {
		r := &x.Run.Ranks[i]
		gpu := "none"
		if r.GPU != nil {
			gpu = r.GPU.Name
		}
		kernels, gpus, bindings = append(kernels, r.kernels()), append(gpus, gpu), append(bindings, r.binding())
	}
	return []fact{
		{"build", x.Run.build()},
		{"backend", distinct(kernels)},
		{"GPU", distinct(gpus)},
		{"transport", x.Transport},
		{"MPI", x.Run.MPI},
		{"binding", distinct(bindings)},
		{"crowding", x.Run.crowding()},
	}
}

// differences says why two points cannot be compared; "": they can.
func (x *Point) differences(base *Point) string {
	var texts []string
	of := base.environment()
	for i, f := range x.environment() {
		if f.value != of[i].value {
			texts = append(texts, fmt.Sprintf("%s is %s, the baseline's %s", f.name, f.value, of[i].value))
		}
	}
	return strings.Join(texts, "; ")
}

// build is the version and revision that ran.
func (r *Run) build() string {
	if r.Revision == "" {
		return r.Version
	}
	return r.Version + " (" + r.Revision + ")"
}

// numbers are what a backend's name says of threads and devices, which do not make another one.
var numbers = regexp.MustCompile(`, \d+ threads?$| device \d+`)

func (r *Rank) kernels() string { return numbers.ReplaceAllString(r.Backend, "") }

// binding is how much of its host a rank may use, whatever the numbers of the CPUs.
func (r *Rank) binding() string {
	cpus := plural(len(parseCPUs(r.CPUs)), "CPU")
	if parseCPUs(r.CPUs) == nil {
		cpus = "CPUs " + r.CPUs
	}
	return plural(r.Threads, "thread") + " on " + cpus
}

// crowding is how many threads of CPU kernels share a CPU, on the fullest host.
func (r *Run) crowding() string {
	threads, cpus := map[string]int{}, map[string]map[int]bool{}
	for _, x := range r.Ranks {
		if x.GPU != nil {
			continue
		}
		if cpus[x.Host] == nil {
			cpus[x.Host] = map[int]bool{}
		}
		threads[x.Host] += x.Threads
		for _, c := range parseCPUs(x.CPUs) {
			cpus[x.Host][c] = true
		}
	}
	most := 0.0
	for host, n := range threads {
		most = max(most, float64(n)/float64(max(1, len(cpus[host]))))
	}
	if most <= 1 {
		return "at most 1 thread a CPU"
	}
	return strconv.FormatFloat(most, 'g', 3, 64) + " threads a CPU"
}

// shares reports whether ranks share a GPU: times then say nothing of as many GPUs.
func (r *Run) shares() bool {
	return slices.ContainsFunc(r.Ranks, func(x Rank) bool { return x.GPUShared })
}

// hosts is the number of different hosts.
func (r *Run) hosts() int {
	seen := map[string]bool{}
	for _, x := range r.Ranks {
		seen[x.Host] = true
	}
	return len(seen)
}

// parseCPUs reads a list such as 0-3,8; nil if it is none.
func parseCPUs(list string) []int {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			return nil
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil || b < a || b-a > 1<<20 {
				return nil
			}
		}
		for ; a <= b; a++ {
			cpus = append(cpus, a)
		}
	}
	return cpus
}

// distinct joins the different ones of texts.
func distinct(texts []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(texts))), " and ")
}
