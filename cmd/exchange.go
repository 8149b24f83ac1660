package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// knownError is an error that all ranks have, with the same words, between two of their
// steps: one can tell, and the job end in order.
type knownError struct{ error }

func (e knownError) Unwrap() error { return e.error }

// known marks an error that comes from nothing but what all ranks know.
func known(err error) error {
	if err == nil {
		return nil
	}
	return knownError{err}
}

// gatherAll gives rank 0 everybody's x; others get nil.
func gatherAll[T any](ctx context.Context, w *world, x T) ([]T, error) {
	return exchange(x, func(text []byte) ([][]byte, error) { return w.Gather(ctx, 0, text) })
}

// shareAll gives every rank everybody's x.
func shareAll[T any](ctx context.Context, w *world, x T) ([]T, error) {
	return exchange(x, func(text []byte) ([][]byte, error) { return w.AllGather(ctx, text) })
}

// fromRoot gives every rank what make makes on rank 0, or its error.
func fromRoot[T any](ctx context.Context, w *world, make func() (T, error)) (x T, err error) {
	var told struct {
		X    T
		Err  string
		Code int
	}
	var text []byte
	if w.Rank() == 0 {
		if told.X, err = make(); err != nil {
			told.Err, told.Code = err.Error(), exitCode(err)
		}
		if text, err = json.Marshal(told); err != nil {
			return x, err
		}
	}
	if text, err = w.Bcast(ctx, 0, text); err != nil {
		return x, err
	}
	if err := json.Unmarshal(text, &told); err != nil {
		return x, fmt.Errorf("what rank 0 tells: %w", err)
	}
	if told.Err != "" {
		return x, known(withCode(told.Code, errors.New(told.Err)))
	}
	return told.X, nil
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
