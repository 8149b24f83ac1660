#!/usr/bin/env bash
# The tests of package mpi under a real MPI.
#
#   [MPIRUN=mpirun] scripts/mpitest.sh TEST_BINARY
#
# TEST_BINARY is made by: scripts/mpi-env.sh mpicc go test -c -tags mpi -o FILE ./mpi
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/step.sh
. scripts/step.sh

test=$1
export MPIRUN=${MPIRUN:-mpirun}

for ranks in 1 2 3 4; do
	step "package mpi, $ranks ranks ($MPIRUN)" scripts/mpirun.sh $ranks "$test"
done
step "package mpi, 3 ranks, messages in pieces of 1000 bytes" \
	env RINGATTN_TEST_PIECE_BYTES=1000 scripts/mpirun.sh 3 "$test"
if "$MPIRUN" --version 2>&1 | grep -q 'Open MPI'; then
	# With a tiny eager limit every message is a rendezvous, as large ones are.
	step "package mpi, 2 ranks, shared memory, rendezvous" \
		env OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_eager_limit=64 scripts/mpirun.sh 2 "$test"
	step "package mpi, 2 ranks, TCP, rendezvous" \
		env OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_eager_limit=64 scripts/mpirun.sh 2 "$test"
fi
steps_end mpi
