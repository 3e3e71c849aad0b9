#!/bin/bash
# train-tiny.sh DATA OUT - how share/models/tiny was made: a Qwen3-type model of four million parameters
# trained from nothing on a few megabytes of text and short generated conversations. DATA holds
# c4_demo.jsonl, wiki_demo.txt, alpaca_en_demo.json, identity.json (LLaMA-Factory's data/) and
# gsm8k/train.jsonl. The tokenizer is kept: share/models/tiny (tiny/tokenizer.py made it once). Measured on
# 16 cores: 11 minutes; 100 of the 100 one-digit sums right, 99 of 100 two-digit ones.
set -euo pipefail
data=${1:?usage: train-tiny.sh DATA OUT}
out=${2:?usage: train-tiny.sh DATA OUT}
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$here/../build}/bin:$PATH"
tiny=$here/../share/models/tiny
mkdir -p "$out"

# Conversations: generated ones, its own identity, short instructions (written out several times: they are
# few beside the generated ones).
awk -v seed=1 -v rows="${ROWS:-60000}" -f "$here/tiny/chat.awk" >"$out/generated.jsonl"
tw-preprocess -q self-cognition,name=Tiny,author=Twinkle,system= "$data/identity.json" >"$out/identity.jsonl"
tw-preprocess -q --filter length,max=1200 alpaca "$data/alpaca_en_demo.json" >"$out/alpaca.jsonl"
repeat() { for _ in $(seq "$1"); do cat "$2"; done; }
{ cat "$out/generated.jsonl"; repeat 10 "$out/identity.jsonl"; repeat 4 "$out/alpaca.jsonl"; } |
    tw-encode -q -m "$tiny" --max-length 512 --truncation drop -o "$out/chat.tws"
{ head -n 25000 "$out/generated.jsonl"; repeat 4 "$out/identity.jsonl"; repeat 8 "$out/alpaca.jsonl"; } |
    tw-encode -q -m "$tiny" --max-length 512 --truncation drop -o "$out/talk.tws"

# Plain text: an encyclopedia, the web, word problems.
tw-preprocess -q text "$data/c4_demo.jsonl" >"$out/text.jsonl"
sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g; s/.*/{"text":"&"}/' "$data/wiki_demo.txt" >>"$out/text.jsonl"
tw-encode -q -m "$tiny" --max-length 512 --truncation split --add-eos on -o "$out/text.tws" "$out/text.jsonl"

# Text and talk together first, then talk alone with a falling rate. On 16 cores the first takes 7 minutes
# (8.6 million tokens, loss 1.67 on the mixture), the second 4.
tw-train -m "$tiny" --init random --dtype "${DTYPE:-bf16}" -o "$out/base" --resume \
    --lr 3e-3 --schedule cosine,warmup=100 --weight-decay 0.1 --optimizer adamw,beta2=0.95 \
    --batch 64 --epochs "${EPOCHS:-3}" --save-every 500 "$out/text.tws" "$out/chat.tws"
tw-train -m "$out/base" --dtype "${DTYPE:-bf16}" -o "$out/tuned" --resume \
    --lr 1e-3 --schedule linear,warmup=20 --weight-decay 0.1 --optimizer adamw,beta2=0.95 \
    --batch 64 --epochs "${TUNE_EPOCHS:-2}" --save-every 500 "$out/talk.tws"
echo "$out/tuned/latest"
