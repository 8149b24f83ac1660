package ring

// Memory is the number of bytes that a rank allocates for one layer: its own
// tensors (q, k, v, out in float32, lse; with backward dout, delta and float32
// dq, dk, dv), with a head exchange the same again of its group's tokens with its part of
// the heads, the slots of its plans and the intervals of its queries. Buffers
// for files (a mebibyte), the batch's index, which every rank has for all ranks
// (about 150 bytes a run of a document), and the kernels' workspace (on the CPU
// packed keys and partial sums, up to 128 MiB, and a few mebibytes a thread) come
// on top.
func (j *Job) Memory(rank int, s Shape, backward bool) int64 {
	plans := [][]Step{j.PlanOf(rank, Forward)}
	if backward {
		plans = append(plans, j.PlanOf(rank, Backward))
	}
	return j.MemoryOf(rank, s, plans...)
}

// MemoryOf is Memory where the plans of the rank are there already: that of
// Forward, and with backward that of Backward.
func (j *Job) MemoryOf(rank int, s Shape, plans ...[]Step) int64 {
	backward := len(plans) > 1
	bytes := int64(j.Batch.Order(rank).Tokens) * s.layerTokenBytes(backward)
	solver, place := j.solver(rank)
	if solver != j {
		shape, tokens := j.Kernels(rank, s)
		bytes += int64(tokens) * (shape.layerTokenBytes(backward) + 4) // and the places of tokens
	}
	for _, n := range slotBytes(s, plans...) {
		bytes += n
	}
	// Both passes share intervals, and so do steps that have the same.
	counted, shared := map[sight]bool{}, map[string]bool{}
	for _, steps := range plans {
		for _, step := range steps {
			at := sight{step.Owner, step.Range}
			if step.Op != Attend || counted[at] {
				continue
			}
			counted[at] = true
			b := solver.boundsOf(place, at)
			if key := b.key(); !shared[key] {
				shared[key] = true
				bytes += b.bytes()
			}
		}
	}
	return bytes
}

// layerTokenBytes is the size of a token in all tensors of a layer.
func (s Shape) layerTokenBytes(backward bool) int64 {
	heads, dims := int64(s.Heads), int64(s.Heads)*int64(s.HeadDim)
	bytes := dims*s.DType.Size() + s.KVTokenBytes() + 4*dims + 4*heads
	if backward {
		bytes += dims*s.DType.Size() + 4*heads + 4*dims + s.GradTokenBytes()
	}
	return bytes
}
