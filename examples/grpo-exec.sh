#!/bin/bash
# grpo-exec.sh - reinforcement by a reward of one's own: a program that reads records and writes numbers, here
# last-number.sh. Two rewards add up: its word, and a tenth for a reply of at most 16 tokens.
#
#     MODEL=tiny OUT=run ROWS=192 JUDGE=./judge examples/grpo-exec.sh
#
# Measured (two cores, Zen 4, 2026-11-28): 24 steps of 64 tries in half a minute; the mean reward, of 1.1 at best, is 0.72
# over the first three steps and 1.02 over the last three; greedy, of 200 sums kept apart 127 are right before, 193 after.
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$examples/../build}/bin:$PATH"
MODEL=${MODEL:-tiny} ROWS=${ROWS:-192} JUDGE=${JUDGE:-"$examples/last-number.sh"} OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"

awk -f "$examples/sums.awk" -v n="$ROWS" -v ask='Count %d and then %d more. Where are you?' |
    tw-sample -m "$MODEL" --policy "$OUT/run" -n 8 --max-lag 0 --max-tokens 24 |
    tw-reward --exec "$JUDGE" 'length,min=1,max=16,span=16,unit=tokens*0.1' --advantage grpo |
    tee "$OUT/rollouts.jsonl" |
    tw-train -m "$MODEL" --lora r=16,alpha=32 --lr 1e-3 --loss grpo --batch 64 -o "$OUT/run"

awk -f "$examples/plot.awk" -v key=reward_mean -v min=0 "$OUT/run/metrics.jsonl"
echo "first and last of what it said:"
sed -n 's/.*"text":"\([^"]*\)".*"rewards":\({[^}]*}\).*/\1  \2/p' "$OUT/rollouts.jsonl" | sed -n '1p;$p'
