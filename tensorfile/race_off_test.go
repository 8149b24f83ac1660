//go:build !race

package tensorfile

// slowdown is what the race detector costs at most, hostileHeader the length in
// bytes of the headers that are tried.
const slowdown, hostileHeader = 1, maxHeader
