package ring

// Memory is the number of bytes that a rank allocates for one layer: its own
// tensors (q, k, v, out in float32, lse; with backward dout, delta and float32
// dq, dk, dv), the slots of its plans and the intervals of its queries. Buffers
// for files (a mebibyte) and the kernels' workspace (on the CPU packed keys and
// partial sums, up to 128 MiB, and a few mebibytes a thread) come on top.
func (j *Job) Memory(rank int, s Shape, backward bool) int64 {
	tokens := int64(j.Batch.Order(rank).Tokens)
	heads, dims := int64(s.Heads), int64(s.Heads)*int64(s.HeadDim)
	perToken := dims*s.DType.Size() + s.KVTokenBytes() + 4*dims + 4*heads
	passes := []Pass{Forward}
	if backward {
		perToken += dims*s.DType.Size() + 4*heads + 4*dims + s.GradTokenBytes()
		passes = append(passes, Backward)
	}
	bytes := tokens * perToken
	most := map[Slot]int{}
	for _, p := range passes {
		steps := j.PlanOf(rank, p)
		for slot, n := range SlotTokens(steps) {
			most[slot] = max(most[slot], n)
		}
		if p == Forward {
			for _, step := range steps {
				if step.Op == Attend {
					bytes += 8 * int64(j.Batch.Need(rank, step.Owner).Q.Len())
				}
			}
		}
	}
	for slot, n := range most {
		bytes += int64(n) * s.tokenBytes(slot)
	}
	return bytes
}
