# shellcheck shell=bash
# Sourced by the test scripts. Runs steps, one line each, with the time it took;
# shows what a failed step printed.
#
#   step NAME COMMAND...          COMMAND must exit 0
#   step_exit CODE NAME COMMAND...  COMMAND must exit CODE
#   steps_end WHAT                prints the sum; fails if any step did

steps_passed=0
steps_failed=0
steps_log=$(mktemp)
trap 'rm -f "$steps_log"' EXIT

step() { step_exit 0 "$@"; }

step_exit() {
	local want=$1 name=$2 got=0 start=$EPOCHREALTIME
	shift 2
	"$@" >"$steps_log" 2>&1 </dev/null || got=$?
	local took=$(((${EPOCHREALTIME/[.,]/} - ${start/[.,]/}) / 1000))
	if [ "$got" = "$want" ]; then
		printf 'ok    %3d.%03d s  %s\n' $((took / 1000)) $((took % 1000)) "$name"
		steps_passed=$((steps_passed + 1))
		return 0
	fi
	printf 'FAIL  %3d.%03d s  %s: exit code %d, want %d\n' $((took / 1000)) $((took % 1000)) "$name" "$got" "$want"
	printf '      %s\n' "$*"
	tail -n 40 "$steps_log" | sed 's/^/      | /'
	steps_failed=$((steps_failed + 1))
	if [ "$steps_failed" -ge 5 ]; then
		echo "too many failures, the rest is left out"
		steps_end "stopped"
		exit 1
	fi
}

steps_end() {
	printf '%s: %d passed, %d failed\n' "$1" "$steps_passed" "$steps_failed"
	[ "$steps_failed" = 0 ]
}
