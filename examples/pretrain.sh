#!/bin/bash
# pretrain.sh [TEXT FILE].. - a model from random weights on plain text: here the headers of Twinkle's own source.
#
#     MODEL=tiny OUT=run STEPS=40 examples/pretrain.sh book.txt
#
# MODEL gives the tokenizer and the shapes, none of its weights are used (--config-json takes other shapes).
# Measured (two cores, Zen 4, 2026-11-28): 40 steps of 16 rows of up to 256 tokens in 38 s; perplexity of the
# paragraphs kept apart 213, 173, 136, 123 after 10, 20, 30, 40 steps.
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$examples/../build}/bin:$PATH"
MODEL=${MODEL:-tiny} STEPS=${STEPS:-40} OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"
[ $# -gt 0 ] || set -- "$examples"/../lib/*/*.h

# a paragraph is a document; every tenth is kept for measuring
cat "$@" | awk 'BEGIN { RS = "" } { gsub(/\t/, " "); gsub(/\n/, "\r"); print }' |
    sed 's/["\\]/\\&/g; s/\r/\\n/g; s/.*/{"text":"&"}/' >"$OUT/text.jsonl"
awk 'NR % 10' "$OUT/text.jsonl" >"$OUT/train.jsonl"
awk 'NR % 10 == 0' "$OUT/text.jsonl" >"$OUT/test.jsonl"

# documents one behind the other, an end-of-text after each, in rows of 256 tokens
tw-encode -m "$MODEL" --add-eos on --truncation split --max-length 256 -o "$OUT/train.tws" "$OUT/train.jsonl"
tw-train -m "$MODEL" --init random --lr 3e-3 --schedule cosine,warmup=10 --weight-decay 0.1 \
    --batch 16 --steps "$STEPS" --eval "$OUT/test.jsonl" --eval-every 10 -o "$OUT/run" "$OUT/train.tws"

grep '"event":"eval"' "$OUT/run/metrics.jsonl" |
    sed 's/.*"step":\([0-9]*\).*"perplexity":\([0-9]*\).*/step \1: perplexity \2/'
echo '{"prompt":"/* Returns "}' | tw-sample -m "$OUT/run" --max-tokens 40 --temperature 0.5 |
    sed 's/.*"text":"\(.*\)","tokens".*/\1/'
