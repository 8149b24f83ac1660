#!/usr/bin/env bash
# The binary under a real SLURM: a controller and two nodes, n1 and n2, that live on
# this machine for as long as this script runs.
#
#   scripts/slurm.sh BIN_OMPI BIN_MPICH
#
# The first is built with Open MPI, the second with MPICH. Needs root, and installs
# Debian's slurm if there is none. All else that it starts and writes lives in
# namespaces and in a folder of its own and ends with it: the machine's own slurm,
# munge, /etc and /dev/shm are left alone. Exits 3 where it cannot run.
set -euo pipefail
cannot() {
	printf 'slurm.sh: %s\n' "$*" >&2
	exit 3
}
if [ $# != 2 ] || [ ! -x "$1" ] || [ ! -x "$2" ]; then
	echo "usage: slurm.sh BIN_OMPI BIN_MPICH" >&2 && exit 2
fi
ompi=$(realpath "$1")
mpich=$(realpath "$2")
cd "$(dirname "$0")/.."

# install: the packages, without starting the services that they bring.
install() {
	command -v apt-get >/dev/null || cannot "slurmctld, slurmd, srun or munged is missing, and there is no apt-get"
	echo "slurm.sh: installing slurm and munge"
	log=$(mktemp) policy=
	trap 'rm -f "$log" $policy' EXIT
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		policy=/usr/sbin/policy-rc.d
		printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
	fi
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
		slurmd slurmctld slurm-client slurm-wlm-basic-plugins munge; } </dev/null >"$log" 2>&1 && return
	tail -n 20 "$log" >&2
	cannot "apt-get failed"
}

# First as the caller started it, then again as process 1 of a namespace: when that
# ends, whatever it started ends with it.
if [ "${SLURM_SH:-}$$" != inside1 ]; then
	[ "$(id -u)" = 0 ] || cannot "needs root, for namespaces, munged and slurmd"
	for tool in slurmctld slurmd srun munged; do
		command -v $tool >/dev/null && continue
		(install) || exit 3
		break
	done
	spaces=(unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc)
	why=$("${spaces[@]}" true 2>&1) || cannot "no permission for namespaces (a container needs --privileged): $why"
	exec env SLURM_SH=inside "${spaces[@]}" scripts/slurm.sh "$ompi" "$mpich"
fi

# shellcheck source=scripts/step.sh
. scripts/step.sh
# What the caller's own job says must not reach the tests.
for name in $(compgen -e); do
	case $name in
	SLURM_* | SBATCH_* | SALLOC_* | SRUN_* | OMPI_* | PMI_* | PMIX_* | OMP_NUM_THREADS | RINGATTN_*) unset "$name" ;;
	esac
done
# Not below TMPDIR: the paths of sockets must be short.
work=$(mktemp -d /tmp/ringattn-slurm.XXXXXX)
export SLURM_CONF=$work/slurm.conf
daemons=()

