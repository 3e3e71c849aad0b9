#!/bin/bash
# grpo.sh - reinforcement in one pipe: tw-sample tries, tw-reward judges, tw-train learns, all three at once; the run's
# folder is the way back from the trainer to the sampler.
#
#     MODEL=tiny OUT=run ROWS=256 examples/grpo.sh
#
# Measured (two cores, Zen 4, 2026-11-28): greedy, of 200 sums kept apart, 30.5 % right after 16 examples, 100 % after 32
# steps of reinforcement; 33 s.
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$examples/../build}/bin:$PATH"
MODEL=${MODEL:-tiny} ROWS=${ROWS:-256} OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"

# a start: a few replies to learn the form from
awk -f "$examples/sums.awk" -v n=16 -v as=chat |
    tw-train -m "$MODEL" --lora r=16,alpha=32 --lr 1e-3 --schedule cosine,warmup=5 --epochs 2 -o "$OUT/start"
echo "start: $("$examples/evaluate.sh" --adapter "$OUT/start")"

# eight tries of each new sum; --max-lag 0: always from the newest weights, so that the same seed ends in the same
# bytes (the default of 1 lets sampling and training overlap)
awk -f "$examples/sums.awk" -v n="$ROWS" -v seed=2 |
    tw-sample -m "$MODEL" --policy "$OUT/run" -n 8 --max-lag 0 --max-tokens 24 |
    tw-reward exact,key=reply --advantage grpo |
    tw-train -m "$MODEL" --adapter "$OUT/start" --lr 1e-3 --loss grpo --batch 64 -o "$OUT/run"

awk -f "$examples/plot.awk" -v key=reward_mean -v min=0 -v max=1 "$OUT/run/metrics.jsonl"
echo "after: $("$examples/evaluate.sh" --adapter "$OUT/run")"
