#!/usr/bin/env bash
# Gets a CUDA compiler without an installation: nvcc 12.4, its headers and the static
# runtime, taken out of Debian 13's packages into a folder. It compiles and links, and
# needs no GPU; nothing of the system is changed. For Debian on x86-64, as a user who may
# run apt-get download; about 4 GB on disk while it works.
#
#   scripts/cuda.sh [DIR]     default: build/cuda
#   make NVCC=$(scripts/cuda.sh)
#
# Prints the path of nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-build}"
dir=$(realpath "${1:-build/cuda}")
nvcc=$dir/bin/nvcc
if [ -e "$dir/complete" ]; then
	echo "$nvcc"
	exit
fi
say() { printf 'cuda.sh: %s\n' "$*" >&2; }
if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	say "this works on Debian for x86-64 alone; install CUDA 12.4 or newer, and make NVCC=.../bin/nvcc"
	exit 1
fi

# Where this machine has Debian from, there Debian 13 is as well.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
	grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ') || true
mirror=${mirror:-http://deb.debian.org/debian}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/files"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
printf 'deb [arch=amd64 signed-by=%s] %s trixie main contrib non-free\n' "$keys" "$mirror" >"$work/sources.list"
# apt with lists of its own, so that the system's stay as they are.
fetch() {
	apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
		-o Dir::State::Lists="$work/lists" -o APT::Sandbox::User=root "$@" >&2
}
say "packages of Debian 13 from $mirror"
fetch update
(cd "$work" && fetch download nvidia-cuda-toolkit nvidia-cuda-dev libcudart12 libcu++-dev libcub-dev libthrust-dev)
for package in "$work"/*.deb; do
	case ${package##*/} in
	nvidia-cuda-dev_*) # most of it is libraries of mathematics
		dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work/files" --wildcards './usr/include/*' \
			'./usr/lib/x86_64-linux-gnu/libcudart*' './usr/lib/x86_64-linux-gnu/libcudadevrt*' \
			'./usr/lib/x86_64-linux-gnu/stubs/*'
		;;
	*) dpkg-deb -x "$package" "$work/files" ;;
	esac
	rm "$package"
done

# NVIDIA's own order of folders, which nvcc.profile then describes.
toolkit=$work/files/usr/lib/nvidia-cuda-toolkit
rm -rf "$dir"
mkdir -p "$dir/bin" "$dir/nvvm/libdevice"
cp -a "$toolkit"/bin/{nvcc,cicc,crt} "$dir/bin/"
cp -a "$work"/files/usr/bin/{ptxas,fatbinary,cudafe++,nvlink,bin2c,cuobjdump,nvdisasm,__nvcc_device_query} "$dir/bin/"
cp -a "$toolkit"/libdevice/libdevice.10.bc "$dir/nvvm/libdevice/"
cp -a "$work/files/usr/include" "$dir/include"
cp -a "$work/files/usr/lib/x86_64-linux-gnu" "$dir/lib64"
cat >"$dir/bin/nvcc.profile" <<'PROFILE'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
CUDAFE_FLAGS +=
PTXAS_FLAGS +=
PROFILE
touch "$dir/complete"
echo "$nvcc"
