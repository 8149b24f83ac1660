#!/usr/bin/env bash
# Four ranks compute the attention of a real tensor, and check it.
#
#   [MPIRUN=mpirun] scripts/demo.sh BIN
#
# Without MPIRUN the ranks are goroutines of one process.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$1
mpirun=${MPIRUN:-}
in=testdata/real/lm_window128.safetensors
out=build/demo.safetensors
mkdir -p build

# four ARGUMENT...: the binary on four ranks; says the command to type. The script is
# mpirun -n 4 that lets root start it, and more ranks than there are cores.
four() {
	if [ -n "$mpirun" ]; then
		printf '\n$ scripts/mpirun.sh 4 %s %s\n\n' "${bin#"$PWD"/}" "$*"
		scripts/mpirun.sh 4 "$bin" "$@"
	else
		printf '\n$ %s %s --ranks 4\n\n' "${bin#"$PWD"/}" "$*"
		"$bin" "$@" --ranks 4
	fi
}

cat <<EOF

The attention of one layer of a small language model, on two source files packed
into one sequence of 284 tokens: out and lse forward, dq, dk and dv backward. Each
of 4 ranks holds 71 tokens and sees the keys of the others as they pass by.
EOF
four run --in $in --out $out
cat <<EOF

The same again, compared with the results that are stored in the file, which
another program computed in float64:
EOF
four check --in $in
