package ring

import (
	"fmt"
	"slices"

	"ringattn/segments"
)

// Heads as a second axis (Ulysses).
//
// Ranks stand in groups of U, in order. Before a pass the ranks of a group exchange their
// tokens' heads, all to all: each gets all tokens of the group, with a U-th of the query
// heads and the KV heads that these read. Then member u of each group is a rank of a ring
// over the groups, and after the pass the results go back to the owners of the tokens. So
// keys pass by P/U - 1 others in place of P - 1, with a U-th of the heads.
//
// Query heads are cut evenly, so U divides their number. Where it does not divide that of
// the KV heads, members share some: each has a copy, and the owner of the tokens adds up
// their gradients. Kernels want as many query heads on each KV head: a member that has a
// part of one KV head's query heads and all of another's holds the latter several times.
type headSplit struct {
	members        int // U
	heads, kvHeads int // of the job
}

// check refuses what cannot be cut.
func (h *headSplit) check(ranks int) error {
	switch {
	case h.members < 1 || ranks%h.members != 0:
		return fmt.Errorf("ring: groups of %d ranks (ulysses): %d ranks are no whole number of groups", h.members, ranks)
	case h.heads < 1 || h.kvHeads < 1 || h.heads%h.kvHeads != 0:
		return fmt.Errorf("ring: %d query heads and %d KV heads: the first must be a multiple of the second", h.heads, h.kvHeads)
	case h.heads%h.members != 0:
		return fmt.Errorf("ring: groups of %d ranks (ulysses): %d query heads are no whole number for each", h.members, h.heads)
	}
	return nil
}

// own is how many query heads a member computes with, and each says on how many of them
// one KV head is read.
func (h *headSplit) own() int { return h.heads / h.members }

func (h *headSplit) each() int { return gcd(h.own(), h.heads/h.kvHeads) }

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// shape is what a member's kernels are called with.
func (h *headSplit) shape(s Shape) Shape {
	s.Heads, s.KVHeads = h.own(), h.own()/h.each()
	return s
}

// kvOf is the KV head of the job that is the j-th of a member.
func (h *headSplit) kvOf(member, j int) int {
	return (member*h.own() + j*h.each()) / (h.heads / h.kvHeads)
}

// of are the heads of a tensor that a member computes with, each once.
func (h *headSplit) of(t Tensor, member int) segments.Span {
	if !t.pairs() {
		return segments.Span{Start: member * h.own(), End: (member + 1) * h.own()}
	}
	last := h.own()/h.each() - 1
	return segments.Span{Start: h.kvOf(member, 0), End: h.kvOf(member, last) + 1}
}

// Tensor names what a step of the head exchange carries.
type Tensor uint8

// The tensors of a rank. NoTensor is that of a step that is not of the head exchange.
const (
	NoTensor Tensor = iota
	TensorQ
	TensorKV
	TensorOut
	TensorLSE
	TensorDOut
	TensorDQ
	TensorDKV
)

func (t Tensor) String() string {
	return [...]string{"", "q", "kv", "out", "lse", "dout", "dq", "dkv"}[t]
}

// pairs reports whether a token has two vectors a head: keys and values, or their
// gradients.
func (t Tensor) pairs() bool { return t == TensorKV || t == TensorDKV }

// headBytes is the size of one of these vectors, or of the number that stands for it.
func (t Tensor) headBytes(s Shape) int64 {
	switch t {
	case TensorQ, TensorKV, TensorDOut:
		return int64(s.HeadDim) * s.DType.Size()
	case TensorLSE:
		return 4
	}
	return int64(s.HeadDim) * 4
}

// tokenBytes is the size of a token with so many heads.
func (t Tensor) tokenBytes(s Shape, heads int) int64 {
	bytes := int64(heads) * t.headBytes(s)
	if t.pairs() {
		bytes *= 2
	}
	return bytes
}

// exchanged are the tensors whose heads go out to the members of a group before a pass,
// and come home after it. What forward has brought and computed is still there backward.
func exchanged(p Pass, home bool) []Tensor {
	switch {
	case p == Forward && !home:
		return []Tensor{TensorQ, TensorKV}
	case p == Forward:
		return []Tensor{TensorOut, TensorLSE}
	case !home:
		return []Tensor{TensorDOut}
	}
	return []Tensor{TensorDQ, TensorDKV}
}

// planGroups makes the job of the groups and the exchange around it.
func (j *Job) planGroups(nodes Nodes) error {
	if j.Schedule == "two-level" && nodes != nil {
		var err error
		if nodes, err = nodes.Groups(j.split.members); err != nil {
			return err
		}
	}
	b, err := segments.NewBatch(groupsOf(j.Batch.Layout, j.split.members), j.Batch.Mask)
	if err != nil {
		return err
	}
	if j.groups, err = NewJob(b, j.Schedule, nodes, GradientsAs(j.Wire), StageTokens(j.stageTokens)); err != nil {
		return err
	}
	j.planner = &headPlanner{batch: j.Batch, split: j.split, ring: j.groups, local: j.split.own() / j.split.each()}
	return nil
}

// Members is how many ranks exchange heads; 1: none do.
func (j *Job) Members() int {
	if j.groups == nil {
		return 1
	}
	return j.split.members
}

// solver is the job, and the rank in it, of a rank's attend steps.
func (j *Job) solver(rank int) (*Job, int) {
	if j.groups == nil {
		return j, rank
	}
	return j.groups, rank / j.split.members
}

// Kernels is what a rank's kernels are called with: the shape, and of how many tokens the
// queries are.
func (j *Job) Kernels(rank int, s Shape) (Shape, int) {
	if j.groups != nil {
		s = j.split.shape(s)
	}
	solver, at := j.solver(rank)
	return s, solver.Batch.Order(at).Tokens
}

// Share is a rank's share of the pairs that it attends to: members of a group attend to the
// same ones, each with a part of the heads. Over all ranks they sum to the visible pairs.
func (j *Job) Share(rank int, pairs int64) int64 {
	n := int64(j.Members())
	u := int64(rank) % n
	return pairs*(u+1)/n - pairs*u/n
}

// groupsOf is the layout of the groups: each holds what its members hold.
func groupsOf(l segments.Layout, members int) segments.Layout {
	g := segments.Layout{Name: l.Name, Tokens: l.Tokens}
	for first := 0; first < l.Ranks(); first += members {
		g.Spans = append(g.Spans, segments.Join(slices.Concat(l.Spans[first:first+members]...)))
	}
	return g
}

// places are where the tokens of a rank stand in the kernel order of its group: both are
// sorted alike.
func places(rank, group *segments.Order) []int32 {
	var at []int32
	next := 0
	for _, p := range rank.Pieces {
		q := &group.Pieces[next]
		for q.Row != p.Row || q.Doc != p.Doc || !q.Pos.Contains(p.Pos) {
			next++
			q = &group.Pieces[next]
		}
		for i := range p.Pos.Len() {
			at = append(at, int32(q.At+p.Pos.Start-q.Pos.Start+i))
		}
	}
	return at
}
