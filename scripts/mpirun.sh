#!/usr/bin/env bash
# Starts N ranks on this machine, whatever the MPI, the user and the number of
# cores, and ends them after a time.
#
#   [MPIRUN=mpirun] [LIMIT=seconds] scripts/mpirun.sh N COMMAND...
#
# MPIRUN is the launcher of the MPI that COMMAND was built with. The exit code is
# the launcher's, 124 after LIMIT (default 120).
set -euo pipefail

mpirun=${MPIRUN:-mpirun}
limit=${LIMIT:-120}
ranks=$1
shift

if ! version=$("$mpirun" --version 2>&1 </dev/null); then
	echo "mpirun.sh: $mpirun does not run: $version" >&2
	exit 3
fi
options=()
case $version in
*"Open MPI"* | *OpenRTE* | *PRRTE*)
	# More ranks than cores, tests of several people at once, and root in a
	# container are all fine here; Open MPI refuses or binds them by default.
	options=(--oversubscribe --bind-to none)
	if [ "$(id -u)" = 0 ]; then
		export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
	fi
	;;
esac

code=0
timeout --kill-after=10 "$limit" "$mpirun" "${options[@]}" -n "$ranks" "$@" </dev/null || code=$?
if [ "$code" = 124 ] || [ "$code" = 137 ]; then
	echo "mpirun.sh: no end after $limit s, or killed: $mpirun -n $ranks $*" >&2
fi
exit "$code"
