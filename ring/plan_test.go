package ring_test

import (
	"testing"

	"pgregory.net/rapid"

	"ringattn/ring"
	"ringattn/segments/segmentstest"
)

func TestPlansOfAnyBatchPassCheck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := segmentstest.Batch(t, 60, 12)
		job, err := ring.NewJob(b, "ring")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []ring.Pass{ring.Forward, ring.Backward} {
			if err := job.Check(p, job.Plans(p)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
