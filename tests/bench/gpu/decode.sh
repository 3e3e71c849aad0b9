#!/bin/sh
# decode.sh - tokens a second of decoding on a GPU, ours and transformers', random weights, bf16, in one
# run on one card. usage: decode.sh [BUILD]; PROMPT, NEW, RUNS, PEER=0 (ours alone) by environment; and
# WAYS=plain,ring: few tokens by each of these (TW_STEP) in one process, whose sums must be the same.
here=$(dirname "$0")
b=${1:-build}
prompt=${PROMPT:-128} new=${NEW:-192} runs=${RUNS:-3}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for size in 0.6b 4b; do
	config=$here/qwen3-$size.json
	case $size in
	0.6b) cases='1 2 4 64 256 32:1 32:8 64:0:plain 64:0:top_p' peers='1 64 256' ;;
	4b) cases='1 2 4 64' peers='1 64' ;;
	esac
	[ -z "$WAYS" ] || cases='1 2 4 4:2 4:0:top_p'
	echo "== qwen3-$size shape, prompt $prompt, $new new"
	"$b/bench/decode" cuda "$config" "$prompt" "$new" "$runs" $cases
	[ "${PEER:-1}" = 0 ] && continue
	python3 "$here/decode.py" "$config" "$prompt" "$new" plain $peers
	[ $size = 0.6b ] && timeout 120 python3 "$here/decode.py" "$config" "$prompt" "$new" static 1 64
done | python3 "$here/table.py"
