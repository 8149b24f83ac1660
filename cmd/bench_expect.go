package cmd

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"ringattn/report"
)

// expectation is what --expect asks of the results of a pass.
type expectation struct {
	text, pass, figure string
	least              bool
	bound              float64
}

func parseExpectation(text string) (expectation, error) {
	e := expectation{text: text}
	name, bound, ok := strings.Cut(text, ">=")
	e.least = ok
	if !ok {
		name, bound, ok = strings.Cut(text, "<=")
	}
	var err error
	if ok {
		e.bound, err = strconv.ParseFloat(bound, 64)
		e.pass, e.figure, ok = strings.Cut(name, ".")
	}
	full := report.Result{TimeS: new(report.Quantiles), PeakFraction: new(float64), Overlap: new(float64), Breakdown: new(report.Breakdown), EnergyJPerToken: new(float64), PredictedS: new(float64)}
	for _, s := range full.Breakdown.List() {
		s.Imbalance = new(float64)
	}
	if _, known := e.value(&resultRecord{Result: full}); !ok || err != nil || math.IsNaN(e.bound) || !known ||
		e.pass != "forward" && e.pass != "backward" {
		return e, usageError("--expect is %q, want PASS.FIGURE>=NUMBER or PASS.FIGURE<=NUMBER, "+
			"PASS forward or backward, FIGURE a number of a result: tflops_per_rank, time_s.median, exposed_s, overlap, breakdown_s.kernel.imbalance", text)
	}
	return e, nil
}

// value is the figure in a result.
func (e *expectation) value(r *resultRecord) (float64, bool) {
	text, err := json.Marshal(r)
	if err != nil {
		return 0, false
	}
	var at any
	if err := json.Unmarshal(text, &at); err != nil {
		return 0, false
	}
	for _, name := range strings.Split(e.figure, ".") {
		fields, ok := at.(map[string]any)
		if !ok {
			return 0, false
		}
		at = fields[name]
	}
	x, ok := at.(float64)
	return x, ok
}

// misses says how a result falls short; a figure that it does not have does.
func (e *expectation) misses(r *resultRecord) string {
	if r.Pass != e.pass {
		return ""
	}
	x, ok := e.value(r)
	switch {
	case !ok || r.TimeS == nil:
		return fmt.Sprintf("--expect %s: there is no such figure", e.text)
	case e.least && x < e.bound || !e.least && x > e.bound:
		return fmt.Sprintf("--expect %s: it is %.6g", e.text, x)
	}
	return ""
}
