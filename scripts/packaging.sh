#!/usr/bin/env bash
# What packaging/ and the Makefile's install and dist make, tried out as far as this
# machine can: packaging/README.md says how far that is.
#
#   scripts/packaging.sh [MPICC]
#
# MPICC is the compiler wrapper that bin/ringattn was built with. As root it installs Environment
# Modules with apt-get if there are none, and builds the tarball as nobody, without network.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/step.sh
. scripts/step.sh

mpicc=${1:-}
version=$(sed -n 's/^VERSION ?= //p' Makefile)
# Where nobody may go too.
work=$(mktemp -d /tmp/ringattn-packaging.XXXXXX)
chmod 755 "$work"
trap 'chmod -R u+w "$work"; rm -rf "$work" "$steps_log"' EXIT

# 1. Installed at a prefix, and into a stage for one.
files() { (cd "$1" && find . -type f -printf '%P %m\n' | sort); }
step "make install PREFIX=..." make MPICC="$mpicc" CUDA=no PREFIX="$work/sw" install
step "make install PREFIX=/opt/ringattn DESTDIR=..." make MPICC="$mpicc" CUDA=no PREFIX=/opt/ringattn DESTDIR="$work/stage" install
same_files() { diff <(files "$work/sw") <(files "$work/stage/opt/ringattn") && [ "$(files "$work/stage" | wc -l)" = "$(files "$work/sw" | wc -l)" ]; }
step "the same files in both" same_files
has_all() {
	local name
	for name in bin/ringattn share/man/man1/ringattn.1 share/man/man1/ringattn-bench.1 share/bash-completion/completions/ringattn \
		share/zsh/site-functions/_ringattn share/fish/vendor_completions.d/ringattn.fish share/ringattn/ringattn.sbatch \
		share/ringattn/bench.schema.json "share/modulefiles/ringattn/$version"; do
		[ -s "$work/sw/$name" ] || { echo "there is no $name" && return 1; }
	done
	! grep -r @PREFIX@ "$work/sw/share/modulefiles" "$work/stage"
}
step "all is there" has_all

# 2. The modulefile, by Environment Modules.
modulecmd=$(find /usr/lib /usr/share /usr/local -name modulecmd.tcl -print -quit 2>/dev/null)
if [ -z "$modulecmd" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	apt-get update -qq || true
	step "install environment-modules" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends environment-modules
	modulecmd=$(find /usr/lib /usr/share -name modulecmd.tcl -print -quit)
fi
# module ARGUMENT...: the command of Environment Modules, in this shell.
module() { eval "$(tclsh "$modulecmd" bash "$@")"; }
loads() {
	module use "$work/sw/share/modulefiles" && module load ringattn || return
	[ "$(command -v ringattn)" = "$work/sw/bin/ringattn" ] && [ "$RINGATTN_ROOT" = "$work/sw" ] || return
	ringattn version && module whatis ringattn && module help ringattn || return
	module unload ringattn && [ -z "${RINGATTN_ROOT:-}" ] && ! command -v ringattn
}
step "modulefile: loaded, and unloaded" loads

# 3. Spack's recipe: what it tells make is what make knows.
recipe=packaging/spack/spack_repo/ringattn/packages/ringattn/package.py
known_to_make() {
	local line word
	local -a lines words
	mapfile -t lines < <(python3 packaging/spack/standin.py $recipe)
	[ ${#lines[@]} = 7 ] || return
	for line in "${lines[@]}"; do
		echo "make $line"
		IFS=$'\t' read -ra words <<<"$line"
		for word in "${words[@]}"; do
			case $word in
			*=*) grep -qE "^${word%%=*} +\?=" Makefile cu/Makefile ;;
			*) grep -q "^$word:" Makefile ;;
			esac || { echo "make knows no $word" && return 1; }
		done
	done
}
compiles() { PYTHONPYCACHEPREFIX=$work/pyc python3 -m py_compile $recipe packaging/spack/standin.py; }
step "Spack recipe: compiles" compiles
step "Spack recipe: what it tells make" known_to_make

# 4. Apptainer's definition: its scripts, a file each; those that need no image are run.
definition=packaging/apptainer/ringattn.def
sections() {
	local out='' line n=0
	while IFS= read -r line; do
		case $line in
		Bootstrap:*) n=$((n + 1)) out='' ;;
		%files* | %arguments | %labels | %help | %environment | %post | %test | %runscript) out=$work/section$n.${line%% *} && out=${out/\%/} && : >"$out" ;;
		%*) echo "no such section: $line" && return 1 ;;
		*) [ -z "$out" ] || printf '%s\n' "${line#    }" >>"$out" ;;
		esac
	done <$definition
	[ $n = 2 ] && ls "$work"/section1.post "$work"/section2.post "$work"/section2.test "$work"/section2.runscript
}
step "Apptainer definition: its sections" sections
arguments_known() {
	local name
	for name in $(grep -o '{{ *[a-z]* *}}' $definition | tr -d '{} ' | sort -u); do
		grep -q "^$name=" "$work/section1.arguments" || { echo "no argument $name" && return 1; }
	done
	grep -qx "version=$version" "$work/section1.arguments"
}
step "Apptainer definition: its arguments" arguments_known
for script in section1.post section2.post section2.test section2.runscript section2.environment; do
	if command -v shellcheck >/dev/null; then
		step "Apptainer definition: $script, shellcheck" shellcheck -s sh -e SC2050 "$work/$script" # a condition on an argument
	fi
	step "Apptainer definition: $script, sh -n" sh -n "$work/$script"
