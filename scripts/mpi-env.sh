#!/usr/bin/env bash
# Runs a command with what cgo needs to build with an MPI in its environment.
#
#   scripts/mpi-env.sh WRAPPER COMMAND...
#
# WRAPPER is an MPI compiler wrapper, for instance mpicc or mpicc.mpich. Empty, it
# stands for a build without MPI, and COMMAND runs as it is. The build tag mpi is
# COMMAND's own affair.
set -euo pipefail

wrapper=$1
shift
if [ -n "$wrapper" ]; then
	flags=$("$(dirname "$0")/../mpi/flags.sh" "$wrapper")
	while IFS='=' read -r name value; do
		[ -n "$value" ] || continue
		case $name in
		CGO_*) export "$name=$value${!name:+ ${!name}}" ;; # the user's own follow and win
		*) export "$name=$value" ;;
		esac
	done <<<"$flags"
fi
exec "$@"
