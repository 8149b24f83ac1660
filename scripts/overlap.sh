#!/usr/bin/env bash
# How much of the exchange hides behind kernels, with Open MPI over TCP on this machine.
#
#   [MPIRUN=mpirun] [LIMIT=seconds] scripts/overlap.sh TEST_BINARY [RANKS [RATE]]
#
# TEST_BINARY is made by: scripts/mpi-env.sh mpicc go test -c -tags mpi -o FILE ./ring
# The ranks have a loopback of their own, in a network namespace, that carries RATE
# (default 400mbit): inside a machine it is too fast to be worth hiding. Needs root,
# and tc and ip of iproute2. Figures are good on an idle machine alone, with a core
# for each rank.
set -euo pipefail
cd "$(dirname "$0")/.."

test=$1
ranks=${2:-2}
rate=${3:-400mbit}

if [ "${OVERLAP_SH:-}" != inside ]; then
	exec env OVERLAP_SH=inside unshare --net "$PWD/scripts/overlap.sh" "$(realpath "$test")" "$ranks" "$rate"
fi
ip link set lo up
tc qdisc add dev lo root tbf rate "$rate" burst 256kb limit 100mb
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo
LIMIT=${LIMIT:-600} scripts/mpirun.sh "$ranks" "$test" -test.run OverlapMPI
