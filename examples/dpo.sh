#!/bin/bash
# dpo.sh - preferences: of two replies to each prompt one was chosen (DPO; the reference is the base, adapter off).
#
#     MODEL=tiny OUT=run ROWS=256 examples/dpo.sh
#
# Measured (two cores, Zen 4, 2026-11-28): 32 steps in 18 s; all 64 held-out pairs told apart after 8; sampled replies
# that are short: 50 of 100 before, 100 after.
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$examples/../build}/bin:$PATH"
MODEL=${MODEL:-tiny} ROWS=${ROWS:-256} OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"

ask='What is %d + %d?'          # tiny answers that now shortly, now at length: the pairs prefer the short reply
awk -f "$examples/sums.awk" -v n="$ROWS" -v as=pair -v ask="$ask" >"$OUT/pairs.jsonl"
awk -f "$examples/sums.awk" -v n=64 -v part=test -v seed=3 -v as=pair -v ask="$ask" >"$OUT/eval.jsonl"
awk -f "$examples/sums.awk" -v n=100 -v part=test -v ask="$ask" >"$OUT/prompts.jsonl"

tw-train -m "$MODEL" --lora r=16,alpha=32 --lr 5e-4 --loss dpo,beta=0.1 --batch 16 --epochs 2 \
    --eval "$OUT/eval.jsonl" --eval-every 8 -o "$OUT/run" "$OUT/pairs.jsonl"

grep '"event":"eval"' "$OUT/run/metrics.jsonl" |
    sed 's/.*"step":\([0-9]*\).*"loss":\([0-9.]*\).*accuracies":\([0-9.]*\).*/step \1: loss \2, \3 of the held-out pairs told apart/'
for adapter in "" "--adapter $OUT/run"; do
    tw-sample -q -m "$MODEL" $adapter --max-tokens 32 "$OUT/prompts.jsonl" |
        awk -v who="${adapter:+after}" '/"text":"[0-9]/ { n++ } END { print (who ? who : "before") ": " n + 0 " of " NR " replies are short" }'
done
