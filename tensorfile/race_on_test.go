//go:build race

package tensorfile

// hostileHeader is the length in bytes of the headers that are tried; the race
// detector makes long ones slow.
const hostileHeader = 20_000_000
