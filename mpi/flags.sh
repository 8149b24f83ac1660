#!/bin/sh
# Prints what cgo needs to build with an MPI compiler wrapper, one NAME=value a
# line: CGO_CFLAGS and CGO_LDFLAGS, and CC where the wrapper itself has to be the
# compiler. Of the wrapper's flags only -I, -D, -L, -l, -pthread and rpath are
# kept, not the optimisation and hardening that the MPI was built with. -O2 -g is
# what Go has by itself where CGO_CFLAGS is not set; flags of a #cgo line follow
# and win.
#
#   mpi/flags.sh mpicc.mpich
#   (while IFS= read -r line; do export "$line"; done <<EOF
#   $(mpi/flags.sh mpicc)
#   EOF
#   go build -tags mpi ./...)
set -eu

wrapper=${1:-mpicc}
if ! command -v "${wrapper%% *}" >/dev/null 2>&1; then
	echo "flags.sh: $wrapper: not found; give the compiler wrapper of an MPI, for instance mpicc" >&2
	exit 1
fi

# keep KIND FLAGS...: the flags that matter for compiling (c) or linking (l).
# A run path in two words, -Wl,-rpath -Wl,DIR or with -Xlinker, becomes one.
keep() {
	kind=$1
	shift
	kept=
	while [ $# -gt 0 ]; do
		flag=
		if [ "$1" = -Xlinker ] && [ $# -ge 2 ]; then
			flag=$2
			shift 2
			set -- "-Wl,$flag" "$@"
			continue
		fi
		case $kind$1 in
		c-I | c-D | c-isystem | l-L | l-l)
			flag="$1${2:-}"
			[ "$1" != -isystem ] || flag="-I${2:-}"
			[ $# -lt 2 ] || shift
			;;
		c-I* | c-D* | l-L* | l-l* | l*/lib*.a | l*/lib*.so) flag=$1 ;;
		[cl]-pthread) flag=-pthread ;;
		l-Wl,-rpath | l-Wl,--rpath)
			flag=${2:-}
			[ "$flag" != -Xlinker ] || { flag=${3:-} && shift; }
			flag="-Wl,-rpath,${flag#-Wl,}"
			[ $# -lt 2 ] || shift
			;;
		l-Wl,-rpath[,=]* | l-Wl,--rpath[,=]* | l-Wl,--enable-new-dtags | l-Wl,--disable-new-dtags)
			flag=$1
			;;
		esac
		shift
		[ -n "$flag" ] || continue
		case " $kept " in *" $flag "*) continue ;; esac
		kept="$kept${kept:+ }$flag"
	done
	printf '%s' "$kept"
}

# ask FLAG...: what the wrapper answers, if it is a command line and no complaint.
ask() {
	for flag in "$@"; do
		if answer=$($wrapper "$flag" 2>/dev/null); then
			case $answer in
			*-[ILl]*)
				printf '%s' "$answer"
				return 0
				;;
			esac
		fi
	done
	return 1
}

# Open MPI, then MPICH and its relatives (MVAPICH, Intel), then Open MPI's and
# MPICH's common -show.
set -f
if compile=$(ask --showme:compile -compile_info -compile-info -show) &&
	link=$(ask --showme:link -link_info -link-info -show); then
	# shellcheck disable=SC2086 # the answers are lists of flags
	printf 'CGO_CFLAGS=-O2 -g %s\nCGO_LDFLAGS=%s\n' "$(keep c $compile)" "$(keep l $link)"
else
	# Cray's cc and other wrappers that tell nothing do everything themselves.
	printf 'CC=%s\nCGO_CFLAGS=-O2 -g\nCGO_LDFLAGS=\n' "$wrapper"
fi
