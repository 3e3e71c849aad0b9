#!/bin/bash
# demo.sh - what `make demo` shows: the built-in model learns a new identity. Every command is printed before
# it runs and can be pasted. Takes about a minute on two cores and no network; its files stay in build/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf build/demo
mkdir -p build/demo
bold= plain=
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi

run()
{
    printf '\n%s$ %s%s\n' "$bold" "$1" "$plain"
    eval "$1"
}

echo "A model of four million parameters comes with Twinkle; its name is tiny. It can talk a little:"
run 'export PATH="$PWD/build/bin:$PATH"'
run 'printf '\''{"messages":[{"role":"user","content":"%s"}]}\n'\'' "Who are you?" "What is your name?" \
    "Who made you?" "What is 3 + 4?" "What is the capital of France?" >build/demo/ask.jsonl'
run 'tw-sample -m tiny --temperature 0 --max-tokens 60 build/demo/ask.jsonl |
    sed '\''s/.*"text":"\([^"]*\)".*/\1/'\'''
printf '\nNow it learns to be Sparkle, made by the shell: three programs and two pipes.\n'
run 'tw-preprocess self-cognition,name=Sparkle,author="the shell",system= examples/data/identity.json |
    tw-encode -m tiny |
    tw-train -m tiny --lora r=16,alpha=32 --lr 2e-3 --schedule cosine,warmup=5 --epochs 6 --batch 8 \
        --save-every 1000 -o build/demo/run'
run 'tail -n 1 build/demo/run/metrics.jsonl | cut -c 1-160'
run 'tw-sample -m tiny --adapter build/demo/run --temperature 0 --max-tokens 60 build/demo/ask.jsonl |
    sed '\''s/.*"text":"\([^"]*\)".*/\1/'\'''
printf '\nThe adapter is an ordinary PEFT folder:\n'
run 'ls build/demo/run/latest/'
printf '\nTalk to the model yourself:  tw-sample -m tiny --adapter build/demo/run --chat\n'
