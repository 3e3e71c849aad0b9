#!/bin/bash
# families.sh - LoRA steps (4 x 2048 tokens, r 16, all linear, with AdamW) and decoding of families beyond Llama's on
# this machine's GPU, ours and the peers', in one run, and a table of them; random weights: Qwen3.5-4B, and four layers
# of the widths of Qwen3-30B-A3B and DeepSeek-V2-Lite. SHAPES picks some, PEERS (hf liger) trainers, RUNS (5) the steps
# of a median.
# Needs Python with torch, transformers, PEFT; flash-linear-attention and liger_kernel where there are.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${TW_BUILD:-$here/../../../build}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
peer() { timeout 300 python3 "$here/peer.py" "$@" 2>/dev/null || echo "$*: failed (out of memory, or not installed)"; }

for shape in ${SHAPES:-qwen3.5-4b qwen3-30b-a3b deepseek-v2-lite}; do
    config=$here/$shape.json
    echo "== $shape: training"
    "$build/bench/mixed" cuda "$config" 1 4 2048 "${RUNS:-5}" || true
    for p in ${PEERS-hf liger}; do peer "$config" $p lora 4; done
    echo "== $shape: decoding, prompt 128, 192 new"
    "$build/bench/decode" cuda "$config" 128 192 3 1 64 || true
    timeout 120 python3 "$here/decode.py" "$config" 128 192 plain 1 64 2>/dev/null || echo "transformers: failed"
done | python3 "$here/table.py"
