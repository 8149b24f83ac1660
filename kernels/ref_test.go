package kernels

import (
	"testing"

	"ringattn/ring"
	"ringattn/ring/backendtest"
)

func TestReference(t *testing.T) {
	backendtest.Run(t, func(*testing.T) ring.Backend { return Reference() })
}
