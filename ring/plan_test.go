package ring_test

import (
	"testing"

	"pgregory.net/rapid"

	"ringattn/ring"
)

func TestPlansOfAnyBatchPassCheck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := drawJob(t, 60, 12)
		for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
			if err := job.Check(p, job.Plans(p)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
