package ring

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// wait returns when every transfer and kernel that touches the slot is done.
// Meanwhile it drives all transfers of the rank forward: nobody else does. why is the step
// that waits, nil at the end of a pass.
func (e *Exec) wait(ctx context.Context, slot *slotState, why *boundStep) error {
	e.pause.Restart()
	var exposed time.Time // since when no kernel has run in this wait
	var copying time.Time // since when a message has been copied, in this wait while exposed
	var began time.Time   // where the wait is recorded
	for {
		progress, err := e.poll()
		if err != nil {
			return err
		}
		if slot.event != 0 {
			done, err := e.backend.Query(slot.event)
			if err != nil {
				return err
			}
			if done {
				slot.event = 0
			}
		}
		if slot.event == 0 && len(slot.transfers) == 0 {
			if !exposed.IsZero() {
				now := time.Now()
				e.stats.Exposed += now.Sub(exposed)
				if !copying.IsZero() {
					e.stats.Staging += now.Sub(copying)
				}
			}
			e.traceWait(why, began)
			return nil
		}
		if exposed.IsZero() && !e.idle.IsZero() {
			exposed = time.Now()
		}
		if e.timeline != nil && began.IsZero() {
			began = time.Now()
		}
		if e.stager != nil && !exposed.IsZero() && e.stager.Copying() == copying.IsZero() {
			now := time.Now()
			if copying.IsZero() {
				copying = now
			} else {
				e.stats.Staging += now.Sub(copying)
				copying = time.Time{}
			}
		}
		if err := e.expired(ctx, slot, exposed); err != nil {
			return err
		}
		if progress {
			e.pause.Restart()
		}
		e.pause.Pause(e.comm.Transport, e.idle.IsZero(), e.moving > 0)
	}
}

// waitKernels returns when the backend has come to rest.
func (e *Exec) waitKernels(ctx context.Context) error {
	var rest slotState
	rest.event = e.last
	return e.wait(ctx, &rest, nil)
}

// poll tests all transfers, and whether the backend has come to rest.
func (e *Exec) poll() (progress bool, err error) {
	for i := range e.slots {
		s := &e.slots[i]
		left := s.transfers[:0]
		for _, x := range s.transfers {
			done, err := e.comm.Test(x.Request)
			if err != nil {
				return false, err
			}
			if done {
				progress = true
				if e.moving--; e.moving == 0 && e.idle.IsZero() || e.timeline != nil {
					now := time.Now()
					e.overlap(now)
					e.traceDone(x.Request, now)
				}
			} else {
				left = append(left, x)
			}
		}
		s.transfers = left
	}
	if e.idle.IsZero() {
		done, err := e.backend.Query(e.last)
		if err != nil {
			return progress, err
		}
		if done {
			e.idle = time.Now()
			e.overlap(e.idle)
		}
		if err := e.traceKernels(); err != nil {
			return progress, err
		}
	}
	return progress, nil
}

// expired says whether a wait is over without success: the rank has nothing
// left to compute since exposed, and the timeout has passed, or ctx is done.
func (e *Exec) expired(ctx context.Context, slot *slotState, exposed time.Time) error {
	err := ctx.Err()
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		if len(slot.transfers) == 0 {
			return fmt.Errorf("%w, while computing", context.Cause(ctx))
		}
		return fmt.Errorf("%w, while waiting for %s", context.Cause(ctx), rankList(missing(slot.transfers)))
	}
	if len(slot.transfers) == 0 || exposed.IsZero() {
		return err
	}
	waited := time.Since(exposed)
	if err != nil || e.comm.Timeout > 0 && waited >= e.comm.Timeout {
		return e.comm.timeout(slot.transfers, waited)
	}
	return nil
}
