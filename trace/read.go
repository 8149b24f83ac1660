package trace

import (
	"encoding/json"
	"fmt"
	"io"
)

// Read reads a file of Write. Name is the file's, for messages.
func Read(name string, in io.Reader) (*Trace, error) {
	var file struct {
		OtherData   Info `json:"otherData"`
		TraceEvents []struct {
			event
			Args json.RawMessage `json:"args"`
		} `json:"traceEvents"`
	}
	d := json.NewDecoder(in)
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("trace: %s is no trace, or not a whole one: %w", name, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("trace: %s has something behind the trace", name)
	}
	t := &Trace{Info: file.OtherData}
	if t.Info.Format != FormatName {
		return nil, fmt.Errorf("trace: %s is of format %q, want %q, as --trace writes it", name, t.Info.Format, FormatName)
	}
	for i, e := range file.TraceEvents {
		if e.Phase != "X" {
			if e.TS != nil && (e.Phase == "s" || e.Phase == "f") {
				t.arrows = append(t.arrows, arrow{e.ID, e.PID, e.TID, int64(*e.TS), e.Phase == "f"})
			}
			continue
		}
		s := Span{Rank: e.PID, Track: e.TID, Kind: e.Cat, Name: e.Name}
		if e.TS == nil || e.Dur == nil || *e.Dur < 0 || e.PID < 0 || e.PID >= len(t.Info.Ranks) {
			return nil, fmt.Errorf("trace: %s: event %d (%s) has no time, or a rank that there is not", name, i, e.Name)
		}
		s.Begin, s.End = int64(*e.TS), int64(*e.TS+*e.Dur)
		if len(e.Args) > 0 {
			if err := json.Unmarshal(e.Args, &s.Args); err != nil {
				return nil, fmt.Errorf("trace: %s: event %d (%s): %w", name, i, e.Name, err)
			}
		}
		t.Spans = append(t.Spans, s)
	}
	return t, nil
}
