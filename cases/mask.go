package cases

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"ringattn/segments"
)

// MaskSpec is a mask as the command line says it, without a length: the parts
// apply together.
//
//	causal                      j <= i; implied unless full is there
//	full                        not causal
//	window:W                    i - j < W, W counts the query itself
//	docs:FILE                   documents of the lengths in FILE, one a line,
//	                            repeated or cut to fill the row
//	docs:lognormal:MEDIAN:SIGMA documents of drawn lengths
//	images:COUNTxTOKENS         COUNT image blocks of TOKENS tokens, spread
//	                            evenly over the row, that see themselves in
//	                            both directions
//
// A FILE may have colons in its name, but no comma; one whose name begins with
// "lognormal:" is written ./lognormal:...
type MaskSpec struct {
	Full          bool
	Window        int     // 0 is none
	DocsFile      string  // "" is none
	Median, Sigma float64 // of drawn documents, in tokens; Median 0 is none
	ImageCount    int     // 0 is none
	ImageTokens   int
}

const maskParts = "causal, full, window:W, docs:FILE, docs:lognormal:MEDIAN:SIGMA, images:COUNTxTOKENS"

// The seed of drawn documents. It is fixed, so that a mask is the same on every
// rank and in every run.
const (
	docsSeed   = 0x72696e67 // "ring"
	docsStream = 0x6174746e // "attn"
)

// ParseMask reads PART[,PART..]. A part may come once; causal and full exclude
// each other.
func ParseMask(spec string) (MaskSpec, error) {
	var m MaskSpec
	seen := map[string]bool{}
	for part := range strings.SplitSeq(spec, ",") {
		name, value, hasValue := strings.Cut(part, ":")
		if seen[name] {
			return MaskSpec{}, fmt.Errorf("cases: mask %q: %q is there twice", spec, name)
		}
		seen[name] = true
		if err := m.parsePart(name, value, hasValue); err != nil {
			return MaskSpec{}, fmt.Errorf("cases: mask %q: part %q: %w", spec, part, err)
		}
	}
	if seen["causal"] && seen["full"] {
		return MaskSpec{}, fmt.Errorf("cases: mask %q: causal and full exclude each other", spec)
	}
	return m, nil
}

func (m *MaskSpec) parsePart(name, value string, hasValue bool) (err error) {
	switch name {
	case "causal", "full":
		if hasValue {
			return fmt.Errorf("%s takes no value", name)
		}
		m.Full = m.Full || name == "full"
	case "window":
		if m.Window, err = positive(value); err != nil {
			return fmt.Errorf("a window is a number of tokens >= 1, the query itself included: %w", err)
		}
	case "docs":
		return m.parseDocs(value)
	case "images":
		count, tokens, _ := strings.Cut(value, "x")
		if m.ImageCount, err = positive(count); err == nil {
			m.ImageTokens, err = positive(tokens)
		}
		if err != nil {
			return fmt.Errorf("want images:COUNTxTOKENS: %w", err)
		}
	default:
		return fmt.Errorf("unknown; there are %s", maskParts)
	}
	return nil
}

func (m *MaskSpec) parseDocs(value string) error {
	if value == "" {
		return fmt.Errorf("want docs:FILE or docs:lognormal:MEDIAN:SIGMA")
	}
	kind, rest, _ := strings.Cut(value, ":")
	if kind != "lognormal" {
		m.DocsFile = value
		return nil
	}
	median, sigma, _ := strings.Cut(rest, ":")
	var errMedian, errSigma error
	m.Median, errMedian = strconv.ParseFloat(median, 64)
	m.Sigma, errSigma = strconv.ParseFloat(sigma, 64)
	if errMedian != nil || errSigma != nil || !(m.Median > 0 && m.Sigma >= 0) || math.IsInf(m.Median, 0) || math.IsInf(m.Sigma, 0) {
		return fmt.Errorf("want docs:lognormal:MEDIAN:SIGMA with numbers MEDIAN > 0 and SIGMA >= 0")
	}
	return nil
}

// positive reads a number >= 1 of nothing but digits.
func positive(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("got %q, want a whole number >= 1", s)
	}
	return int(n), nil
}

