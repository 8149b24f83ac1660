package cmd

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"ringattn/cases"
	"ringattn/ring"
	"ringattn/shard"
)

// shapeFlags describe a problem without a file.
type shapeFlags struct {
	seq     []int
	batch   int
	heads   string
	headDim int
	dtype   string
	masks   []string
}

// shapeFlagNames are the flags that belong together, --seq being the one that
// says that there is a shape.
var shapeFlagNames = []string{"seq", "batch", "heads", "head-dim", "dtype", "mask"}

func (s *shapeFlags) add(f *pflag.FlagSet) {
	f.Var((*lengths)(&s.seq), "seq", "tokens of a row, in place of a file; 32k is 32768")
	f.IntVar(&s.batch, "batch", 1, "rows")
	f.StringVar(&s.heads, "heads", "4/2", "query heads/KV heads")
	f.IntVar(&s.headDim, "head-dim", 64, "head dimension")
	f.StringVar(&s.dtype, "dtype", "f32", "f32, bf16 or f16")
	f.StringArrayVar(&s.masks, "mask", nil, "PART[,PART..] of causal, full, window:W (W counts the query itself), "+
		"docs:FILE (document lengths, one a line, repeated or cut to fill the row), docs:lognormal:MEDIAN:SIGMA, "+
		"images:COUNTxTOKENS; causal unless full is there (default causal)")
}

// lengths is a flag of numbers of tokens, with commas between them or given several times;
// k stands for 1024 and m for 1024 k.
type lengths []int

const lengthsType = "lengths"

func (l *lengths) Type() string { return lengthsType }

func (l *lengths) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int(*l)), " ", ","), "[]")
}

func (l *lengths) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		digits, unit := strings.TrimSpace(part), 1
		switch {
		case strings.HasSuffix(digits, "k"):
			digits, unit = strings.TrimSuffix(digits, "k"), 1<<10
		case strings.HasSuffix(digits, "m"):
			digits, unit = strings.TrimSuffix(digits, "m"), 1<<20
		}
		n, err := strconv.Atoi(digits)
		if err != nil || n > math.MaxInt/unit || n < math.MinInt/unit {
			return fmt.Errorf("%q is no number of tokens, like 4096 or 32k", part)
		}
		*l = append(*l, n*unit)
	}
	return nil
}

// absent refuses shape flags beside another description of the problem.
func (s *shapeFlags) absent(f *pflag.FlagSet, beside string) error {
	for _, name := range shapeFlagNames {
		if f.Changed(name) {
			return usageError("--%s describes a problem without a file and does not go with %s", name, beside)
		}
	}
	return nil
}

// files are those of document lengths.
func (s *shapeFlags) files() (paths []string) {
	for _, text := range s.masks {
		if spec, err := cases.ParseMask(text); err == nil && spec.DocsFile != "" {
			paths = append(paths, spec.DocsFile)
		}
	}
	return paths
}

// noOverrides refuses the flags that override what a file says, where there is
// no file.
func noOverrides(f *pflag.FlagSet, but string) error {
	for _, m := range maskFlags {
		if f.Changed(m.flag) && m.flag != but {
			return usageError("--%s overrides what a file says; without a file --seq and --mask describe the problem", m.flag)
		}
	}
	return nil
}

// list gives the shapes asked for: each length with each mask.
func (s *shapeFlags) list(f *pflag.FlagSet, override map[string]string) ([]cases.Shape, error) {
	if err := noOverrides(f, "scale"); err != nil {
		return nil, err
	}
	scale := 0.0
	if text, ok := override[shard.KeyScale]; ok {
		var err error
		if scale, err = shard.ParseScale(text); err != nil {
			return nil, err
		}
	}
	if len(s.seq) == 0 {
		return nil, usageError("a problem without a file needs --seq N")
	}
	masks := s.masks
	if len(masks) == 0 {
		masks = []string{"causal"}
	}
	query, kv, ok := strings.Cut(s.heads, "/")
	if !ok {
		kv = query
	}
	h, err1 := strconv.Atoi(query)
	g, err2 := strconv.Atoi(kv)
	switch {
	case err1 != nil || err2 != nil || h < 1 || g < 1 || h%g != 0:
		return nil, usageError("--heads is %q, want query heads/KV heads, the first a multiple of the second", s.heads)
	case s.batch < 1:
		return nil, usageError("--batch is %d, want at least 1", s.batch)
	case s.headDim < 1:
		return nil, usageError("--head-dim is %d, want at least 1", s.headDim)
	}
	if _, ok := dtypeNames[s.dtype]; !ok {
		return nil, usageError("--dtype is %q, want f32, bf16 or f16", s.dtype)
	}
	var shapes []cases.Shape
	for _, text := range masks {
		spec, err := cases.ParseMask(text)
		if err != nil {
			return nil, withCode(exitUsage, fmt.Errorf("--mask: %w", err))
		}
		for _, n := range s.seq {
			if n < 1 {
				return nil, usageError("--seq is %d, want at least 1", n)
			}
			if err := shard.Limits(s.batch, n, h, s.headDim); err != nil {
				return nil, err
			}
			mask, err := spec.Build(n, s.batch)
			if err != nil {
				return nil, withCode(exitUsage, fmt.Errorf("--mask: %w", err))
			}
			shapes = append(shapes, cases.Shape{
				Name: spec.String(), Batch: s.batch, Tokens: n, Heads: h, KVHeads: g, HeadDim: s.headDim, DType: s.dtype, Scale: scale, Mask: mask,
			})
		}
	}
	return shapes, nil
}

var dtypeNames = map[string]ring.DType{"f32": ring.F32, "bf16": ring.BF16, "f16": ring.F16}

// problem is the one shape asked for, as a problem whose tensors nobody reads.
func (s *shapeFlags) problem(f *pflag.FlagSet, override map[string]string) (*problem, error) {
	shapes, err := s.list(f, override)
	if err != nil {
		return nil, err
	}
	if len(shapes) != 1 {
		return nil, usageError("one --seq and one --mask are planned at a time")
	}
	return shapeProblem(&shapes[0]), nil
}

func shapeProblem(c *cases.Shape) *problem {
	scale := c.Scale
	if scale == 0 {
		scale = cases.DefaultScale(c.HeadDim)
	}
	return &problem{
		batch: c.Batch, tokens: c.Tokens, mask: c.Mask, backward: true,
		shape: ring.Shape{DType: dtypeNames[c.DType], Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Scale: float32(scale)},
	}
}
