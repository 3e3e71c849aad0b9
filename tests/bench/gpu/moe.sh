#!/bin/bash
# moe.sh - LoRA steps (4 x 2048 tokens, r 16, all linear) of families with experts on this machine's GPU, random weights
# of the widths of Qwen3-30B-A3B and DeepSeek-V2-Lite and 4 layers: tokens a second, and the share of 989 TFLOP/s
# that the products with frozen weights take, those of attention and of the adapters not counted.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$here/../../../build}/bench:$PATH"
nvidia-smi --query-gpu=name --format=csv,noheader

# ours SHAPE MILLIONS: of parameters that a token meets in products
ours() {
    mixed cuda "$here/$1.json" 1 4 2048 "${RUNS:-5}" | awk -v m="$2" -v name="$1" '
        { print name ": " $0 } /^one adapter/ { printf "    share of the peak %.2f\n", $3 * 4 * m * 1e6 / 989e12 }'
}
ours qwen3-30b-a3b 539
ours deepseek-v2-lite 540
