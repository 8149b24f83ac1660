package cmd

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"ringattn/cases"
)

// fact is one thing that all ranks must agree on.
type fact struct{ Name, Value string }

// agree compares facts over the ranks: the build, the configuration and whatever
// the caller adds. Ranks that disagree would compute something, or hang.
func (w *world) agree(ctx context.Context, facts ...fact) error {
	o := w.options
	facts = append([]fact{
		{"the command", w.command},
		{"version", versionLine()},
		{"--layout", o.layout},
		{"--shards", o.shards},
		{"--schedule", o.schedule},
		{"--ranks-per-node", strconv.Itoa(o.perNode)},
		{"--machine", o.machine},
		{"--ulysses", strconv.Itoa(o.ulysses)},
		{"--wire-gradients", o.wire},
		{"--stage-tokens", strconv.Itoa(o.stageTokens)},
		{"--grain", strconv.Itoa(o.grain)},
		{"--transport", o.transport},
		{"--timeout", o.timeout.String()},
		{"--trace", o.trace},
		{"RINGATTN_TEST_PIECE_BYTES", os.Getenv("RINGATTN_TEST_PIECE_BYTES")},
	}, facts...)
	all, err := shareAll(ctx, w, facts)
	if err != nil {
		return err
	}
	for r, theirs := range all {
		// Lists of other facts differ in the command or the version, which come first.
		for i := range min(len(all[0]), len(theirs)) {
			if x, y := all[0][i], theirs[i]; x != y {
				return known(environmentError("rank 0 and rank %d disagree about %s: %q on rank 0, %q on rank %d", r, x.Name, x.Value, y.Value, r))
			}
		}
	}
	return nil
}

// agreeShapes compares the shapes of problems without a file, and more.
func (w *world) agreeShapes(ctx context.Context, shapes []cases.Shape, more ...fact) error {
	var text []string
	for _, s := range shapes {
		text = append(text, fmt.Sprintf("%s, %d x %d tokens, heads %d/%d, head_dim %d, %v, scale %v", s.Name, s.Batch, s.Tokens, s.Heads, s.KVHeads, s.HeadDim, s.DType, s.Scale))
	}
	return w.agree(ctx, append(more, fact{"the shapes", strings.Join(text, "; ")})...)
}
