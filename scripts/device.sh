#!/usr/bin/env bash
# Device memory through MPI without a GPU: CPU kernels on memory of the stand-in for the
# CUDA driver (mpi/standin), which the host cannot touch.
#
#   [MPICC=mpicc] [MPIRUN=mpirun] [RINGATTN_CUDA_MPI=PLACE] scripts/device.sh
#
# With the MPI of MPICC and MPIRUN, which need not know device memory, messages go through
# host memory. They go straight from device memory where PLACE is an Open MPI that knows
# it: a folder that it is installed in, or an archive of one, or a folder with an archive
# openmpi*cuda*.tar.*. Without PLACE that part is left out, and it says so.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/step.sh
. scripts/step.sh

MPICC=${MPICC:-mpicc}
export MPIRUN=${MPIRUN:-mpirun}
place=${RINGATTN_CUDA_MPI:-}
for name in $(compgen -e); do
	case $name in
	SLURM_* | OMPI_COMM_WORLD_* | PMI_* | PMIX_* | OMP_NUM_THREADS | RINGATTN_*) unset "$name" ;;
	esac
done
golden=testdata/golden
real=testdata/real/lm_global.safetensors
work=$(mktemp -d)
trap 'rm -rf "$work" "$steps_log"' EXIT

mkdir -p build/standin
"${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden \
	-Wl,-soname,libcuda.so.1 -o build/standin/libcuda.so.1 mpi/standin/cuda.c
standin=$PWD/build/standin

# build NAME WRAPPER: the binary with devices to test.
build() {
	scripts/mpi-env.sh "$2" go build -trimpath -buildvcs=false -tags 'mpi standin' -o "build/$1" .
	bin=$PWD/build/$1
}
# job DEVICES N ARGUMENT...: the binary on N ranks; DEVICES, as in 0,2 or all or none,
# compute in device memory.
job() { RINGATTN_TEST_DEVICE=$1 scripts/mpirun.sh "$2" "$bin" "${@:3}"; }
# touches COMMAND...: COMMAND ends by a touch of device memory.
touches() {
	if "$@" >"$work/touch" 2>&1; then return 1; fi
	grep -qi 'sigsegv\|segmentation\|bad address' "$work/touch"
}
# same NAME: a run's output has the bits of that of the CPU.
same() { step "same bits: CPU and $1" cmp "$work/cpu.safetensors" "$work/$1.safetensors"; }

build ringattn.standin "$MPICC"
export LD_LIBRARY_PATH=$standin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

step "run, 3 ranks, CPU ($MPIRUN)" job none 3 run --in $real --out "$work/cpu.safetensors"
for ranks in 1 2 4; do
	step "check $golden, P=$ranks, through host memory" job all $ranks check --golden $golden --transport host
	step "check $golden, P=$ranks, auto" job all $ranks check --golden $golden
done
step "bench of links, P=3, CPU beside device" job 1 3 bench --links 1000,5MiB --repeats 2
step "check $golden, P=3, CPU beside device" job 1 3 check --golden $golden
step "check $golden, P=3, CPU beside device, small pieces" \
	env RINGATTN_TEST_PIECE_BYTES=1000 RINGATTN_TEST_DEVICE=0,2 scripts/mpirun.sh 3 "$bin" check --golden $golden
step "run, 3 ranks, through host memory" job all 3 run --in $real --out "$work/host.safetensors"
same host
step "trace, 3 ranks, through host memory" job all 3 run --in $real --out "$work/traced.safetensors" --trace "$work/trace.json"
same traced
step "its copies are in it" grep -q '"cat":"copy"' "$work/trace.json"
step "it can have been" "$bin" report --trace "$work/trace.json"
step_exit 3 "--transport device without a device" job none 2 check --in $real --transport device
if ! job all 2 run --in $real --out "$work/auto.safetensors" | grep '^transport .*; device memory (' >/dev/null; then
	step_exit 3 "--transport device, an MPI that says no" job all 2 check --in $real --transport device
	step "its host access ends the process" touches env RINGATTN_FORCE_DEVICE_MEMORY=1 RINGATTN_TEST_DEVICE=all \
		scripts/mpirun.sh 2 "$bin" check --in $real --transport device
fi

# The CUDA-aware Open MPI.
archive=$place
[ ! -d "$place" ] || archive=$(find "$place" -maxdepth 1 -name 'openmpi*cuda*.tar.*' -print -quit)
if [ -n "$archive" ] && [ -f "$archive" ]; then
	rm -rf build/cuda-mpi
	mkdir -p build/cuda-mpi
	tar -xf "$archive" -C build/cuda-mpi
	place=$(dirname "$(dirname "$(find "$PWD/build/cuda-mpi" -path '*/bin/mpirun' -print -quit)")")
fi
if [ -z "$place" ] || [ ! -x "$place/bin/mpirun" ]; then
	echo "left out: device memory straight to MPI, which needs a CUDA-aware Open MPI; RINGATTN_CUDA_MPI is '$place'"
	steps_end device
	exit
fi
export OPAL_PREFIX=$place MPIRUN=$place/bin/mpirun PATH=$place/bin:$PATH
export LD_LIBRARY_PATH=$standin:$place/lib OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,smcuda
build ringattn.cuda-mpi "$place/bin/mpicc"
for ranks in 1 2 4; do
	step "check $golden, P=$ranks, device memory" job all $ranks check --golden $golden --transport device
	step "check $golden, P=$ranks, through host memory" job all $ranks check --golden $golden --transport host
done
step "check testdata/real, P=4, device memory" job all 4 check --golden testdata/real --transport device
for transport in device host; do
	step "bench of links, P=3, $transport" job all 3 bench --links 1000,5MiB --repeats 2 --transport $transport
done
step "check $golden, P=4, copies by the host" \
	env OMPI_MCA_btl_smcuda_use_cuda_ipc=0 RINGATTN_TEST_DEVICE=all scripts/mpirun.sh 4 "$bin" check --golden $golden
step "check $golden, P=3, CPU beside device" job 0,2 3 check --golden $golden
step "check $golden, P=3, CPU beside device, through host memory" job 0,2 3 check --golden $golden --transport host
step "run, 3 ranks, device memory" job all 3 run --in $real --out "$work/device.safetensors"
same device
step "run, 3 ranks, CPU beside device" job 1 3 run --in $real --out "$work/mixed.safetensors"
same mixed
for transport in device host; do
	step "run, 3 ranks, $transport, every kernel 50 ms late" env RINGATTN_TEST_KERNEL_DELAY=50ms RINGATTN_TEST_DEVICE=all \
		scripts/mpirun.sh 3 "$bin" run --in $real --out "$work/late-$transport.safetensors" --transport $transport
	same "late-$transport"
done
straight() { job all 2 run --in $real --out "$work/auto.safetensors" | grep '^transport .*; device memory (MPIX_Query_cuda_support says yes)$'; }
step "auto is device memory, and says why" straight
switched_off() {
	OMPI_MCA_opal_cuda_support=0 job all 2 run --in $real --out "$work/auto.safetensors" | grep '^transport .*; device memory through host memory (.*opal_cuda_support is off)$'
}
step "switched off, auto is host memory, and says why" switched_off
steps_end device
