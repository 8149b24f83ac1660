#!/usr/bin/env bash
# Runs a command with what cgo needs to link the CUDA kernels in its environment.
#
#   scripts/cuda-env.sh NVCC COMMAND...
#
# NVCC is the CUDA compiler that built cu/'s archive: its own flags say where the static
# runtime is. Empty, it stands for a build without CUDA, and COMMAND runs as it is. The
# build tag cuda is COMMAND's own affair.
set -euo pipefail

nvcc=$1
shift
if [ -n "$nvcc" ]; then
	source=$(mktemp --suffix=.cu)
	libraries=$("$nvcc" --dryrun "$source" 2>&1 | sed -n 's/^#\$ LIBRARIES= *//p' | tr -d '"')
	rm -f "$source"
	# -O2 -g is what Go has by itself. NVML's headers mark much of what its Go package
	# declares as deprecated.
	export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g} -Wno-deprecated-declarations"
	export CGO_LDFLAGS="$libraries${CGO_LDFLAGS:+ $CGO_LDFLAGS}"
fi
exec "$@"
