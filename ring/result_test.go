package ring_test

import "math"

// same tells whether two results have the same bits.
func same(a, b result) bool {
	for name := range a {
		for i := range a[name] {
			if math.Float32bits(a[name][i]) != math.Float32bits(b[name][i]) {
				return false
			}
		}
	}
	return true
}

// near tells whether two results differ by rounding alone: by 2^-20 of a tensor's largest
// number, where the reference rounds to 2^-24 after each step.
func near(a, b result) bool {
	for name := range a {
		top := 0.0
		for _, x := range a[name] {
			if !math.IsInf(float64(x), 0) {
				top = max(top, math.Abs(float64(x)))
			}
		}
		for i := range a[name] {
			x, y := float64(a[name][i]), float64(b[name][i])
			if x != y && !(math.Abs(x-y) <= math.Ldexp(top, -20)) {
				return false
			}
		}
	}
	return true
}