// String is the one spelling of m that ParseMask reads back: causal or full
// first, then window, docs, images.
func (m MaskSpec) String() string {
	parts := []string{"causal"}
	if m.Full {
		parts[0] = "full"
	}
	if m.Window > 0 {
		parts = append(parts, fmt.Sprintf("window:%d", m.Window))
	}
	switch {
	case m.DocsFile != "":
		parts = append(parts, "docs:"+m.DocsFile)
	case m.Median > 0:
		parts = append(parts, fmt.Sprintf("docs:lognormal:%v:%v", m.Median, m.Sigma))
	}
	if m.ImageCount > 0 {
		parts = append(parts, fmt.Sprintf("images:%dx%d", m.ImageCount, m.ImageTokens))
	}
	return strings.Join(parts, ",")
}

// Build makes the mask of a batch of rows of so many tokens. Every row has the
// same documents and images. It reads the file of lengths, if there is one.
func (m MaskSpec) Build(tokens, rows int) (segments.Mask, error) {
	if tokens < 1 || rows < 1 {
		return segments.Mask{}, fmt.Errorf("cases: mask %s over %d rows of %d tokens, want each >= 1", m, rows, tokens)
	}
	row := segments.SingleDocument(tokens)
	switch {
	case m.DocsFile != "":
		lengths, err := readLengths(m.DocsFile)
		if err != nil {
			return segments.Mask{}, fmt.Errorf("cases: mask %s: %w", m, err)
		}
		row.Docs = fill(tokens, func(i int) int { return lengths[i%len(lengths)] })
	case m.Median > 0:
		row.Docs = fill(tokens, m.lognormal(tokens))
	}
	if m.ImageCount > 0 {
		var err error
		if row.Images, err = spread(tokens, m.ImageCount, m.ImageTokens); err != nil {
			return segments.Mask{}, fmt.Errorf("cases: mask %s: %w", m, err)
		}
	}
	mask := segments.Mask{Causal: !m.Full, Window: m.Window, Vision: m.ImageCount > 0, Rows: make([]segments.Row, rows)}
	for b := range mask.Rows {
		mask.Rows[b] = row // shared: a Row is never written to
	}
	return mask, nil
}

// lognormal draws max(1, round(MEDIAN exp(SIGMA n))), n ~ N(0,1), limit at most.
// The generator is PCG with a fixed seed; the last bit of math.Exp, which may
// differ between machines, is rounded away.
func (m MaskSpec) lognormal(limit int) func(int) int {
	draw := rand.New(rand.NewPCG(docsSeed, docsStream))
	return func(int) int {
		length := math.Round(m.Median * math.Exp(m.Sigma*draw.NormFloat64()))
		return int(min(max(length, 1), float64(limit)))
	}
}

// fill lays documents of the lengths length(0), length(1) ... end to end and cuts
// the last one where the row ends.
func fill(tokens int, length func(i int) int) []segments.DocRun {
	var docs []segments.DocRun
	for at := 0; at < tokens; {
		end := at + min(length(len(docs)), tokens-at)
		docs = append(docs, segments.DocRun{Span: segments.Span{Start: at, End: end}, Doc: len(docs)})
		at = end
	}
	return docs
}

// readLengths reads document lengths, one a line; blank lines are left out.
func readLengths(file string) ([]int, error) {
	const limit = 64 << 20
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("reading document lengths: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s: document lengths are a regular file of at most %d bytes", file, limit)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading document lengths: %w", err)
	}
	var lengths []int
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		length, err := positive(text)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: document length: %w", file, n, err)
		}
		lengths = append(lengths, length)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: reading document lengths: %w", file, err)
	}
	if len(lengths) == 0 {
		return nil, fmt.Errorf("%s: no document lengths", file)
	}
	return lengths, nil
}

// spread places count blocks of size tokens with at least one other token between
// any two. The tokens left over after that go evenly before, between and behind
// the blocks: of x of them, floor(x (c+1)/(count+1)) stand before block c.
func spread(tokens, count, size int) ([]segments.Span, error) {
	// count (size+1) - 1 <= tokens, without overflow.
	if size > tokens || count > (tokens+1)/(size+1) {
		return nil, fmt.Errorf("%d image blocks of %d tokens do not fit into a row of %d tokens without touching", count, size, tokens)
	}
	left := tokens - (count*(size+1) - 1)
	blocks := make([]segments.Span, count)
	for c := range blocks {
		start := c*(size+1) + left*(c+1)/(count+1)
		blocks[c] = segments.Span{Start: start, End: start + size}
	}
	return blocks, nil
}
