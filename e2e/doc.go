// Package e2e holds the tests of the built binary that are too large for go test
// ./...: they run where RINGATTN_BIN names the binary, as make e2e does.
package e2e
