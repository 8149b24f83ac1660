#!/usr/bin/env bash
# Runs every fuzz target of the module, one after another.
#
#   scripts/fuzz.sh SECONDS     all of them together, shared out evenly
set -euo pipefail
cd "$(dirname "$0")/.."

targets=()
while IFS= read -r line; do targets+=("$line"); done < <(
	grep -rlE '^func Fuzz' --include='*_test.go' . | sort | while IFS= read -r file; do
		sed -n "s|^func \(Fuzz[A-Za-z0-9_]*\)(.*|$(dirname "$file") \1|p" "$file"
	done
)
if [ ${#targets[@]} = 0 ]; then
	echo "fuzz.sh: there is no fuzz target" >&2
	exit 1
fi
each=$(($1 / ${#targets[@]}))
for target in "${targets[@]}"; do
	read -r package name <<<"$target"
	echo "fuzz $package $name, $((each > 0 ? each : 1)) s"
	go test "$package" -run '^$' -fuzz "^$name\$" -fuzztime "$((each > 0 ? each : 1))s"
done
