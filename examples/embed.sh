#!/bin/bash
# embed.sh - embeddings: sentences that mean the same end up side by side, held-out ones, too.
#
#     MODEL=tiny OUT=run EPOCHS=8 examples/embed.sh
#
# Measured (two cores of a Xeon, 2026-11-29): 24 steps in 4 s of processor time; of 41 held-out sentences 4 find their
# own among all 41 before, 38 after 9 steps, all after 15.
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$examples/../build}/bin:$PATH"
MODEL=${MODEL:-tiny} EPOCHS=${EPOCHS:-8} OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"

# A group is an anchor, its positive and, where there are, negatives; here those of the other groups of a step serve.
awk -v out="$OUT" 'BEGIN {
    na = split("red blue green old new small big cold warm soft hard dark", a, " ")
    nb = split("house car dog cat tree river book chair lamp door boat bird", b, " ")
    for (i = 1; i <= na; i++)
        for (k = 1; k <= nb; k++)
            printf "{\"anchor\":\"I see a %s %s.\",\"positive\":\"The %s over there is %s.\"}\n", a[i], b[k], b[k],
                a[i] >(out ((i * 5 + k * 3) % 7 < 2 ? "/eval.jsonl" : "/groups.jsonl"))
}'

told() { sed -n 's/.*"event":"eval","step":\([0-9]*\).*"pos_sim":\([0-9.]*\).*"neg_sim":\([0-9.]*\),"accuracy":\([0-9.]*\).*/step \1: own \2, others \3, \4 find their own/p' "$1/metrics.jsonl"; }

tw-train -q -m "$MODEL" --lora r=8 --lr 0 --steps 1 --batch 41 --loss infonce --eval "$OUT/eval.jsonl" -o "$OUT/before" \
    "$OUT/groups.jsonl"
tw-train -m "$MODEL" --lora r=8 --lr 3e-3 --loss infonce,temperature=0.07 --batch 41 --epochs "$EPOCHS" \
    --eval "$OUT/eval.jsonl" -o "$OUT/run" "$OUT/groups.jsonl"
told "$OUT/before" | sed 's/^step [0-9]*/before/'
told "$OUT/run"
