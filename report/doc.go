// Package report turns the records of bench --output jsonl into tables of scaling
// and a page.
//
// Read takes the runs out of a file, Merge makes one Study of the runs of several, which
// Text prints and HTML lays out. All are pure functions: they open no file and read no
// clock. docs/METRICS.md defines speedup and efficiency, docs/bench.schema.json the
// records. It does not time anything, and it shows no figure of a wrong result.
package report
