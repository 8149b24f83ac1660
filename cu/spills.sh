#!/usr/bin/env bash
# spills.sh LOG...: prints registers and spills of each kernel in ptxas's accounts (-v),
# and fails if any spills, or if ptxas serialised wgmma or gave up a register budget (C75xx).
set -euo pipefail
awk '
/Compiling entry function/ {
	name = $7; arch = $9
	gsub(/\x27/, "", name); gsub(/\x27/, "", arch)
}
/\(C75[0-9][0-9]\)/ { bad++; print "SERIAL  " $0 }
/bytes spill stores/ {
	for (i = 1; i <= NF; i++) if ($i == "spill") { if ($(i + 1) ~ /stores/) stores = $(i - 2); else loads = $(i - 2) }
}
/Used [0-9]+ registers/ {
	for (i = 1; i <= NF; i++) if ($i == "Used") registers = $(i + 1)
	kernels++
	if (stores + loads > 0) { bad++; printf "SPILLS " } else printf "       "
	printf "%3d registers, %4d bytes stored, %4d loaded  %s %s\n", registers, stores, loads, arch, name
}
END {
	printf "%d kernels, %d with spills or serialised\n", kernels, bad
	exit kernels == 0 || bad > 0
}' "$@"
