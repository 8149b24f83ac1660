#!/usr/bin/env bash
# Says what the Makefile found on this machine and what it would do with it.
#
#   [MPICC=mpicc] [MPIRUN=mpirun] [NVCC=nvcc] scripts/info.sh
set -euo pipefail
cd "$(dirname "$0")/.."

row() { printf '%-16s %s\n' "$1" "$2"; }
# tool NAME HOW: the first line of NAME --version, or how to get it.
tool() {
	if command -v "$1" >/dev/null 2>&1; then
		row "$1" "$("$1" --version 2>&1 </dev/null | sed -n '/[0-9]/{p;q}')"
	else
		row "$1" "not found; $2"
	fi
}

mpicc=${MPICC:-}
mpirun=${MPIRUN:-}
row go "$(go version 2>&1 || echo 'not found; unpack a release from go.dev/dl')"
if [ -n "$mpicc" ]; then
	row "MPI compiler" "$mpicc ($(command -v "${mpicc%% *}" || echo 'not found; set MPICC, or load a module'))"
	while IFS= read -r line; do row "" "$line"; done < <(mpi/flags.sh "$mpicc" 2>&1)
	row "MPI launcher" "$mpirun ($("$mpirun" --version 2>&1 </dev/null | sed -n '/[0-9]/{s/^ *//;p;q}' || true))"
else
	row "MPI compiler" "none; apt-get install openmpi-bin libopenmpi-dev, or module load openmpi, then make MPICC=mpicc"
	row "" "without MPI: ranks of one process alone (--ranks N)"
fi
nvcc=${NVCC:-}
if [ -n "$nvcc" ]; then
	row "CUDA compiler" "$nvcc ($("$nvcc" --version 2>&1 | sed -n 's/.*\(release [0-9.]*\).*/\1/p'))"
else
	row "CUDA compiler" "none; install CUDA 12.4 or newer, or module load cuda, then make NVCC=.../bin/nvcc"
	row "" "on Debian also make NVCC=\$(scripts/cuda.sh), which installs nothing"
fi
row "build tags" "${mpicc:+mpi }${nvcc:+cuda}"
row cpus "$(nproc)"
echo
echo "for make lint and make fmt:"
tool clang-format "apt-get install clang-format"
tool shellcheck "apt-get install shellcheck"
