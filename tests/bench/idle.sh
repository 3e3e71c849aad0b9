#!/bin/sh
# A reinforcement pipe on tiny: the share of the wall time in which none of its three stages is busy
# (idle.c), for each --max-lag, and how long the trainer waited by its own metrics. TW_STEPS: optimiser
# steps (10), of 64 rollouts each; TW_LAGS: "0 1 2".
TOP=$(cd "$(dirname "$0")/../.." && pwd)
TW_BUILD=${TW_BUILD:-$TOP/build}
export PATH="$TW_BUILD/bin:$PATH"
steps=${TW_STEPS:-10}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

awk -v n=$((steps * 8)) 'BEGIN { srand(3); for (i = 0; i < n; i++) {
    a = 10 + int(rand() * 90); b = 10 + int(rand() * 90)
    printf "{\"messages\":[{\"role\":\"user\",\"content\":\"How many is %d and %d together?\"}],\"answer\":\"%d\"}\n", a, b, a + b } }' >prompts
# stage NAME COMMAND..: leaves its process id in NAME.pid
stage() { n=$1; shift; sh -c 'echo $$ >"$0.pid"; exec "$@"' "$n" "$@"; }
for lag in ${TW_LAGS:-0 1 2}; do
	rm -rf run ./*.pid
	stage sample tw-sample -q -m tiny --policy run -n 8 --max-lag $lag --max-tokens 24 prompts |
	    stage reward tw-reward -q f1 --advantage grpo |
	    stage train tw-train -q -m tiny --lora r=16,alpha=32 --lr 1e-3 --loss grpo --batch 64 -o run &
	until [ -s sample.pid ] && [ -s reward.pid ] && [ -s train.pid ]; do sleep 0.01; done
	printf '%s' "max-lag $lag: "
	"$TW_BUILD/bench/idle" "$(cat sample.pid)" "$(cat reward.pid)" "$(cat train.pid)"
	wait
	sed -n 's/.*"event":"step".*"wait_s":\([^,]*\),"busy_s":\([^,]*\),.*/\1 \2/p' run/metrics.jsonl | awk '
	    { wait += $1; busy += $2 } END { printf "           %d steps; the trainer waited %.2f s and was busy %.2f s\n", NR, wait, busy }'
done
