#!/bin/bash
# train.sh [FOLDER] - training steps on this machine's GPU, ours and the peers', in one run. FOLDER (made when it is
# not there) takes 10 GB. Needs Python with torch, transformers, PEFT and, for the second peer, liger_kernel.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${TW_BUILD:-$here/../../../build}/bin:$PATH"
work=${1:-$(mktemp -d)}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
[ -e "$work/tokens.jsonl" ] || python3 "$here/shapes.py" "$work"
cd "$work"

# ours MODEL OPTION..: seven steps; the median of the last six. A run is ended before it saves what nobody needs.
ours() {
    rm -rf run
    tw-train -q -m "$@" --dtype bf16 --device cuda --steps 8 --keep 1 --force -o run tokens.jsonl &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ "$(grep -c '"event":"step"' run/metrics.jsonl 2>/dev/null || true)" != 7 ]; do
        sleep 0.02
    done
    kill -KILL $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    python3 - "$*" <<'P'
import json, statistics, sys
s = [json.loads(l) for l in open("run/metrics.jsonl")]
s = [x for x in s if x["event"] == "step"]
print(f"ours {sys.argv[1]}: {statistics.median(x['tokens_per_s'] for x in s[1:]):.0f} tok/s, "
        f"{s[-1]['memory'] / 1e9:.1f} GB, MFU {statistics.median(x['mfu'] for x in s[1:]):.2f}, loss {s[0]['loss']:.4f}")
P
}
peer() { python3 "$here/peer.py" "$@" 2>/dev/null || echo "$*: failed (out of memory, or not installed)"; }

lora="--lora r=16,alpha=32"
ours q06 $lora --batch 8 --micro-tokens 16384
ours q06 $lora --batch 8 --micro-tokens 16384 --recompute selective
ours q06 $lora --batch 8 --micro-tokens 8192
for p in hf liger; do peer q06 $p lora 8; done
ours q06 --batch 8 --micro-tokens 8192
for p in hf liger; do peer q06 $p full 8; done
ours q4 $lora --batch 4 --micro-tokens 8192
ours q4 $lora --batch 4 --micro-tokens 8192 --recompute selective
for p in hf liger; do peer q4 $p lora 4; done
ours q4 $lora --batch 4 --micro-tokens 8192 --recompute layer
ours q4 $lora --batch 4 --micro-tokens 4096 --recompute layer
for p in hf liger; do peer q4 $p lora 4 recompute; done
ours q4 --batch 4 --micro-tokens 2048 --recompute none
for p in hf liger; do peer q4 $p full 4 recompute; done
ours q06 $lora --batch 8 --micro-tokens 16384       # again: what the machine did meanwhile
