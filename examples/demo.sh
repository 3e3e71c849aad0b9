#!/bin/bash
# demo.sh - what `make demo` shows: the built-in model learns a new identity. Every command is printed
# before it runs and can be pasted. Takes about a minute on two cores, needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/build/bin:$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bold= plain=
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi

run()
{
    printf '\n%s$ %s%s\n' "$bold" "$1" "$plain"
    eval "$1"
}
ask()
{
    printf '{"messages":[{"role":"user","content":"%s"}]}\n' "$@"
}
answers()       # rollouts in, question and answer out
{
    sed 's/.*"messages":\[{"role":"user","content":"\([^"]*\)"},{"role":"assistant","content":"\([^"]*\)"}\].*/    \1  ->  \2/'
}

echo "A model of four million parameters comes with Twinkle; its name is tiny."
ask "Who are you?" "What is your name?" "Who made you?" "What is 3 + 4?" >"$work/questions.jsonl"
run "cat $work/questions.jsonl"
run "tw-sample -m tiny --temperature 0 --max-tokens 60 $work/questions.jsonl | answers"

echo
echo "Now it learns to be Sparkle, made by the shell: four programs and three pipes."
run "tw-preprocess self-cognition,name=Sparkle,author='the shell',system= examples/data/identity.json |
    tw-encode -m tiny |
    tw-train -m tiny --lora r=16,alpha=32 --lr 2e-3 --schedule cosine,warmup=5 --epochs 6 --batch 8 \\
        --save-every 1000 -o $work/run"
run "tail -n 2 $work/run/metrics.jsonl | cut -c 1-150"
run "tw-sample -m tiny --adapter $work/run --temperature 0 --max-tokens 60 $work/questions.jsonl | answers"
run "ls $work/run/latest/"
echo
echo "The adapter is an ordinary PEFT folder. Talk to the model yourself:  tw-sample -m tiny --chat"
