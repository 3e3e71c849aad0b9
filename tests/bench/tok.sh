#!/bin/sh
# Tokenizing speed, one thread. TW_TOK: a folder with tokenizer.json, TW_TEXT: JSONL files with
# `text`; without them the cut tokenizers of tests/data on repeated lines, which only shows that the
# benchmark runs.
TOP=$(cd "$(dirname "$0")/../.." && pwd)
if [ -n "$TW_TOK" ] && [ -n "$TW_TEXT" ]; then
	# the files are split at spaces
	exec "$TW_BUILD/bench/tok" "$TW_TOK" $TW_TEXT
fi
tmp=$(mktemp) || exit 1
trap 'rm -f "$tmp"' EXIT
for i in 1 2 3 4 5 6 7 8; do
	sed 's/^/{"text":/; s/$/}/' "$TOP/tests/data/tokenizers/corpus.jsonl"
done >"$tmp"
for t in qwen3 llama2; do
	printf '%s: ' $t
	"$TW_BUILD/bench/tok" "$TOP/tests/data/tokenizers/$t" "$tmp" || exit 1
done
"$TW_BUILD/bench/long" "$TOP/tests/data/tokenizers/qwen3" 1 2
