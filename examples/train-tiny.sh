#!/bin/bash
# train-tiny.sh DATA OUT - how share/models/tiny was made: a Qwen3-type model of four million parameters
# trained from nothing on a few megabytes of text and short generated conversations. DATA holds
# c4_demo.jsonl, wiki_demo.txt, alpaca_en_demo.json, identity.json (LLaMA-Factory's data/) and
# gsm8k/train.jsonl. The tokenizer is kept: share/models/tiny (tiny/tokenizer.py made it once).
set -euo pipefail
data=${1:?usage: train-tiny.sh DATA OUT}
out=${2:?usage: train-tiny.sh DATA OUT}
here=$(cd "$(dirname "$0")" && pwd)
export PATH="$here/../build/bin:$PATH"
tiny=$here/../share/models/tiny
mkdir -p "$out"

# Conversations: generated ones, its own identity, short instructions.
awk -v seed=1 -v rows="${ROWS:-60000}" -f "$here/tiny/chat.awk" >"$out/generated.jsonl"
for i in 1 2 3 4 5 6 7 8 9 10; do
    tw-preprocess -q self-cognition,name=Tiny,author=Twinkle,system= "$data/identity.json"
done >"$out/identity.jsonl"
for i in 1 2 3 4; do
    tw-preprocess -q --filter length,max=600 alpaca "$data/alpaca_en_demo.json"
done >"$out/alpaca.jsonl"
tw-encode -q -m "$tiny" --max-length 512 --truncation drop -o "$out/chat.tws" \
    "$out/generated.jsonl" "$out/identity.jsonl" "$out/alpaca.jsonl"

# Plain text: an encyclopedia, the web, word problems.
tw-preprocess -q text "$data/c4_demo.jsonl" >"$out/text.jsonl"
sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g; s/.*/{"text":"&"}/' "$data/wiki_demo.txt" >>"$out/text.jsonl"
tw-encode -q -m "$tiny" --max-length 512 --truncation split --add-eos on -o "$out/text.tws" "$out/text.jsonl"

# Text and talk together first, then talk alone with a falling rate.
tw-train -m "$tiny" --init random --dtype "${DTYPE:-bf16}" -o "$out/base" --resume \
    --lr 3e-3 --schedule cosine,warmup=100 --weight-decay 0.1 --optimizer adamw,beta2=0.95 \
    --batch 64 --epochs "${EPOCHS:-3}" --save-every 500 "$out/text.tws" "$out/chat.tws"
tw-train -m "$out/base" --dtype "${DTYPE:-bf16}" -o "$out/tuned" --resume \
    --lr 1e-3 --schedule linear,warmup=20 --weight-decay 0.1 --optimizer adamw,beta2=0.95 \
    --batch 64 --epochs "${TUNE_EPOCHS:-2}" --save-every 500 "$out/chat.tws"
echo "$out/tuned/latest"