# stop: ends the daemons, and shows their logs if anything went wrong.
stop() {
	local code=$?
	trap '' INT TERM
	[ ${#daemons[@]} = 0 ] || kill "${daemons[@]}" 2>/dev/null || true
	[ "$code" = 0 ] || tail -n 20 "$work"/*.log >&2 || true
	wait_for 10 no_daemon || echo "slurm.sh: a daemon does not end, and is killed" >&2
	rm -rf "$work" "$steps_log"
	exit "$code"
}
no_daemon() { ! kill -0 "${daemons[@]}"; }
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# wait_for SECONDS COMMAND...: tries it until it succeeds.
wait_for() {
	local end=$((SECONDS + $1))
	until "${@:2}" >/dev/null 2>&1; do sleep 0.1 && [ $SECONDS -lt $end ] || return 1; done
}
# daemon NAME COMMAND...: in the background, with a log.
daemon() { "${@:2}" </dev/null >"$work/$1.log" 2>&1 & daemons+=($!); }

# 1. The cluster, on ports that nobody listens on. It has more CPUs than there are
# (config_overrides), so that a job of the usual size fits; they cannot be bound to,
# hence task/none.
port=$((20000 + RANDOM % 4000 * 3))
while (: </dev/tcp/127.0.0.1/$port) 2>/dev/null; do port=$((port + 3)); done
cat >"$SLURM_CONF" <<END
ClusterName=ringattn
SlurmctldHost=login(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/%n/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/%n/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n[1-2] NodeHostname=login NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=32 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=60 State=UP
END
# Two GPUs a node, of which SLURM knows no more than that there are files of them.
echo "NodeName=n[1-2] Name=gpu File=$work/gpu[0-1]" >"$work/gres.conf"
mknod "$work/gpu0" c 1 3 && mknod "$work/gpu1" c 1 3
# Both nodes call this folder by one name, and each has its own there: PMIx puts
# files of the same names into it.
echo "PMIxCliTmpDirBase=$work/pmix" >"$work/mpi.conf"
mkdir "$work"/{state,pmix,n1,n1/spool,n1/pmix,n2,n2/spool,n2/pmix}
chmod 755 "$work" # munged wants its socket to be reachable
head -c 1024 /dev/urandom >"$work/munge.key"
chmod 400 "$work/munge.key"
# Open MPI names its files in these after host and job, which repeat.
mount -t tmpfs tmpfs /dev/shm
export TMPDIR=$work
printf '127.0.0.1 localhost login n1 n2\n' >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
hostname login

daemon munged munged --foreground --socket="$work/munge.socket" --key-file="$work/munge.key" \
	--pid-file="$work/munged.pid" --seed-file="$work/munge.seed"
wait_for 10 test -S "$work/munge.socket" || cannot "munged does not start"
daemon slurmctld slurmctld -D
for node in n1 n2; do
	# shellcheck disable=SC2016
	daemon $node unshare --mount --uts \
		sh -c 'hostname "$1" && mount --bind "$2/$1/pmix" "$2/pmix" && exec slurmd -D -N "$1"' sh $node "$work"
done
nodes_idle() { [ "$(timeout 5 sinfo -h -N -t idle -o %N | xargs)" = "n1 n2" ]; }
step "slurmctld, n1 and n2 are up" wait_for 30 nodes_idle
[ "$steps_failed" = 0 ] || cannot "the cluster does not start"

# 2. Ways to start a command. Each ends, whatever happens, and lets signals through.
bounded() { timeout --kill-after=10 60 "$@" & wait $!; }
# on MPI COMMAND...: two tasks on each node, with srun's plugin MPI.
on() { bounded srun -N2 --ntasks-per-node=2 --mpi="$1" "${@:2}"; }
# script ARGUMENT...: sbatch, and what the job printed.
script() {
	local code=0
	bounded sbatch --wait -o "$work/job" "$@" || code=$?
	cat "$work/job" && rm "$work/job"
	return $code
}
# batch COMMAND...: in the shell of a batch script of two tasks on each node.
batch() { script -N2 --ntasks-per-node=2 --wrap "$(printf '%q ' "$@")"; }
# says WORDS COMMAND...: the code of the command, 99 if it did not say the words.
says() {
	local code=0
	"${@:2}" >"$work/said" 2>&1 || code=$?
	cat "$work/said"
	grep -Eq -- "$1" "$work/said" && return $code
	echo "(exit code $code, and nothing above matches: $1)"
	return 99
}
# once WORDS COMMAND...: says, in one line.
once() {
	local code=0
	says "$@" || code=$?
	[ "$(grep -Ec -- "$1" "$work/said")" = 1 ] && return $code
	return 99
}
# threads N COMMAND...: run's table has two ranks on each node, of N threads each.
threads() {
	says "exposed wait" "${@:2}" || return
	[[ $(awk '/forward/ && $1 ~ /^[0-9]+$/ { print $2 ":" $4 }' "$work/said" | xargs) == n1:$1\ n1:$1\ n2:$1\ n2:$1 ]]
}
# aborts CODE COMMAND...: the command's code. With PMI-2 that of a killed task counts
# as CODE: SLURM kills the step when a rank aborts, and loses what the rank said.
aborts() {
	local code=0
	"${@:2}" || code=$?
	[ "$plugin $code" = "pmi2 137" ] && return "$1"
	return $code
}
# sees_gpus: each rank of ringattn-gpu.sbatch may use both GPUs of its node.
sees_gpus() {
	# shellcheck disable=SC2016 # it is the ranks' variable
	printf '#!/bin/sh\necho "sees GPUs $CUDA_VISIBLE_DEVICES"\nexec %s "$@"\n' "$bin" >"$work/rank"
	chmod 755 "$work/rank"
	says "exposed wait" script --export="ALL,MPI_TYPE=$plugin,RINGATTN=$work/rank,BACKEND=auto" hostfiles/ringattn-gpu.sbatch $real "$out" || return
	[ "$(grep -c '^sees GPUs 0,1$' "$work/said")" = 4 ]
}
# points FILE...: how many points there are, none of them twice.
points() { sed -n 's/.*"type":"result","key":"\([0-9a-f]*\)".*/\1/p' "$@" | sort | uniq -c | awk '$1 > 1 { twice = 1 } END { print twice ? "twice" : NR }'; }
# weak: ringattn-weak.sbatch has a point of each pass on 1, 2 and 4 ranks, which report compares.
weak() {
	rm -f "$work/weak.jsonl"
	script --export="ALL,MPI_TYPE=$plugin,RINGATTN=$bin" hostfiles/ringattn-weak.sbatch 64 "$work/weak.jsonl" --head-dim 32 --repeats 2 --threads 1 || return
	[ "$(points "$work/weak.jsonl")" = 6 ] && says '^weak scaling' "$bin" report "$work/weak.jsonl"
}
# requeued: of an array of two tasks one gets USR1 after its first point; it is queued again,
# goes on, and in the end all points are there, each once.
requeued() {
	local id results=$work/results
	rm -rf "$results" "$work"/array-*
	printf 'seq: [64, 80, 96, 112, 128, 144]\nhead-dim: 32\nrepeats: 300\nthreads: 1\nlog-level: error\n' >"$work/sweep.yaml"
	id=$(sbatch --parsable --array=3-4 --ntasks-per-node=2 --export="ALL,MPI_TYPE=$plugin,RINGATTN=$bin" -o "$work/array-%a" \
		hostfiles/ringattn-array.sbatch "$work/sweep.yaml" "$results") || return
	wait_for 30 grep -q '"type":"result"' "$results/3.jsonl" && scancel --signal=USR1 "${id}_3"
	wait_for 30 grep -q 'queued again (0 times before)' "$work/array-3" || echo "(it is not queued again)"
	local before && before=$(points "$results/3.jsonl")
	# It begins when the credentials of the first time have run out (cred_expire above).
	wait_for 60 ended "$id" || scancel "$id"
	cat "$work"/array-*
	echo "points: $before before, $(points "$results/3.jsonl") and $(points "$results/4.jsonl") in the end"
	[ "$before" -lt 6 ] && [ "$(points "$results/3.jsonl")" = 6 ] && [ "$(points "$results"/*.jsonl)" = 12 ] && "$bin" report "$results"/*.jsonl
}
ended() { [ -z "$(squeue -h -j "$1")" ]; }
# gone: the job has ended, and no process of the binary is left.
gone() { ! kill -0 "$job" && for exe in /proc/[0-9]*/exe; do ! [ "$exe" -ef "$bin" ] || return; done; }
# signalled SIGNAL: the code of a long job that got SIGNAL, 99 if it did not end.
signalled() {
	local code=0
	on "$plugin" -J long "$bin" check --seq 60000 --mask full --threads 1 --log-level debug >"$work/long" 2>&1 &
	job=$!
	wait_for 20 grep -q ' up ' "$work/long" || echo "(it does not start)"
	sleep 1
	scancel --signal="$1" --name=long
	if wait_for 15 gone; then wait $job || code=$?; else code=99 && scancel --name=long; fi
	cat "$work/long"
	return $code
}

real=testdata/real/lm_window128.safetensors out=$work/out.safetensors
run=(run --in "$real" --expect-ranks 4 --out "$out")
wrong=$work/wrong.safetensors # one expected number is replaced by 1e30
cp testdata/golden/causal_single.safetensors "$wrong"
header=$(od -An -t u8 -N 8 "$wrong" | tr -d ' ')
printf '\312\362\111\161' | dd of="$wrong" bs=1 seek=$((8 + header)) conv=notrunc status=none
step "run in one process" "$ompi" run --in $real --ranks 4 --out "$work/want.safetensors"

# 3. Each MPI with the plugin that belongs to it.
for way in "pmix $ompi mpirun.openmpi" "pmi2 $mpich mpirun.mpich"; do
	read -r plugin bin MPIRUN <<<"$way"
	export MPIRUN
	name=${bin##*/} its="srun --mpi=$plugin ${bin##*/}"
	step "$its check" on "$plugin" "$bin" check --golden testdata/golden --expect-ranks 4
	step "$its run: two ranks on n1, two on n2" threads '*' on "$plugin" "$bin" "${run[@]}"
	step "$its, --cpus-per-task=3: 3 threads" threads 3 on "$plugin" --cpus-per-task=3 "$bin" "${run[@]}"
	step_exit 1 "$its, a wrong number" says "result is wrong" on "$plugin" "$bin" check --in "$wrong"
	step_exit 2 "$its, no such file" aborts 2 says "no such file" on "$plugin" "$bin" check --in "$work/none"
	step_exit 3 "$its --ranks 2" on "$plugin" "$bin" check --in $real --ranks 2
	for signal in TERM USR1; do
		step_exit 75 "$its, scancel --signal=$signal" aborts 75 says "interrupted by a signal" signalled $signal
	done

	rm -f "$out"
	step "MPI_TYPE=$plugin sbatch hostfiles/ringattn.sbatch, $name: 16 threads" \
		threads 16 script --export="ALL,MPI_TYPE=$plugin,RINGATTN=$bin" hostfiles/ringattn.sbatch $real "$out"
	step "its result: the same bits as in one process" cmp "$out" "$work/want.safetensors"
	step "sbatch hostfiles/ringattn-gpu.sbatch, $name: all GPUs of a node" sees_gpus
	step_exit 3 "its --backend cuda: refused once, without one" \
		once 'backend cuda' script --export="ALL,MPI_TYPE=$plugin,RINGATTN=$bin" hostfiles/ringattn-gpu.sbatch $real "$out"
	step "sbatch hostfiles/ringattn-weak.sbatch, $name" weak
	step "sbatch hostfiles/ringattn-array.sbatch, $name: stopped, queued again, resumed" requeued
	step_exit 3 "batch script, $name without srun is refused" \
		says 'launcher says 4 .SLURM_NTASKS=4., MPI says 1' batch "$bin" check --in $real
	step "batch script, $name --ranks 2" batch "$bin" check --in $real --ranks 2
	step "batch script, $MPIRUN" threads '*' batch scripts/mpirun.sh 4 "$bin" "${run[@]}"
	step "salloc, $MPIRUN" threads '*' bounded salloc -N2 --ntasks-per-node=2 scripts/mpirun.sh 4 "$bin" "${run[@]}"
done
step "batch script, plan --ranks 3" says '^3 ranks' batch "$ompi" plan --in $real --ranks 3

# 4. A plugin that does not belong to the MPI: each task would be alone.
for plugin in pmix none; do
	step_exit 3 "srun --mpi=$plugin ${mpich##*/} is refused" \
		says 'launcher says 4 .*, MPI says 1' on $plugin "$mpich" check --in $real
done
step_exit 3 "srun --mpi=none ${ompi##*/} is refused" says 'launcher says 4 .*MPI would find 1' on none "$ompi" check --in $real
# Open MPI ends this one itself, with a code of its own.
step_exit 1 "srun --mpi=pmi2 ${ompi##*/} fails" says "not built with SLURM's PMI" on pmi2 "$ompi" check --in $real

# 5. The files for launchers without SLURM.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
step "mpirun.openmpi --hostfile hostfiles/hostfile" \
	bounded mpirun.openmpi --hostfile hostfiles/hostfile -n 8 "$ompi" check --in $real --expect-ranks 8
step "mpirun.mpich -f hostfiles/hostfile.mpich" \
	bounded mpirun.mpich -f hostfiles/hostfile.mpich -n 8 "$mpich" check --in $real --expect-ranks 8
[ "$(nproc)" = 1 ] || # it binds two ranks to two cores
	step "mpirun.openmpi --rankfile hostfiles/rankfile" \
		bounded mpirun.openmpi --rankfile hostfiles/rankfile -n 2 "$ompi" check --in $real --expect-ranks 2
steps_end slurm
