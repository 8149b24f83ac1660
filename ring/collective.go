package ring

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"
	"unsafe"
)

// FirstTag is the first tag of a plan's messages; the tags below it belong to
// the collectives of Comm.
const FirstTag = 8

const (
	tagBcastSize = iota
	tagBcast
	tagGatherSize
	tagGather
	tagBarrier
	tagClock
	tagRest
)

// Comm is a Transport with collective operations and waits that end. All ranks
// call the same collectives in the same order. Results are the same to the bit
// on every rank and from run to run.
type Comm struct {
	Transport
	Timeout time.Duration // of one wait; 0: none
	Pace    Pace          // of the waits of collectives; an Exec goes by its backend
}

// batch is a set of transfers that are started together and waited for, with
// their message memory. After an error the memory is left alone for good: a
// transfer may still write to it.
type batch struct {
	c         Comm
	op        string
	transfers []Transfer
	memory    []unsafe.Pointer
	err       error
}

func (c Comm) batch(op string) *batch { return &batch{c: c, op: op} }

// alloc gives message memory that lives until wait has succeeded.
func (b *batch) alloc(bytes int) []byte {
	if b.err != nil || bytes == 0 {
		return nil
	}
	p, err := b.c.Alloc(int64(bytes))
	if err != nil {
		b.fail(err)
		return nil
	}
	b.memory = append(b.memory, p)
	return unsafe.Slice((*byte)(p), bytes)
}

func (b *batch) fail(err error) {
	b.err = fmt.Errorf("ring: rank %d: %s: %w", b.c.Rank(), b.op, err)
}

// receive gives the memory that a message of peer arrives in.
func (b *batch) receive(bytes, peer, tag int) []byte {
	memory := b.alloc(bytes)
	if b.err != nil {
		return nil
	}
	r, err := b.c.Irecv(unsafe.Pointer(unsafe.SliceData(memory)), int64(bytes), peer, tag)
	b.started(r, err, ": receive", bytes, peer, tag)
	return memory
}

// send sends memory that came from alloc.
func (b *batch) send(memory []byte, peer, tag int) {
	if b.err != nil {
		return
	}
	r, err := b.c.Isend(unsafe.Pointer(unsafe.SliceData(memory)), int64(len(memory)), peer, tag)
	b.started(r, err, ": send", len(memory), peer, tag)
}

func (b *batch) started(r Request, err error, what string, bytes, peer, tag int) {
	if err != nil {
		b.fail(err)
		return
	}
	b.transfers = append(b.transfers, Transfer{r, b.op + what, peer, tag, int64(bytes)})
}

func (b *batch) wait(ctx context.Context) error {
	if b.err == nil {
		b.err = b.c.WaitAll(ctx, b.transfers)
	}
	b.transfers = b.transfers[:0]
	return b.err
}

func (b *batch) free() {
	if b.err != nil {
		return
	}
	for _, p := range b.memory {
		b.c.Free(p)
	}
}

// Bcast gives every rank the data of root, along a binomial tree.
func (c Comm) Bcast(ctx context.Context, root int, data []byte) ([]byte, error) {
	size, rank := c.Size(), c.Rank()
	if err := c.checkRoot("broadcast", root); err != nil || size == 1 {
		return data, err
	}
	b := c.batch("broadcast")
	defer b.free()

	// With the root as number 0, the parent of v is v without its lowest bit.
	v := (rank - root + size) % size
	real := func(v int) int { return (v + root) % size }
	head := b.alloc(8)
	var body []byte
	if v == 0 && b.err == nil {
		binary.LittleEndian.PutUint64(head, uint64(len(data)))
		body = b.alloc(len(data))
		copy(body, data)
	} else if b.err == nil {
		parent := real(v & (v - 1))
		head = b.receive(8, parent, tagBcastSize)
		if err := b.wait(ctx); err != nil {
			return nil, err
		}
		body = b.receive(int(binary.LittleEndian.Uint64(head)), parent, tagBcast)
		if err := b.wait(ctx); err != nil {
			return nil, err
		}
	}
	for bit := 1; v+bit < size && v&bit == 0; bit <<= 1 {
		b.send(head, real(v+bit), tagBcastSize)
		b.send(body, real(v+bit), tagBcast)
	}
	if err := b.wait(ctx); err != nil || v == 0 {
		return data, err
	}
	return append([]byte{}, body...), nil
}

