// Package cases is the one list of cases, closed forms and bounds that check,
// tests and benchmarks share.
//
//   - MaskSpec is the mask language of the command line: causal,window:512,...
//   - Problem is an attention problem of any length whose exact answer costs O(S).
//   - Probe is a small case taken from a public bug report, with the numbers
//     that everyone can check by hand.
//   - Norm and Measure are the error measure, a row at a time and mergeable over
//     ranks; Bounds is what is held against it.
//
// The package runs no attention and reads no file but a list of document lengths.
package cases
