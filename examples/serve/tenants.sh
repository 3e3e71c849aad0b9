#!/bin/bash
# tenants.sh - four tenants at once on one copy of a model: conversations, plain text, reinforcement, log-probabilities.
#
#     tw-serve -m tiny --listen 127.0.0.1:8000 --state state &
#     TW_SERVER=http://127.0.0.1:8000 examples/serve/tenants.sh
#
# Each has a key, and so its own sessions, adapters and quota; the commands are those of a machine of one's own. The server
# merges their steps; on a CPU each one's adapter has the bytes that it would have had alone.
set -euo pipefail
examples=$(cd "$(dirname "$0")/.." && pwd)
export PATH="${TW_BUILD:-$examples/../build}/bin:$PATH" TW_SERVER
: "${TW_SERVER:?is the address of a tw-serve}"
MODEL=${MODEL:-tiny} ROWS=${ROWS:-32} OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"

anna()      # fine-tuning on conversations
{
    awk -f "$examples/sums.awk" -v n="$ROWS" -v as=chat |
        tw-train -q -m "$MODEL" --lora r=16,alpha=32 --lr 1e-3 --batch 8 --epochs 2 -o "$OUT/anna"
}
ben()       # pre-training on plain text
{
    for i in $(seq "$ROWS"); do
        echo '{"text":"A pipe joins two programs: what the first one writes is what the second one reads."}'
    done | tw-train -q -m "$MODEL" --lora r=8 --lr 1e-3 --batch 8 -o "$OUT/ben"
}
cleo()      # reinforcement: sampler, reward and trainer in one pipe
{
    awk -f "$examples/sums.awk" -v n="$ROWS" -v seed=2 |
        tw-sample -q -m "$MODEL" --policy "$OUT/cleo" -n 4 --max-tokens 16 |
        tw-reward -q length,min=1,max=8,span=40 --advantage grpo |
        tw-train -q -m "$MODEL" --lora r=4 --lr 1e-3 --loss grpo --batch 32 -o "$OUT/cleo"
}
dan()       # log-probabilities of what others wrote
{
    awk -f "$examples/sums.awk" -v n="$ROWS" -v as=chat | tw-sample -q -m "$MODEL" --score -o "$OUT/dan.jsonl"
}

for who in anna ben cleo dan; do
    TW_API_KEY=tml-$who $who &
done
for job in $(jobs -p); do
    wait "$job"
done
for who in anna ben cleo; do
    echo "$who: $(grep -c '"event":"step"' "$OUT/$who/metrics.jsonl") steps, $(basename "$(readlink "$OUT/$who/latest")")"
done
echo "dan: $(wc -l <"$OUT/dan.jsonl") records scored"
