#!/bin/bash
# kto.sh - preferences without pairs: each reply has a label, good or bad (KTO; the reference is the base).
#
#     MODEL=tiny OUT=run ROWS=256 examples/kto.sh
#
# Measured (two cores, Zen 4, 2026-11-28): 64 steps in 15 s; sampled replies that are short: 50 of 100 before, 100 after.
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$examples/../build}/bin:$PATH"
MODEL=${MODEL:-tiny} ROWS=${ROWS:-256} OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"

ask='What is %d + %d?'          # tiny answers that now shortly, now at length: the short reply is the good one
awk -f "$examples/sums.awk" -v n="$ROWS" -v as=label -v ask="$ask" >"$OUT/labels.jsonl"
awk -f "$examples/sums.awk" -v n=100 -v part=test -v ask="$ask" >"$OUT/prompts.jsonl"

tw-train -m "$MODEL" --lora r=16,alpha=32 --lr 5e-4 --loss kto,beta=0.1 --batch 16 --epochs 4 \
    -o "$OUT/run" "$OUT/labels.jsonl"

for adapter in "" "--adapter $OUT/run"; do
    tw-sample -q -m "$MODEL" $adapter --max-tokens 32 "$OUT/prompts.jsonl" |
        awk -v who="${adapter:+after}" '/"text":"[0-9]/ { n++ } END { print (who ? who : "before") ": " n + 0 " of " NR " replies are short" }'
done