// Gather gives root the data of every rank, by rank; other ranks get nil.
func (c Comm) Gather(ctx context.Context, root int, data []byte) ([][]byte, error) {
	if err := c.checkRoot("gather", root); err != nil {
		return nil, err
	}
	size, rank := c.Size(), c.Rank()
	b := c.batch("gather")
	defer b.free()
	if rank != root {
		head, body := b.alloc(8), b.alloc(len(data))
		if b.err == nil {
			binary.LittleEndian.PutUint64(head, uint64(len(data)))
			copy(body, data)
		}
		b.send(head, root, tagGatherSize)
		b.send(body, root, tagGather)
		return nil, b.wait(ctx)
	}
	all := make([][]byte, size)
	for _, tag := range []int{tagGatherSize, tagGather} {
		for peer := range size {
			switch {
			case peer == rank:
			case tag == tagGatherSize:
				all[peer] = b.receive(8, peer, tag)
			default:
				all[peer] = b.receive(int(binary.LittleEndian.Uint64(all[peer])), peer, tag)
			}
		}
		if err := b.wait(ctx); err != nil {
			return nil, err
		}
	}
	all[rank] = data
	for peer := range all {
		all[peer] = append([]byte{}, all[peer]...)
	}
	return all, nil
}

func (c Comm) checkRoot(op string, root int) error {
	if root < 0 || root >= c.Size() {
		return fmt.Errorf("ring: rank %d: %s: there is no rank %d of %d", c.Rank(), op, root, c.Size())
	}
	return nil
}

// AllGather gives every rank the data of every rank, by rank.
func (c Comm) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	all, err := c.Gather(ctx, 0, data)
	if err != nil {
		return nil, err
	}
	var packed []byte
	for _, d := range all {
		packed = binary.AppendUvarint(packed, uint64(len(d)))
		packed = append(packed, d...)
	}
	packed, err = c.Bcast(ctx, 0, packed)
	if err != nil {
		return nil, err
	}
	all = make([][]byte, c.Size())
	for peer := range all {
		n, used := binary.Uvarint(packed)
		if used <= 0 || n > uint64(len(packed)-used) {
			return nil, fmt.Errorf("ring: rank %d: gather to all: the part of rank %d is torn", c.Rank(), peer)
		}
		end := used + int(n)
		all[peer] = packed[used:end:end]
		packed = packed[end:]
	}
	return all, nil
}

// Barrier returns when every rank has called it.
func (c Comm) Barrier(ctx context.Context) error {
	size, rank := c.Size(), c.Rank()
	b := c.batch("barrier")
	for hop := 1; hop < size; hop <<= 1 {
		b.receive(0, (rank-hop+size)%size, tagBarrier)
		b.send(nil, (rank+hop)%size, tagBarrier)
		if err := b.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// AllReduceSum gives every rank the element-wise sums, added in rank order.
func (c Comm) AllReduceSum(ctx context.Context, x []float64) ([]float64, error) {
	return c.allReduce(ctx, x, func(a, b float64) float64 { return a + b })
}

// AllReduceMax gives every rank the element-wise maxima; NaN wins.
func (c Comm) AllReduceMax(ctx context.Context, x []float64) ([]float64, error) {
	return c.allReduce(ctx, x, math.Max)
}

func (c Comm) allReduce(ctx context.Context, x []float64, op func(a, b float64) float64) ([]float64, error) {
	data := make([]byte, 0, 8*len(x))
	for _, v := range x {
		data = binary.LittleEndian.AppendUint64(data, math.Float64bits(v))
	}
	all, err := c.AllGather(ctx, data)
	if err != nil {
		return nil, err
	}
	sum := make([]float64, len(x))
	for peer, d := range all {
		if len(d) != len(data) {
			return nil, fmt.Errorf("ring: rank %d: reduce: rank %d gave %d numbers, this rank %d",
				c.Rank(), peer, len(d)/8, len(x))
		}
		for i := range sum {
			v := math.Float64frombits(binary.LittleEndian.Uint64(d[8*i:]))
			if peer == 0 {
				sum[i] = v
			} else {
				sum[i] = op(sum[i], v)
			}
		}
	}
	return sum, nil
}
