#!/usr/bin/env bash
# The tests of package mpi under a real MPI, and the ring's measurement of how much of
# the exchange hides (its figures are for scripts/overlap.sh; here it has to run).
#
#   [MPIRUN=mpirun] scripts/mpitest.sh MPI_TEST_BINARY RING_TEST_BINARY
#
# They are made by: scripts/mpi-env.sh mpicc go test -c -tags mpi -o FILE ./mpi (./ring)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/step.sh
. scripts/step.sh

test=$1
overlap=$2
export MPIRUN=${MPIRUN:-mpirun}

for ranks in 1 2 3 4; do
	step "package mpi, $ranks ranks ($MPIRUN)" scripts/mpirun.sh $ranks "$test"
done
step "package mpi, 3 ranks, messages in pieces of 1000 bytes" \
	env RINGATTN_TEST_PIECE_BYTES=1000 scripts/mpirun.sh 3 "$test"
if "$MPIRUN" --version 2>&1 | grep 'Open MPI' >/dev/null; then
	# With a tiny eager limit every message is a rendezvous, as large ones are.
	step "package mpi, 2 ranks, shared memory, rendezvous" \
		env OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_eager_limit=64 scripts/mpirun.sh 2 "$test"
	step "package mpi, 2 ranks, TCP, rendezvous" \
		env OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_eager_limit=64 scripts/mpirun.sh 2 "$test"
fi
step "ring over MPI, 2 ranks ($MPIRUN)" scripts/mpirun.sh 2 "$overlap" -test.run OverlapMPI
steps_end mpi
