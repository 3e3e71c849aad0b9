#!/bin/bash
# grpo-sums.sh [RUN] - reinforcement in one pipe: the built-in model learns to answer sums that are asked in words it
# was not trained on. Three programs run at once; RUN is the way back from the trainer to the sampler.
# Measured on two cores (Zen 4, 2026-11-28): 12 steps of 64 rollouts in 11 s, mean reward 0.59 in the first step,
# 0.93 on average over the last three.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH="$here/../build/bin:$PATH"
run=${1:-$(mktemp -d)/run}

prompts()       # COUNT SEED: sums of two-digit numbers with their answers
{
    awk -v n="$1" -v seed="$2" 'BEGIN { srand(seed); for (i = 0; i < n; i++) {
        a = 10 + int(rand() * 90); b = 10 + int(rand() * 90)
        printf "{\"messages\":[{\"role\":\"user\",\"content\":\"How many is %d and %d together?\"}],\"answer\":\"%d\"}\n", a, b, a + b } }'
}

# The reward: 1 where the last number of the reply is the answer. It reads records and writes numbers, flushed.
reward='while IFS= read -r r; do
    t=${r#*\"completion\":\{\"text\":\"}; t=${t%%\"*}; t=${t%.}
    a=${r#*\"answer\":\"}; a=${a%%\"*}
    [ "${t##*[!0-9]}" = "$a" ] && echo 1 || echo 0
done'

prompts 96 3 |
    tw-sample -m tiny --policy "$run" -n 8 --max-lag 0 --max-tokens 24 |
    tw-reward --exec "$reward" --advantage grpo |
    tw-train -m tiny --lora r=16,alpha=32 --lr 1e-3 --loss grpo --batch 64 -o "$run"

echo "step  mean reward"
sed -n 's/.*"event":"step","step":\([0-9]*\),.*"reward_mean":\([0-9.]*\),.*/\1     \2/p' "$run/metrics.jsonl"
