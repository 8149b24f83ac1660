package cases

import (
	"fmt"
	"math"

	"ringattn/segments"
)

// logs is ln n of each n; ln 0 is -Inf.
func logs(n ...int) []float64 {
	out := make([]float64, len(n))
	for i, x := range n {
		out[i] = math.Log(float64(x))
	}
	return out
}

// mergeProbes are section A: folding partial answers.
func mergeProbes() []*Probe {
	// The loser of A1 weighs e^-100, which is subnormal in f32, or 0.
	const tolSubnormal = 1e-30
	var all []*Probe
	for big, name := range []string{"A1 swapped", "A1"} {
		// Scores 0 and 100; the key of score 100 is token big.
		p := newProbe(name, "f32", 2, 1, 1, 64, segments.Mask{Rows: row(2, nil, nil)}, contiguous(2, 2)...)
		p.value = func(tensor string, _, pos, dim int) float64 {
			switch {
			case dim != 0:
				return 0
			case tensor == "q":
				return 80
			case tensor == "k" && pos == big:
				return 10
			case tensor == "v" && pos == big, tensor == "dout":
				return 1
			}
			return 0
		}
		p.block("out", segments.Span{End: 2}, 0, 1, 1e-6)
		p.list("lse", 100, 100)
		p.block("dv", segments.Span{Start: big, End: big + 1}, 0, 2, tolF32)
		p.block("dv", segments.Span{Start: 1 - big, End: 2 - big}, 0, 0, tolSubnormal)
		all = append(all, p)
	}

	p := newProbe("A3", "f32", 16, 2, 1, 64, segments.Mask{Causal: true, Rows: row(16, ids(1, 6, 0, 10), nil)}, contiguous(16, 4)...)
	p.list("out", 0, .5, 1, 1.5, 2, 2.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	p.list("lse", logs(1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)...)
	p.printed("dv", 2, tol4, 2.45, 1.45, .95, .6167, .3667, .1667, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	p.zero("dq", "dk")
	all = append(all, p)

	// A5(a): sums that 16 bits cannot hold. 8 rows of 2048 and 56 of 6, over 64.
	p = newProbe("A5(a)", "bf16", 64, 1, 1, 64, segments.Mask{Rows: row(64, nil, nil)}, contiguous(64, 8)...)
	p.value = func(tensor string, _, pos, dim int) float64 {
		switch {
		case tensor == "v":
			return float64(pos)
		case tensor == "dout" && dim == 0 && pos < 8:
			return 2048
		case tensor == "dout" && dim == 0:
			return 6
		}
		return 0
	}
	p.block("dv", segments.Span{End: 64}, 0, 261.25, .005)
	p.zero("dq", "dk")
	return append(all, p)
}

// maskProbes are section B.
func maskProbes() []*Probe {
	var all []*Probe
	p := newProbe("B1", "f32", 8, 1, 1, 64, segments.Mask{Causal: true, Window: 4, Rows: row(8, nil, nil)}, contiguous(8, 2, 4)...)
	p.list("out", 0, .5, 1, 1.5, 2.5, 3.5, 4.5, 5.5)
	p.list("lse", logs(1, 2, 3, 4, 4, 4, 4, 4)...)
	p.printed("dv", 1, tol4, 2.0833, 1.3333, 1.0833, 1, 1, .75, .5, .25)
	all = append(all, p)

	for _, causal := range []bool{true, false} {
		mask := segments.Mask{Causal: causal, Rows: row(10, ids(1, 4, 2, 3, 0, 3), nil)}
		p := newProbe("B3 full", "f32", 10, 1, 1, 64, mask, contiguous(10, 2)...)
		if causal {
			p.Name = "B3 causal"
			p.list("out", 0, .5, 1, 1.5, 4, 4.5, 5, 0, 0, 0)
			p.printed("dv", 1, tol4, 2.0833, 1.0833, .5833, .25, 1.8333, .8333, .3333, 0, 0, 0)
		} else {
			p.list("out", 1.5, 1.5, 1.5, 1.5, 5, 5, 5, 0, 0, 0)
			p.printed("dv", 1, tol4, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0)
		}
		all = append(all, p)
	}

	// The image block crosses the shards' boundary: rank 0 needs later keys.
	p = newProbe("B5", "f32", 8, 1, 1, 64, segments.Mask{Causal: true, Vision: true, Rows: row(8, nil, ids(0, 2, 1, 4, 0, 2))}, contiguous(8, 2, 4)...)
	p.list("out", 0, .5, 2.5, 2.5, 2.5, 2.5, 3, 3.5)
	p.list("lse", logs(1, 2, 6, 6, 6, 6, 7, 8)...)
	p.printed("dv", 1, tol4, 2.4345, 1.4345, .9345, .9345, .9345, .9345, .2679, .125)
	all = append(all, p)

	for i, lengths := range [][]int{{4, 3, 3}, {3, 3, 4}} {
		p := newProbe([]string{"B8 4,3,3", "B8 3,3,4"}[i], "f32", 10, 2, 1, 64, segments.Mask{Causal: true, Rows: row(10, nil, nil)}, shards(lengths...))
		p.formula("out", func(i int) float64 { return float64(i) / 2 })
		p.formula("lse", func(i int) float64 { return math.Log(float64(i + 1)) })
		p.printed("dv", 2, tol3, 2.929, 1.929, 1.429, 1.0956, .8456, .6456, .479, .3361, .2111, .1)
		all = append(all, p)
	}
	for _, p := range all {
		p.zero("dq", "dk")
	}
	return all
}

// shardProbes are section C.
func shardProbes() []*Probe {
	var all []*Probe
	for _, tokens := range []int{29, 30, 31} { // not multiples of 2 x 4 ranks
		for _, layout := range []segments.Layout{segments.Contiguous(tokens, 4), segments.Zigzag(tokens, 4)} {
			p := newProbe(fmt.Sprintf("C1 %d %s", tokens, layout.Name), "f32", tokens, 2, 1, 64,
				segments.Mask{Causal: true, Rows: row(tokens, nil, nil)}, layout)
			p.formula("out", func(i int) float64 { return float64(i) / 2 })
			p.formula("lse", func(i int) float64 { return math.Log(float64(i + 1)) })
			p.formula("dv", func(j int) float64 { // so that they sum to 2 x tokens
				var sum float64
				for i := tokens - 1; i >= j; i-- {
					sum += 2 / float64(i+1)
				}
				return sum
			})
			if tokens == 29 { // as printed
				p.want("out", 28, 14, 14*tolF32)
				p.want("lse", 28, 3.3673, tol4)
				p.want("dv", 0, 2*3.9617, 2*tol4)
			}
			all = append(all, p)
		}
	}

	// Ranks 1 to 3 hold only padding. To be run three times over.
	p := newProbe("C3", "f32", 16, 4, 2, 128, segments.Mask{Causal: true, Rows: row(16, ids(1, 4, 0, 12), nil)}, contiguous(16, 4)...)
	p.list("out", 0, .5, 1, 1.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	p.list("lse", logs(1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)...)
	p.printed("dv", 2, tol4, 2.0833, 1.0833, .5833, .25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	all = append(all, p)

	p = newProbe("C5", "f32", 16, 1, 1, 64, segments.Mask{Causal: true, Rows: row(16, nil, nil)}, segments.Zigzag(16, 4))
	p.formula("out", func(i int) float64 { return float64(i) / 2 })
	all = append(all, p)

	for _, w := range WindowHops {
		p := newProbe(fmt.Sprintf("C6 W=%d", w.Window), "f32", 16, 1, 1, 64,
			segments.Mask{Causal: true, Window: w.Window, Rows: row(16, nil, nil)}, contiguous(16, 4)...)
		p.formula("out", func(i int) float64 { return float64(i) - float64(min(w.Window, i+1)-1)/2 })
		p.formula("lse", func(i int) float64 { return math.Log(float64(min(w.Window, i+1))) })
		switch w.Window { // as printed
		case 5:
			p.want("out", 12, 10, 10*tolF32)
		case 6:
			p.want("out", 12, 9.5, 10*tolF32)
		}
		all = append(all, p)
	}
	for _, p := range all {
		p.zero("dq", "dk")
	}
	return all
}

// backwardProbes are section D.
func backwardProbes() []*Probe {
	p := newProbe("D1", "f32", 2, 1, 1, 64, segments.Mask{Rows: row(2, nil, nil)}, contiguous(2, 2)...)
	p.Scale = 1
	p.value = func(tensor string, _, pos, dim int) float64 {
		switch {
		case dim != 0:
			return 0
		case tensor == "q", tensor == "dout", tensor == "v" && pos == 1:
			return 1
		case tensor == "k" && pos == 1:
			return math.Log(3)
		}
		return 0
	}
	both, first, second := segments.Span{End: 2}, segments.Span{End: 1}, segments.Span{Start: 1, End: 2}
	p.block("out", both, 0, .75, tolF32)
	p.printed("lse", 1, tol5, 1.38629, 1.38629)
	p.block("dv", first, 0, .5, tolF32)
	p.block("dv", second, 0, 1.5, tolF32)
	p.block("dq", both, 0, .20599, tol5)
	p.block("dk", first, 0, -.375, tolF32)
	p.block("dk", second, 0, .375, tolF32)
	for dim := 1; dim < p.HeadDim; dim++ {
		for _, tensor := range []string{"dq", "dk"} {
			p.block(tensor, both, dim, 0, tolExact)
		}
	}
	all := []*Probe{p}

	// dout of head h is h+1 in dim 0: which heads add up to which KV head.
	for _, c := range []struct {
		heads, kvHeads int
		want           []float64
	}{{6, 2, []float64{6, 15}}, {12, 4, []float64{6, 15, 24, 33}}} {
		p := newProbe(fmt.Sprintf("D3 %d/%d", c.heads, c.kvHeads), "f32", 2, c.heads, c.kvHeads, 64, segments.Mask{Rows: row(2, ids(1, 1, 2, 1), nil)}, contiguous(2, 2)...)
		p.value = func(tensor string, head, pos, dim int) float64 {
			switch {
			case tensor == "v":
				return float64(pos)
			case tensor == "dout" && dim == 0:
				return float64(head + 1)
			}
			return 0
		}
		for g, value := range c.want {
			p.Wants = append(p.Wants, Want{
				Tensor: "dv", Heads: segments.Span{Start: g, End: g + 1}, Tokens: both, Dim: 0, Value: value, Tol: value * tolF32,
			})
		}
		p.zero("dk")
		all = append(all, p)
	}

	// Most pairs of shards have nothing visible.
	for _, dim := range []int{256, 128} {
		p := newProbe(fmt.Sprintf("D5 %d", dim), "f32", 8, 4, 1, dim, segments.Mask{Causal: true, Rows: row(8, ids(1, 2, 2, 4, 3, 2), nil)}, contiguous(8, 4)...)
		p.list("out", 0, .5, 2, 2.5, 3, 3.5, 6, 6.5)
		p.printed("dv", 4, tol4, 1.5, .5, 2.0833, 1.0833, .5833, .25, 1.5, .5)
		p.zero("dq", "dk")
		all = append(all, p)
	}

	// A detour through bf16 shows as 1; in bf16 itself V is 1.
	for _, dtype := range []string{"f16", "f32", "bf16"} {
		p := newProbe("D7 "+dtype, dtype, 4, 1, 1, 64, segments.Mask{Rows: row(4, nil, nil)}, contiguous(4, 2)...)
		p.value = func(tensor string, _, _, _ int) float64 {
			switch tensor {
			case "v":
				return 1 + 0x1p-10
			case "dout":
				return 1
			}
			return 0
		}
		p.block("out", segments.Span{End: 4}, AllDims, round(dtype, 1+0x1p-10), 1e-6)
		p.zero("dq", "dk")
		all = append(all, p)
	}
	return all
}

// limitProbes are section E: more tokens, documents or heads than some index holds.
func limitProbes() []*Probe {
	var all []*Probe
	// Elements of a tensor: 2^31, and a token more.
	for _, tokens := range []int{1 << 21, 1<<21 + 1} {
		const window = 512
		p := newProbe(fmt.Sprintf("E1 %d", tokens), "bf16", tokens, 16, 16, 64, segments.Mask{Causal: true, Window: window, Rows: row(tokens, nil, nil)}, contiguous(tokens, 1)...)
		p.Large = true
		p.value = func(tensor string, _, pos, _ int) float64 {
			switch tensor {
			case "v":
				return float64(pos%64) / 64
			case "dout":
				return 1
			}
			return 0
		}
		p.want("out", tokens-1, .4921875, tolF32)
		p.want("lse", tokens-1, 6.23832, tol5)
		p.block("dv", segments.Span{Start: window - 1, End: tokens - window + 1}, AllDims, 1, tolF32)
		p.want("dv", tokens-1, 1./window, tolF32/window)
		p.zero("dq", "dk")
		all = append(all, p)
	}

	// Every token is its own document, so that out is v and dv is dout.
	const many = 1<<16 + 1
	for _, c := range []struct {
		name          string
		tokens, heads int
	}{{"E3 65537 docs", many, 1}, {"E3 65536 heads", 2, 1 << 16}} {
		rows := []segments.Row{{Docs: fill(c.tokens, func(int) int { return 1 })}}
		p := newProbe(c.name, "bf16", c.tokens, c.heads, c.heads, 64, segments.Mask{Rows: rows}, contiguous(c.tokens, 1)...)
		p.value = func(tensor string, head, pos, _ int) float64 {
			switch tensor { // never 0, which an untouched buffer might hold
			case "v":
				return float64((pos+7*head)%63+1) / 64
			case "dout":
				return float64((3*pos+head)%61+1) / 64
			}
			return 0
		}
		for _, pair := range [][2]string{{"out", "v"}, {"dv", "dout"}} {
			p.Wants = append(p.Wants, Want{
				Tensor: pair[0], Heads: segments.Span{End: c.heads}, Tokens: segments.Span{End: c.tokens}, Dim: AllDims, Equals: pair[1], Tol: 1e-6,
			})
		}
		p.zero("dq", "dk")
		all = append(all, p)
	}
	return all
}
