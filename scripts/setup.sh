#!/usr/bin/env bash
# Looks for what the build needs and says what it found. What is missing it
# installs where it can, as root with apt-get, and else says how to get.
#
# Exits 1 where nothing can be built: no Go that is new enough. A missing C
# compiler or MPI leaves a smaller program, and is no error.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }
say() { printf 'setup: %s\n' "$*"; }

# install WHAT PACKAGE...: with apt-get as root, else says what to do.
install() {
	what=$1
	shift
	if [ "$(id -u)" != 0 ] || ! have apt-get; then
		return 1
	fi
	say "$what: not there, installing $*"
	log=$(mktemp)
	if apt-get update -qq >"$log" 2>&1 &&
		DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1; then
		rm -f "$log"
		return 0
	fi
	say "apt-get failed:"
	tail -n 5 "$log" >&2
	rm -f "$log"
	return 1
}

# Inside the module an older Go that is new enough to know how (1.21) fetches
# the one that go.mod asks for by itself.
want=$(sed -n 's/^go //p' go.mod)
if ! have go || ! version=$(go env GOVERSION 2>&1); then
	say "Go: not there, or too old${version:+ ($version)}. Go $want or newer is needed:"
	say "  unpack a release from go.dev/dl into /usr/local and put /usr/local/go/bin on PATH,"
	say "  or on a cluster: module load go"
	exit 1
fi
say "Go: $version"

cc=$(go env CC)
if ! have "${cc%% *}"; then
	install "C compiler $cc" gcc libc6-dev || true
fi
if have "${cc%% *}"; then
	say "C compiler: $cc"
else
	say "C compiler: $cc is not there. Only the slow reference kernels can be built. To get it:"
	say "  Debian or Ubuntu: sudo apt-get install gcc libc6-dev"
	say "  cluster:          module load gcc"
fi

mpicc=${MPICC-mpicc}
if [ -z "$mpicc" ]; then
	say "MPI: MPICC is empty, so it is left out"
	exit 0
fi
if ! have "${mpicc%% *}" && [ "$mpicc" = mpicc ]; then
	install "MPI" openmpi-bin libopenmpi-dev gcc libc6-dev || true
fi
if have "${mpicc%% *}"; then
	say "MPI: $mpicc"
else
	say "MPI: $mpicc is not there. Ranks of one process (--ranks N) work without it. To get it:"
	say "  Debian or Ubuntu: sudo apt-get install openmpi-bin libopenmpi-dev"
	say "  cluster:          module load openmpi     (or mpich, cray-mpich, intel-mpi)"
	say "  then again:       make MPICC=mpicc"
fi