done
step "Apptainer definition: %test" env PATH="$work/sw/bin:$PATH" sh -e "$work/section2.test"
step "Apptainer definition: %runscript" env PATH="$work/sw/bin:$PATH" sh "$work/section2.runscript" check --ranks 2 --seq 50

# 5. The tarball, in an empty folder: without network, without root, without a cache of modules.
[ -n "$(git rev-parse --verify HEAD 2>/dev/null || true)" ] || { echo "no git here: the tarball is not made" && steps_end packaging && exit; }
step "make dist" make dist
tarball=build/ringattn-$version.tar.gz
again() { local first && first=$(sha256sum <"$tarball") && make dist && [ "$first" = "$(sha256sum <"$tarball")" ]; }
step "make dist: the same bytes again" again
home=$work/home source=$work/home/ringattn-$version
mkdir -p "$home"
cp "$tarball" "$work/tarball.tar.gz"
nobody=() network=()
if [ "$(id -u)" = 0 ]; then
	chown 65534:65534 "$home"
	nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
	! unshare --net true 2>/dev/null || network=(unshare --net)
fi
# bare COMMAND...: by nobody, with an environment of its own.
bare() {
	"${nobody[@]}" env -i HOME="$home" PATH="$home/bin:$PATH" TMPDIR="$home" GOFLAGS=-mod=vendor GOPROXY=off GOTOOLCHAIN=local \
		OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$@"
}
# offline COMMAND...: without network as well.
offline() { "${network[@]}" "$(command -v bash)" -c "$(declare -f bare); $(declare -p nobody home); bare \"\$@\"" bash "$@"; }
has_no_network() { ! offline bash -c ': </dev/tcp/1.1.1.1/53' && [ -z "$(find "$home" -path '*pkg/mod*' -print -quit)" ]; }
step "unpacked" bare tar -xzf "$work/tarball.tar.gz" -C "$home"
step "no network, no modules" has_no_network
wrapper=
if [ -n "$mpicc" ]; then
	# As on a Cray: its compiler driver finds MPI by itself, and tells nobody how.
	wrapper=cc
	mkdir "$work/cray"
	cat >"$work/cray/cc" <<END
#!/bin/sh
case " \$* " in *show* | *compile*info* | *link*info*) echo "cc: no such option" >&2; exit 1 ;; esac
exec $(command -v "$mpicc") "\$@"
END
	chmod 755 "$work/cray/cc"
fi
built() { offline env PATH="$work/cray:$PATH" make -C "$source" MPICC=$wrapper CUDA=no "$@"; }
step "built with MPICC=$wrapper" built all
step "no module was fetched" has_no_network
revision() { bare "$source/bin/ringattn" version | grep "^revision  *$(git rev-parse --short=12 HEAD)$"; }
step "it knows its revision" revision
step "it computes" bare "$source/bin/ringattn" check --ranks 2 --seq 100
[ -z "$mpicc" ] || step "it is an MPI program" \
	bare env MPIRUN="${mpicc/mpicc/mpirun}" "$source/scripts/mpirun.sh" 2 "$source/bin/ringattn" check --seq 100 --expect-ranks 2
step "installed" built PREFIX="$home/sw" install
step "it runs from there" bare "$home/sw/bin/ringattn" version
steps_end packaging
