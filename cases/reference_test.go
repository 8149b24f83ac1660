package cases

import (
	"math"

	"ringattn/segments"
)

// attention is the definition, pair by pair, in T: results by tensor as
// [B, S, heads, D], [B, S, H] of lse.
type number interface{ float32 | float64 }

func attention[T number](s *Shape, value func(tensor string, b, pos int, dst []float32)) map[string][]T {
	in, out := map[string][]T{}, map[string][]T{}
	for _, name := range []string{"q", "k", "v", "dout"} {
		token := make([]float32, s.Width(name))
		for b := range s.Batch {
			for pos := range s.Tokens {
				value(name, b, pos, token)
				for _, x := range token {
					in[name] = append(in[name], T(x))
				}
			}
		}
	}
	for _, name := range []string{"out", "lse", "dq", "dk", "dv"} {
		out[name] = make([]T, s.Batch*s.Tokens*s.Width(name))
	}
	vec := func(of map[string][]T, name string, b, pos, head int) []T {
		at := ((b*s.Tokens+pos)*s.TensorHeads(name) + head) * s.RowLen(name)
		return of[name][at : at+s.RowLen(name)]
	}
	dot := func(x, y []T) (sum T) {
		for i := range x {
			sum += x[i] * y[i]
		}
		return sum
	}
	add := func(x []T, f T, y []T) {
		for i := range x {
			x[i] += f * y[i]
		}
	}
	scale := T(s.Scale)
	for b := range s.Batch {
		for h := range s.Heads {
			g := h / (s.Heads / s.KVHeads)
			for i := range s.Tokens {
				q, do, o := vec(in, "q", b, i, h), vec(in, "dout", b, i, h), vec(out, "out", b, i, h)
				var keys []int
				var p []T
				most := T(math.Inf(-1))
				for j := range s.Tokens {
					if s.Mask.Sees(b, i, j) {
						keys, p = append(keys, j), append(p, scale*dot(q, vec(in, "k", b, j, g)))
						most = max(most, p[len(p)-1])
					}
				}
				var sum T
				for n := range keys {
					p[n] = T(math.Exp(float64(p[n] - most)))
					sum += p[n]
				}
				vec(out, "lse", b, i, h)[0] = most + T(math.Log(float64(sum)))
				for n, j := range keys {
					p[n] /= sum
					add(o, p[n], vec(in, "v", b, j, g))
				}
				delta := dot(o, do)
				for n, j := range keys {
					ds := scale * p[n] * (dot(do, vec(in, "v", b, j, g)) - delta)
					add(vec(out, "dv", b, j, g), p[n], do)
					add(vec(out, "dk", b, j, g), ds, q)
					add(vec(out, "dq", b, i, h), ds, vec(in, "k", b, j, g))
				}
			}
		}
	}
	return out
}

// one is a mask of one row, one document.
func one(tokens int, causal bool, window int) segments.Mask {
	return segments.Mask{Causal: causal, Window: window, Rows: []segments.Row{segments.SingleDocument(tokens)}}
}
