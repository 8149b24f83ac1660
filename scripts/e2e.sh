#!/usr/bin/env bash
# End to end: the real binary on real files, under its launcher and in one process.
#
#   [MPIRUN=mpirun] [OTHER_MPIRUN=mpirun.mpich] scripts/e2e.sh BIN
#
# MPIRUN is the launcher of the MPI that BIN was built with; where it is empty only
# the ranks of one process are tried. OTHER_MPIRUN is another MPI's, which must be
# refused.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/step.sh
. scripts/step.sh

bin=$1
export MPIRUN=${MPIRUN:-}
work=$(mktemp -d)
trap 'rm -rf "$work" "$steps_log"' EXIT
# What the caller's own job says must not reach the tests.
for name in $(compgen -e); do
	case $name in
	SLURM_* | OMPI_COMM_WORLD_* | PMI_* | PMIX_* | OMP_NUM_THREADS | RINGATTN_*) unset "$name" ;;
	esac
done

# job N ARGUMENT...: the binary on N ranks of MPI; alone N ARGUMENT...: of one process.
job() { scripts/mpirun.sh "$1" "$bin" "${@:2}"; }
alone() { timeout --kill-after=10 "${LIMIT:-120}" "$bin" "${@:2}" --ranks "$1"; }
ways=(alone)
[ -z "$MPIRUN" ] || ways=(alone job)

step "version" "$bin" version
step "plan" "$bin" plan --ranks 4 --in testdata/real/lm_window128.safetensors --steps

# 1. Every file with known results, on many numbers of ranks.
for way in "${ways[@]}"; do
	for kind in contiguous,ring zigzag,ring balanced,direct; do
		for data in golden real; do
			for ranks in 1 2 3 4 6 8; do
				step "check testdata/$data, $kind, P=$ranks, $way" \
					"$way" $ranks check --golden testdata/$data --layout "${kind%,*}" --schedule "${kind#*,}"
			done
		done
	done
done

# Ranks that exchange heads, several of one KV head too, and gradients in bf16.
heads=(--seq 301 --heads 8/2 --head-dim 32 --mask causal --mask docs:lognormal:60:1)
for way in "${ways[@]}"; do
	for groups in 2,2 4,2 6,2 8,2; do
		for schedule in ring direct two-level; do
			step "check testdata/real, P,U=$groups, $schedule, $way" "$way" "${groups%,*}" check --golden testdata/real \
				--ulysses "${groups#*,}" --schedule $schedule --ranks-per-node 2
		done
	done
	for groups in 4,4 8,4; do
		for layout in contiguous zigzag balanced; do
			step "check shapes, P,U=$groups, $layout, $way" "$way" "${groups%,*}" check "${heads[@]}" --ulysses "${groups#*,}" --layout $layout
		done
	done
	for schedule in ring direct two-level; do
		step "check testdata/golden, gradients in bf16, $schedule, $way" "$way" 4 check --golden testdata/golden \
			--layout zigzag --schedule $schedule --ranks-per-node 2 --wire-gradients bf16
	done
	step_exit 2 "3 ranks to a group of 2, $way" "$way" 3 check --golden testdata/real --ulysses 2
	step "bench, $way" "$way" 4 bench --seq 128 --heads 4/1 --head-dim 16 --repeats 1 --ulysses 2 --wire-gradients bf16 --links 100000,1MiB
done

# 2. run writes what check expects, the same to the bit on every way there.
real=testdata/real/lm_global.safetensors
for way in "${ways[@]}"; do
	step "run, 4 ranks, $way" "$way" 4 run --in $real --out "$work/$way.safetensors"
	step "run, 4 ranks exchange heads, $way" "$way" 4 run --in $real --out "$work/$way-heads.safetensors" --ulysses 2 --wire-gradients bf16
done
step "run, 4 ranks, 1 thread each" alone 4 run --in $real --out "$work/thread.safetensors" --threads 1
step "run, uneven shards" alone 3 run --in $real --out "$work/shards.safetensors" --shards 284,0,0
for other in "${ways[@]:1}"; do
	step "same bits of heads: alone and $other" cmp "$work/alone-heads.safetensors" "$work/$other-heads.safetensors"
done
for other in "${ways[@]:1}" thread; do
	step "same bits: alone and $other" cmp "$work/alone.safetensors" "$work/$other.safetensors"
done

# 3. A wrong result is seen: one expected number is replaced by 1e30.
wrong=$work/wrong.safetensors
cp testdata/golden/causal_single.safetensors "$wrong"
header=$(od -An -t u8 -N 8 "$wrong" | tr -d ' ')
printf '\312\362\111\161' | dd of="$wrong" bs=1 seek=$((8 + header)) conv=notrunc status=none
step_exit 1 "check of a file with a wrong number" alone 2 check --in "$wrong"

# 4. Usage and bad input.
printf 'no tensors here' >"$work/text.safetensors"
step_exit 2 "no such flag" "$bin" run --no-such-flag
step_exit 2 "no such command" "$bin" no-such-command
step_exit 2 "no such file" alone 2 run --in "$work/none.safetensors" --out "$work/o.safetensors"
step_exit 2 "no safetensors file" alone 2 run --in "$work/text.safetensors" --out "$work/o.safetensors"
step_exit 2 "no folder for the output" alone 2 run --in $real --out "$work/none/o.safetensors"

# 5. A launcher that the world does not agree with.
step_exit 3 "4 tasks by SLURM_NTASKS, started plainly" env SLURM_NTASKS=4 "$bin" check --in $real
step "4 tasks by SLURM_NTASKS, --ranks 2" env SLURM_NTASKS=4 "$bin" check --in $real --ranks 2
step_exit 3 "4 tasks of a step, --ranks 2" \
	env SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 "$bin" check --in $real --ranks 2
step_exit 3 "4 processes by OMPI_COMM_WORLD_SIZE, alone" \
	env OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 "$bin" check --in $real
step_exit 3 "4 processes by PMI_SIZE, alone" env PMI_SIZE=4 PMI_RANK=0 "$bin" check --in $real
step_exit 3 "4 processes by OMPI_COMM_WORLD_SIZE, --ranks 4" \
	env OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 "$bin" check --in $real --ranks 4
step_exit 3 "--expect-ranks 3 of 2" alone 2 check --in $real --expect-ranks 3
if [ -n "$MPIRUN" ]; then
	step_exit 3 "--ranks 2 inside a job of 2" job 2 check --in $real --ranks 2
	step_exit 3 "--expect-ranks 3, job of 2" job 2 check --in $real --expect-ranks 3
	step_exit 2 "no such file, job of 2" job 2 run --in "$work/none.safetensors" --out "$work/o.safetensors"
	step_exit 1 "wrong number, job of 2" job 2 check --in "$wrong"
	# The other MPI's launcher, where there is one.
	if [ -n "${OTHER_MPIRUN:-}" ]; then
		step_exit 3 "started by the wrong MPI's launcher ($OTHER_MPIRUN)" \
			env MPIRUN="$OTHER_MPIRUN" scripts/mpirun.sh 2 "$bin" check --in $real
	fi
fi

# 6. Nothing is left behind by those that failed.
leftovers() { [ "$(find "$work" -name '*o.safetensors*' | wc -l)" = 0 ]; }
step "no output of a failed run" leftovers

steps_end e2e
