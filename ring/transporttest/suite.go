// Package transporttest is the conformance suite of ring.Transport. Every
// implementation runs it: inproc with all ranks of a world in one process, mpi
// with one rank a process.
package transporttest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"ringattn/ring"
)

// World is the part of a job that lives in this process.
type World struct {
	// Endpoints are the ranks of this process. A single one is used from the
	// goroutine of the test, several each from its own.
	Endpoints []ring.Transport
	// Do, if set, runs what a single endpoint does, for a transport that wants
	// a certain thread.
	Do func(func())
	// Garbage is the number of exchanges made under a hostile garbage
	// collector; 0 is a few.
	Garbage int
}

// patience is how long a rank of the suite waits for a peer that is slow, not
// lost: enough for ranks that share two CPUs under the race detector.
const patience = 60 * time.Second

type test struct {
	name string
	body func(w World, c ring.Comm) error
}

var suite = []test{
	{"identity", identity},
	{"memory", memory},
	{"arguments", arguments},
	{"neighbours", neighbours},
	{"both sides", bothSides},
	{"sends first", sendsFirst},
	{"tags out of order", tagsOutOfOrder},
	{"one tag in order", oneTagInOrder},
	{"late ranks", lateRanks},
	{"garbage", garbage},
	{"missing message", missingMessage},
	{"cancelled", cancelled},
	{"broadcast", broadcast},
	{"gather", gather},
	{"barrier", barrier},
	{"subset", subset},
	{"reduce", reduce},
	{"wrong root", wrongRoot},
	{"size mismatch", sizeMismatch},
}

// Run checks a transport. newWorld is called once a case, and may return the
// same World each time; all processes of a job run the same cases in the same
// order. The last case makes receives fail.
func Run(t *testing.T, newWorld func(t *testing.T) World) {
	t.Run("no allocation", func(t *testing.T) { noAllocation(t, newWorld(t)) })
	for _, test := range suite {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.each(t, func(c ring.Comm) error { return test.body(w, c) })
		})
	}
}

// each runs body for every endpoint of this process.
func (w World) each(t *testing.T, body func(c ring.Comm) error) {
	t.Helper()
	errs := make([]error, len(w.Endpoints))
	run := func(i int) { errs[i] = body(ring.Comm{Transport: w.Endpoints[i], Timeout: patience}) }
	if len(errs) == 1 {
		if w.Do != nil {
			w.Do(func() { run(0) })
		} else {
			run(0)
		}
	} else {
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { run(i) })
		}
		all.Wait()
	}
	for i, err := range errs {
		if err != nil {
			t.Errorf("rank %d of %d: %v", w.Endpoints[i].Rank(), w.Endpoints[i].Size(), err)
		}
	}
}

// patternLen is a prime, so that a piece or block put in the wrong place shows.
const patternLen = 65521

var pattern = func() []byte {
	p := make([]byte, 2*patternLen)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range patternLen {
		p[i] = byte(r.Uint32())
	}
	copy(p[patternLen:], p)
	return p
}()

// content calls f with each part of what a message named by key holds.
func content(key, length int, f func(at int, want []byte)) {
	start := key * 7919 % patternLen
	for at := 0; at < length; at += patternLen {
		f(at, pattern[start:start+min(patternLen, length-at)])
	}
}

// party is one rank's side of an exchange: messages that it has started.
type party struct {
	c         ring.Comm
	transfers []ring.Transfer
	checks    []func() error
	memory    []unsafe.Pointer
}

func (p *party) alloc(length int) ([]byte, error) {
	ptr, err := p.c.Alloc(int64(length))
	if err != nil {
		return nil, err
	}
	p.memory = append(p.memory, ptr)
	return unsafe.Slice((*byte)(ptr), length), nil
}

// receive starts a receive of the message named by key.
func (p *party) receive(peer, tag, length, key int) error {
	buf, err := p.alloc(length)
	if err != nil {
		return err
	}
	r, err := p.c.Irecv(unsafe.Pointer(unsafe.SliceData(buf)), int64(length), peer, tag)
	if err != nil {
		return err
	}
	p.add(r, "receive", peer, tag, length)
	p.checks = append(p.checks, func() (err error) {
		content(key, length, func(at int, want []byte) {
			if err == nil && !bytes.Equal(buf[at:at+len(want)], want) {
				err = fmt.Errorf("message of %d bytes from rank %d, tag %d, has wrong content near byte %d",
					length, peer, tag, at)
			}
		})
		return err
	})
	return nil
}

// send starts a send of the message named by key.
func (p *party) send(peer, tag, length, key int) error {
	buf, err := p.alloc(length)
	if err != nil {
		return err
	}
	content(key, length, func(at int, want []byte) { copy(buf[at:], want) })
	r, err := p.c.Isend(unsafe.Pointer(unsafe.SliceData(buf)), int64(length), peer, tag)
	if err != nil {
		return err
	}
	p.add(r, "send", peer, tag, length)
	return nil
}

func (p *party) add(r ring.Request, op string, peer, tag, length int) {
	p.transfers = append(p.transfers, ring.Transfer{
		Request: r, Op: op, Peer: peer, Tag: tag, Bytes: int64(length),
	})
}

// finish waits for all messages, checks and forgets them.
func (p *party) finish() error {
	if err := p.c.WaitAll(context.Background(), p.transfers); err != nil {
		return err
	}
	for _, check := range p.checks {
		if err := check(); err != nil {
			return err
		}
	}
	for _, ptr := range p.memory {
		p.c.Free(ptr)
	}
	*p = party{c: p.c}
	return nil
}

func right(c ring.Comm) int { return (c.Rank() + 1) % c.Size() }
func left(c ring.Comm) int  { return (c.Rank() - 1 + c.Size()) % c.Size() }

// steps runs one after the other and stops at the first error.
func steps(fs ...func() error) error {
	for _, f := range fs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}
