package cmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"ringattn/mpi"
	"ringattn/ring"
	"ringattn/ring/late"
	"ringattn/ring/staged"
)

// delayed has every kernel of b run later, where kernelDelay says so of the rank.
func delayed(b ring.Backend, rank int) (ring.Backend, error) {
	by, of, err := kernelDelay()
	if err != nil || by == 0 || of != "" && of != strconv.Itoa(rank) {
		return b, err
	}
	return late.New(b, by), nil
}

// wiring is how a rank's messages of keys, values and gradients travel.
type wiring struct {
	Device bool   // they stand in a device's memory
	Staged bool   // and pass through host memory
	Why    string // why they do, or do not
}

// newWiring decides by --transport. A device's memory goes straight to a transport of
// which something says that it takes it, or the user does: there is no trial, since the
// wrong answer crashes the process.
func newWiring(flag string, device bool, takes mpi.DeviceMemory, ranks int) (wiring, error) {
	direct, stage := wiring{Device: true, Why: takes.Why}, wiring{Device: true, Staged: true, Why: takes.Why}
	switch {
	case !device:
		return wiring{}, nil
	case flag == "host":
		stage.Why = "--transport host"
		return stage, nil
	case ranks == 1:
		direct.Why = "one rank, no messages"
		return direct, nil
	case takes.State == mpi.DeviceYes || takes.State == mpi.DeviceForced:
		return direct, nil
	case flag != "device":
		return stage, nil
	case takes.State == mpi.DeviceUnknown:
		direct.Why = "forced by --transport device; " + takes.Why
		return direct, nil
	}
	return wiring{}, environmentError("--transport device: the transport takes no device memory: %s; give --transport host, "+
		"or set %s=1 if it does take it", takes.Why, mpi.ForceDeviceEnv)
}

func (x wiring) String() string {
	switch {
	case !x.Device:
		return "host memory"
	case x.Staged:
		return fmt.Sprintf("device memory through host memory (%s)", x.Why)
	}
	return fmt.Sprintf("device memory (%s)", x.Why)
}

// connection is what the messages of a backend's memory travel by.
type connection struct {
	ring.Comm
	ranks  []wiring
	staged *staged.Transport // nil: no rank's messages pass through host memory
}

// connect decides how messages of b's memory travel, and learns of the other ranks: they
// need not have the same kind of memory. All ranks call it together.
func (w *world) connect(ctx context.Context, b ring.Backend) (*connection, error) {
	device, isDevice := b.(ring.Device)
	mine, err := newWiring(w.options.transport, isDevice, w.takes, w.Size())
	if err = w.agreed(ctx, err); err != nil {
		return nil, err
	}
	c := &connection{Comm: w.Comm}
	if c.ranks, err = shareAll(ctx, w, mine); err != nil {
		return nil, err
	}
	if w.options.transport == "device" && !slices.ContainsFunc(c.ranks, func(x wiring) bool { return x.Device }) {
		return nil, known(environmentError("--transport device: no rank computes in device memory"))
	}
	// Where one rank's messages go in pieces, all ranks' do.
	if slices.ContainsFunc(c.ranks, func(x wiring) bool { return x.Staged }) {
		var copier ring.Copier
		if mine.Staged {
			copier = device
		}
		c.staged = staged.New(w.Transport, copier, stagedPieceBytes())
		c.Transport = c.staged
	}
	return c, nil
}

// stagedPieceBytes is staged.PieceBytes unless tests ask for smaller pieces, as they do
// of MPI.
func stagedPieceBytes() int64 {
	if n, set, err := pieceBytes(); err == nil && set {
		return min(n, staged.PieceBytes)
	}
	return staged.PieceBytes
}

// close gives host memory back to the backend, which must still be open.
func (c *connection) close() {
	if c.staged != nil {
		c.staged.Close()
	}
}

// describe says what carries the messages, and from where: for all ranks, or for those
// that are alike.
func (c *connection) describe(w *world) string {
	var kinds []string
	ranks := map[string][]int{}
	for r, x := range c.ranks {
		if ranks[x.String()] == nil {
			kinds = append(kinds, x.String())
		}
		ranks[x.String()] = append(ranks[x.String()], r)
	}
	switch {
	case len(kinds) > 1:
		for i, kind := range kinds {
			kinds[i] = fmt.Sprintf("ranks %s: %s", formatList(ranks[kind]), kind)
		}
	case !c.ranks[0].Device:
		return w.Describe()
	}
	return w.Describe() + "; " + strings.Join(kinds, "; ")
}

// kind is the one word of bench's records.
func (c *connection) kind(w *world) string {
	device, through := false, false
	for _, x := range c.ranks {
		device, through = device || x.Device, through || x.Staged
	}
	switch {
	case w.shared:
		return "inproc"
	case device && !through:
		return "device"
	}
	return "host"
}
