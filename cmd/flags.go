package cmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ringattn/ring"
	"ringattn/segments"
	"ringattn/shard"
)

// options are the flags that several commands share.
type options struct {
	layout, shards, schedule string
	backend, transport       string
	threads                  int
	ranks, expectRanks       int
	timeout                  time.Duration
	logLevel                 string
	// override has what --causal, --window and so on say, by metadata key.
	override map[string]string
}

// maskFlags maps the flags that override a file's metadata to its keys.
var maskFlags = []struct{ flag, key, usage string }{
	{"causal", shard.KeyCausal, "true or false: query i sees no key after it"},
	{"window", shard.KeyWindow, "W > 0: query i sees keys j with i-j < W, W=1 itself alone; without --causal it bounds the look-back only; 0: none"},
	{"scale", shard.KeyScale, "factor of q.k (default 1/sqrt(head_dim))"},
	{"vision-bidirectional", shard.KeyVision, "true or false: tokens of one image block see each other, whatever causal and window say"},
	{"tensor-layout", shard.KeyLayout, "BHSD or BSHD"},
}

// addLayout adds what decides who holds and sends what.
func (o *options) addLayout(f *pflag.FlagSet, ranksUsage string) {
	f.StringVar(&o.layout, "layout", "auto", "who holds which tokens: contiguous, zigzag, auto")
	f.StringVar(&o.shards, "shards", "", "tokens of each rank by hand, e.g. 3,3,4, in place of --layout")
	f.StringVar(&o.schedule, "schedule", "auto", "how keys and values travel: ring, auto")
	f.IntVar(&o.ranks, "ranks", 0, ranksUsage)
}

// addMask adds the flags that override a file's metadata; where a command can do
// without a file, condition says when they apply.
func (o *options) addMask(f *pflag.FlagSet, condition string) {
	o.override = map[string]string{}
	for _, m := range maskFlags {
		f.Var(overrideValue{o.override, m.key}, m.flag, condition+m.usage)
		if m.flag == "causal" || m.flag == "vision-bidirectional" {
			f.Lookup(m.flag).NoOptDefVal = "true"
		}
	}
}

// overrideValue is a flag that is set only when given.
type overrideValue struct {
	into map[string]string
	key  string
}

func (v overrideValue) String() string     { return "" }
func (v overrideValue) Type() string       { return "string" }
func (v overrideValue) Set(s string) error { v.into[v.key] = s; return nil }

// addRuntime adds what decides how the ranks run.
func (o *options) addRuntime(f *pflag.FlagSet) {
	f.StringVar(&o.backend, "backend", "auto", "what computes: cpu, cuda, ref (float64 on one thread, slow), auto")
	f.StringVar(&o.transport, "transport", "auto", "device: device pointers to MPI; host: through pinned host memory; auto")
	f.IntVar(&o.threads, "threads", 0, "threads of a rank (default OMP_NUM_THREADS, SLURM_CPUS_PER_TASK, else the allowed CPUs divided by the ranks that share them)")
	f.IntVar(&o.expectRanks, "expect-ranks", 0, "refuse to run with any other number of ranks")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "give up after waiting so long for a peer with nothing to compute; 0: never")
	f.StringVar(&o.logLevel, "log-level", "info", strings.Join(logLevels, ", "))
}

var logLevels = []string{"trace", "debug", "info", "warn", "error"}

// validate checks what can be checked before anything is started.
func (o *options) validate(f *pflag.FlagSet) error {
	notYet := map[string][]string{
		"--layout":    {"balanced"},
		"--schedule":  {"direct", "two-level"},
		"--backend":   nil,
		"--transport": nil,
	}
	for _, c := range []struct {
		flag, value string
		known       []string
	}{
		{"--layout", o.layout, []string{"contiguous", "zigzag", "auto"}},
		{"--schedule", o.schedule, append([]string{"auto"}, ring.Schedules...)},
		{"--backend", o.backend, []string{"auto", "cpu", "cuda", "ref"}},
		{"--transport", o.transport, []string{"auto", "device", "host"}},
	} {
		switch {
		case f.Lookup(c.flag[2:]) == nil || slices.Contains(c.known, c.value):
		case slices.Contains(notYet[c.flag], c.value):
			return usageError("%s %s is not there yet; there is: %s", c.flag, c.value, strings.Join(c.known, ", "))
		default:
			return usageError("%s is %q; there is: %s", c.flag, c.value, strings.Join(c.known, ", "))
		}
	}
	for _, name := range []string{"ranks", "threads", "expect-ranks", "ranks-per-node"} {
		if n, err := f.GetInt(name); err == nil && f.Changed(name) && n < 1 {
			return usageError("--%s is %d, want at least 1", name, n)
		}
	}
	if o.logLevel != "" && !slices.Contains(logLevels, o.logLevel) {
		return usageError("--log-level is %q; there is: %s", o.logLevel, strings.Join(logLevels, ", "))
	}
	switch {
	case o.timeout < 0:
		return usageError("--timeout is %v, want 0 or more", o.timeout)
	case o.shards != "" && o.layout != "auto":
		return usageError("--shards stands in place of --layout; give one of the two")
	}
	return nil
}

// cut makes the layout that the flags ask for.
func (o *options) cut(tokens, ranks int, m segments.Mask) (segments.Layout, error) {
	if o.shards != "" {
		var lengths []int
		for part := range strings.SplitSeq(o.shards, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(part))
			if err != nil {
				return segments.Layout{}, usageError("--shards is %q, want token counts like 3,3,4", o.shards)
			}
			lengths = append(lengths, n)
		}
		if len(lengths) != ranks {
			return segments.Layout{}, usageError("--shards gives %d lengths, there are %d ranks", len(lengths), ranks)
		}
		l, err := segments.Shards(tokens, lengths)
		if err != nil {
			return l, usageError("--shards: %w", err)
		}
		return l, nil
	}
	// A causal mask without a window gives the last tokens the most work, which
	// zigzag evens out; otherwise neighbours are better kept together.
	if o.layout == "zigzag" || o.layout == "auto" && m.Causal && m.Window == 0 {
		return segments.Zigzag(tokens, ranks), nil
	}
	return segments.Contiguous(tokens, ranks), nil
}

// newJob cuts a batch for so many ranks and solves its schedule.
func (o *options) newJob(tokens, ranks int, m segments.Mask) (*ring.Job, error) {
	layout, err := o.cut(tokens, ranks, m)
	if err != nil {
		return nil, err
	}
	batch, err := segments.NewBatch(layout, m)
	if err != nil {
		return nil, withCode(exitUsage, err)
	}
	schedule := o.schedule
	if schedule == "auto" {
		schedule = "ring"
	}
	job, err := ring.NewJob(batch, schedule)
	return job, withCode(exitUsage, err)
}

// noArgs refuses stray arguments as a usage error.
func noArgs(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !c.HasParent():
		return usageError("there is no command %q; ringattn --help lists them", args[0])
	case args[0] == "true" || args[0] == "false":
		return usageError("%s takes no argument %q; a truth value is given with =, as in --causal=%s", c.CommandPath(), args[0], args[0])
	}
	return usageError("%s takes no argument %q", c.CommandPath(), args[0])
}

func plural(n int, word string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, word)
	}
	return fmt.Sprintf("%d %ss", n, word)
}
