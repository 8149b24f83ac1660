package ring_test

import (
	"testing"

	"pgregory.net/rapid"

	"ringattn/ring"
	"ringattn/segments"
	"ringattn/segments/segmentstest"
)

func sentBytes(job *ring.Job, rank int, p ring.Pass, shape ring.Shape) (n int64) {
	for s := range job.Plan(rank, p) {
		if s.Op == ring.Send {
			n += s.Bytes(shape)
		}
	}
	return n
}

// Each rank sends exactly the least, which is counted here pair by pair.
func TestDirectSendsTheLeast(t *testing.T) {
	shape := ring.Shape{DType: ring.BF16, Heads: 2, KVHeads: 1, HeadDim: 4}
	rapid.Check(t, func(t *rapid.T) {
		b := drawJob(t, 30, 6).Batch
		job := mustSchedule(t, b.Layout, b.Mask, "direct")
		ofIt, byIt := make([]int64, b.Ranks()), make([]int64, b.Ranks())
		for kv := range b.Ranks() {
			for q := range b.Ranks() {
				n := int64(seenTokens(b, q, kv))
				if q != kv {
					ofIt[kv], byIt[q] = ofIt[kv]+n, byIt[q]+n
				}
			}
		}
		for rank := range b.Ranks() {
			forward := ofIt[rank] * shape.KVTokenBytes()
			for pass, want := range []int64{forward, forward + byIt[rank]*shape.GradTokenBytes()} {
				p := ring.Pass(pass)
				if least, sent := job.LeastBytes(rank, p, shape), sentBytes(job, rank, p, shape); least != want || sent != want {
					t.Fatalf("rank %d, %v: %d bytes are needed, LeastBytes says %d, %d are sent", rank, p, want, least, sent)
				}
			}
		}
	})
}

// seenTokens counts the tokens of rank kv that some query of rank q sees.
func seenTokens(b *segments.Batch, q, kv int) (n int) {
	positions := func(rank int, f func(pos int)) {
		for _, s := range b.Layout.Spans[rank] {
			for pos := s.Start; pos < s.End; pos++ {
				f(pos)
			}
		}
	}
	for row := range b.Mask.Rows {
		positions(kv, func(key int) {
			seen := false
			positions(q, func(query int) { seen = seen || b.Mask.Sees(row, query, key) })
			if seen {
				n++
			}
		})
	}
	return n
}

// Packed documents over balanced ranks, direct: what is sent is hardly more than if each
// document with more than a rank's share of the pairs were on as many ranks as it has
// shares, and all others on one.
func TestPackedDocumentsSendLittle(t *testing.T) {
	const tokens = 1 << 20
	shape := ring.Shape{DType: ring.BF16, Heads: 1, KVHeads: 1, HeadDim: 1}
	for _, file := range []string{"source-files.txt", "prose-and-manuals.txt"} {
		row := segmentstest.Packed(t, file, tokens)
		mask := segments.Mask{Causal: true, Rows: []segments.Row{row}}
		var all float64
		pairs := func(d segments.DocRun) float64 { return float64(d.Len()) * float64(d.Len()+1) / 2 }
		for _, d := range row.Docs {
			all += pairs(d)
		}
		for ranks, most := range map[int]float64{8: 1.05, 64: 1.05, 512: 1.15} {
			l, err := segments.Balanced(tokens, ranks, mask)
			if err != nil {
				t.Fatal(err)
			}
			job := mustSchedule(t, l, mask, "direct")
			var sent int64
			for rank := range ranks {
				sent += sentBytes(job, rank, ring.Forward, shape)
			}
			want := 0.0
			for _, d := range row.Docs {
				if shares := float64(ranks) * pairs(d) / all; shares > 1 {
					want += (shares - 1) * float64(d.Len())
				}
			}
			if x := float64(sent) / float64(shape.KVTokenBytes()) / want; x > most {
				t.Errorf("%s, %d ranks: %.3f of what large documents need", file, ranks, x)
			}
		}
	}
}

// Under a window what a rank sends does not depend on the number of ranks; nor do its
// slots, under any mask.
func TestDirectDoesNotGrowWithTheRanks(t *testing.T) {
	const each, window = 64, 17
	shape := ring.Shape{DType: ring.BF16, Heads: 1, KVHeads: 1, HeadDim: 1}
	for _, ranks := range []int{4, 16, 64} {
		doc := []segments.Row{segments.SingleDocument(each * ranks)}
		job := mustSchedule(t, segments.Contiguous(each*ranks, ranks), segments.Mask{Causal: true, Window: window, Rows: doc}, "direct")
		for rank := range ranks - 1 {
			if got, want := sentBytes(job, rank, ring.Forward, shape), (window-1)*shape.KVTokenBytes(); got != want {
				t.Errorf("%d ranks: rank %d sends %d bytes, want %d", ranks, rank, got, want)
			}
		}
		for name, job := range map[string]*ring.Job{
			"full":   mustSchedule(t, segments.Contiguous(each*ranks, ranks), segments.Mask{Rows: doc}, "direct"),
			"zigzag": mustSchedule(t, segments.Zigzag(each*ranks, ranks), segments.Mask{Causal: true, Rows: doc}, "direct"),
		} {
			for rank := range ranks {
				keys, grads := slotTokens(job, rank)
				if keys > each*3/2 || grads > each*7/2 {
					t.Errorf("%s, %d ranks: rank %d has slots for the keys of %d tokens and the gradients of %d", name, ranks, rank, keys, grads)
				}
			}
		}
	}
}
