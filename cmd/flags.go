package cmd

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ringattn/ring"
	"ringattn/shard"
)

// options are the flags that several commands share.
type options struct {
	layout, shards, schedule string
	backend, transport       string
	threads                  int
	ranks, expectRanks       int
	perNode                  int
	ulysses                  int // 0: 1
	wire                     string
	stageTokens, grain       int // 0: as is usual
	machine                  string
	timeout                  time.Duration
	logLevel                 string
	trace                    string
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

func (v overrideValue) String() string     { return v.into[v.key] }
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
	for _, c := range []struct {
		flag, value string
		known       []string
	}{
		{"--layout", o.layout, append([]string{"auto"}, layouts...)},
		{"--schedule", o.schedule, append([]string{"auto"}, ring.Schedules...)},
		{"--backend", o.backend, []string{"auto", "cpu", "cuda", "ref"}},
		{"--transport", o.transport, []string{"auto", "device", "host"}},
		{"--wire-gradients", o.wire, wires},
	} {
		switch {
		case f.Lookup(c.flag[2:]) == nil || slices.Contains(c.known, c.value):
		default:
			return usageError("%s is %q; there is: %s", c.flag, c.value, strings.Join(c.known, ", "))
		}
	}
	for _, name := range []string{"ranks", "threads", "expect-ranks", "ranks-per-node", "ulysses", "stage-tokens", "grain"} {
		if n, err := f.GetInt(name); err == nil && f.Changed(name) && n < 1 {
			return usageError("--%s is %d, want at least 1", name, n)
		}
	}
	if o.logLevel != "" && !slices.Contains(logLevels, o.logLevel) {
		return usageError("--log-level is %q; there is: %s", o.logLevel, strings.Join(logLevels, ", "))
	}
	if _, err := o.readMachine(usualGPU); err != nil {
		return err
	}
	switch {
	case o.timeout < 0:
		return usageError("--timeout is %v, want 0 or more", o.timeout)
	case o.shards != "" && o.layout != "auto":
		return usageError("--shards stands in place of --layout; give one of the two")
	case o.stageTokens > 0 && o.schedule != "direct" && o.schedule != "auto":
		return usageError("--stage-tokens is about --schedule direct, not %s", o.schedule)
	case o.grain > 0 && (o.shards != "" || o.layout != "balanced" && o.layout != "auto"):
		return usageError("--grain is about --layout balanced")
	}
	return nil
}

// noneEmpty refuses values that are nothing, the names of files among them: what a script
// has put there was not set.
func noneEmpty(c *cobra.Command, args []string) error {
	var empty []string
	c.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if slices.Contains(values, "") {
			empty = append(empty, "--"+f.Name)
		}
	})
	switch {
	case len(empty) > 0:
		return usageError("an empty value of %s: leave the flag out, or give it a value", strings.Join(empty, ", "))
	case slices.Contains(args, "") && !strings.HasPrefix(c.Name(), cobra.ShellCompRequestCmd): // whose last word may be
		return usageError("%s: an argument is empty", c.CommandPath())
	}
	return nil
}

// noArgs refuses stray arguments as a usage error.
func noArgs(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !c.HasParent():
		return usageError("there is no command %q; ringattn --help lists them", args[0])
	}
	hint := ""
	if name := apart(c.Flags(), args[0]); name != "" {
		hint = fmt.Sprintf("; a value of --%s is given with =, as in --%s=%s", name, name, args[0])
	}
	return usageError("%s takes no argument %q%s", c.CommandPath(), args[0], hint)
}

// apart names the flag, of those that stand without a value, that an argument may have been
// meant for; "" where there is none.
func apart(f *pflag.FlagSet, arg string) (name string) {
	truth := arg == "true" || arg == "false"
	f.Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal && (f.NoOptDefVal == "true") == truth {
			name = f.Name
		}
	})
	return name
}

func plural(n int, word string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, word)
	}
	return fmt.Sprintf("%d %ss", n, word)
}
