#!/bin/bash
# sft.sh - supervised fine-tuning: an adapter learns from conversations, and a held-out file says when to stop.
#
#     MODEL=tiny OUT=run ROWS=64 examples/sft.sh
#
# Measured (two cores, Zen 4, 2026-11-28): 64 rows, 24 steps in 8 s; greedy, of 200 sums kept apart, it gets 24 % right before
# and 97 % after.
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$examples/../build}/bin:$PATH"
MODEL=${MODEL:-tiny} ROWS=${ROWS:-64} OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"

awk -f "$examples/sums.awk" -v n="$ROWS" -v as=chat >"$OUT/train.jsonl"
awk -f "$examples/sums.awk" -v n=64 -v part=test -v seed=3 -v as=chat >"$OUT/eval.jsonl"
tw-encode -m "$MODEL" --max-length 512 -o "$OUT/train.tws" "$OUT/train.jsonl"   # once; every run reads the shard

tw-train -m "$MODEL" --lora r=16,alpha=32 --lr 1e-3 --schedule cosine,warmup=5 --epochs 6 --batch 16 \
    --eval "$OUT/eval.jsonl" --keep-best --early-stop 3 -o "$OUT/run" "$OUT/train.tws"

grep '"event":"eval"' "$OUT/run/metrics.jsonl" | sed 's/.*"step":\([0-9]*\).*"loss":\([0-9.]*\).*/step \1: loss \2/'
echo "before: $("$examples/evaluate.sh")"
echo "after:  $("$examples/evaluate.sh" --adapter "$OUT/run/best")"
