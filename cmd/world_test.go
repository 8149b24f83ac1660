package cmd

import (
	"strings"
	"testing"
)

// Ranks that fight for a CPU are named, also where rank 0 is not among them.
func TestCrowding(t *testing.T) {
	host := func(name string, cpus ...int) hostFacts {
		return hostFacts{Host: name, CPUs: cpus, CPULimit: len(cpus)}
	}
	for _, c := range []struct {
		hosts   []hostFacts
		threads int // 0: the CPUs divided
		want    string
	}{
		{[]hostFacts{host("a", 0), host("a", 1)}, 0, ""},
		{[]hostFacts{host("a", 0, 1), host("a", 0, 1)}, 0, ""},
		{[]hostFacts{host("a", 0), host("b", 0)}, 0, ""},
		{[]hostFacts{host("a", 0), host("a", 1), host("a", 1)}, 0, "rank 1: 2 threads of 2 ranks share 1 CPU (1 of a); so it is for 2 ranks in all"},
		{[]hostFacts{host("a", 0, 1), host("a", 1)}, 0, "rank 1: 2 threads of 2 ranks share 1 CPU (1 of a):"},
		{[]hostFacts{host("a", 0, 1), host("b", 0)}, 2, "rank 1: 2 threads of 1 rank share 1 CPU (0 of b):"},
	} {
		w := &world{hosts: c.hosts, threads: c.threads, divided: c.threads == 0}
		if got := w.crowding(); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want %q", c.hosts, got, c.want)
		}
	}
}
