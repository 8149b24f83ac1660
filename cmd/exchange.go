package cmd

import (
	"context"
	"encoding/json"
	"fmt"
)

// gatherAll gives rank 0 everybody's x; others get nil.
func gatherAll[T any](ctx context.Context, w *world, x T) ([]T, error) {
	return exchange(x, func(text []byte) ([][]byte, error) { return w.Gather(ctx, 0, text) })
}

// shareAll gives every rank everybody's x.
func shareAll[T any](ctx context.Context, w *world, x T) ([]T, error) {
	return exchange(x, func(text []byte) ([][]byte, error) { return w.AllGather(ctx, text) })
}

// exchange is a collective of values, by one of texts.
func exchange[T any](x T, collect func(text []byte) ([][]byte, error)) ([]T, error) {
	text, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	all, err := collect(text)
	if err != nil || all == nil {
		return nil, err
	}
	out := make([]T, len(all))
	for r := range all {
		if err := json.Unmarshal(all[r], &out[r]); err != nil {
			return nil, fmt.Errorf("what rank %d tells: %w", r, err)
		}
	}
	return out, nil
}
