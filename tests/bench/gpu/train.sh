#!/bin/bash
# train.sh [FOLDER] - training steps on this machine's GPUs, ours and the peers', in one run, and a table of them with
# ratios, memory and model FLOP utilisation. FOLDER (made when it is not there) takes 10 GB. By environment:
#     ROWS    which of full06 lora06 more06 optim06 lora4 again4 more4 full4 mixed start, default all; of several GPUs
#             each takes a part of them, so that a row's peers are measured on the same card as ours
#     PEERS   hf (transformers and PEFT), liger (the same with Liger's kernels), default both; empty: ours alone
# Needs Python with torch, transformers, PEFT and, for the second peer, liger_kernel. One card takes about 7 minutes,
# three of them the first peer's; four cards two. (lora4, again4 and more4 read 8 GB.)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${TW_BUILD:-$here/../../../build}" && pwd)
export PATH="$build/bin:$PATH"
work=${1:-$(mktemp -d)}
rows=${ROWS:-full06 lora06 more06 optim06 lora4 again4 more4 full4 mixed start}
peers=${PEERS-liger hf}
mkdir -p "$work"
work=$(cd "$work" && pwd)

# A model's folder, made by the first row that wants it.
model() {
    (
        flock 9
        [ -e "$work/$1/model.safetensors" ] || python3 "$here/shapes.py" "$work" "$1"
    ) 9>"$work/lock"
}

# MODEL: a folder for adapters, which are of no use beside random weights; for all weights their shape
options() {
    case $1 in
    *-random) echo "--init random --config-json $here/qwen3-${1%-random}.json" ;;
    *) echo "-m $work/$1" ;;
    esac
}

# steps N RUN MODEL OPTION..: trains N steps and ends the run there, before it saves what nobody needs.
steps() {
    local n=$1 run=$2 pid
    rm -rf "$run"
    tw-train -q $(options "$3") "${@:4}" --dtype bf16 --device cuda --steps $((n + 1)) --save-every 1000 --keep 1 \
        --force -o "$run" "$work/tokens.jsonl" &
    pid=$!
    while kill -0 $pid 2>/dev/null &&
        [ "$(grep -c '"event":"step"' "$run/metrics.jsonl" 2>/dev/null || true)" != "$n" ]; do
        sleep 0.02
    done
    kill -KILL $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
}

# ours MODEL OPTION..: nine steps; the last five by the clock.
ours() {
    local run=$work/run.$BASHPID plan
    plan=$(tw-train -q $(options "$1") "${@:2}" --dtype bf16 --device cuda --steps 9 --force --plan \
        "$work/tokens.jsonl" | sed -n 's/^memory: total .* \([0-9]*\) bytes/\1/p') || true
    steps 9 "$run" "$@"
    python3 - "$*" "$run/metrics.jsonl" "$plan" <<'P' || echo "ours $*: failed"
import json, sys
s = [x for x in map(json.loads, open(sys.argv[2])) if x["event"] == "step"]
rate = (s[8]["tokens"] - s[3]["tokens"]) / (s[8]["time"] - s[3]["time"])
at = [x["memory"] / 1e9 for x in s]
print(f"ours {sys.argv[1]}: {rate:.0f} tok/s, {at[8]:.2f} GB (step 1 {at[0]:.2f}, planned {int(sys.argv[3]) / 1e9:.2f})"
        f", MFU {s[8]['mfu'] * rate / s[8]['tokens_per_s']:.2f}, losses {s[0]['loss']:.4f} .. {s[8]['loss']:.4f}",
        flush=True)
P
    rm -rf "$run"
}

# peer SIZE KIND SEQUENCES [recompute]
peer() {
    for p in $peers; do
        python3 "$here/peer.py" "$here/qwen3-$1.json" $p "${@:2}" 2>/dev/null ||
            echo "$p ${*:2}: failed (out of memory, or not installed)"
    done
}

lora="--lora r=16,alpha=32"
row() {
    echo "== $1, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i "${CUDA_VISIBLE_DEVICES:-0}")"
    case $1 in
    lora06 | more06 | start) model q06 ;;
    lora4 | again4 | more4) model q4 ;;
    esac
    case $1 in
    full06)
        ours 0.6b-random --batch 8 --micro-tokens 8192
        peer 0.6b full 8
        ;;
    optim06)
        ours 0.6b-random --batch 8 --micro-tokens 8192 --optimizer adamw,states=8bit
        ours 0.6b-random --batch 8 --micro-tokens 8192 --optimizer muon
        ;;
    lora06)
        ours q06 $lora --batch 8 --micro-tokens 8192
        peer 0.6b lora 8
        ;;
    more06)
        ours q06 $lora --batch 8 --micro-tokens 16384
        ours q06 $lora --batch 8 --micro-tokens 16384 --recompute selective
        ;;
    lora4)
        ours q4 $lora --batch 4 --micro-tokens 8192 --recompute selective
        peer 4b lora 4
        ;;
    again4)
        ours q4 $lora --batch 4 --micro-tokens 4096 --recompute layer
        peer 4b lora 4 recompute
        ;;
    more4)
        ours q4 $lora --batch 4 --micro-tokens 8192
        ours q4 $lora --batch 4 --micro-tokens 8192 --recompute layer
        ;;
    full4)
        ours 4b-random --batch 4 --micro-tokens 2048 --recompute none
        peer 4b full 4 recompute
        ;;
    mixed) "$build/bench/mixed" cuda "$here/qwen3-0.6b.json" 3 8 2048 5 || true ;;
    start) start ;;
    *) echo "train.sh: $1: no such row" ;;
    esac
}

# From the start of the process to the end of the first step of 2048 tokens, which is later than that of its backward
# pass; files are in the page cache. Five times, sorted.
start() {
    local run=$work/run.start
    cat "$work/q06/model.safetensors" >/dev/null
    for kind in "" "$lora"; do
        for i in 1 2 3 4 5; do
            python3 -c 'import time; print(time.time())'
            steps 1 "$run" q06 $kind --batch 1
            sed -n '/"event":"step"/s/.*"time":"*\([0-9.]*\).*/\1/p' "$run/metrics.jsonl" | head -1
        done | paste - - | awk '{ printf "%.2f\n", $2 - $1 }' | sort -n | paste -sd' ' |
            sed "s/^/start ${kind:-all weights}, s: /"
    done
    rm -rf "$run"
}

[ -e "$work/tokens.jsonl" ] || python3 "$here/shapes.py" "$work"
gpus=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}
n=$(echo "$gpus" | tr ',' '\n' | grep -c .)

# part I: each N-th row from the I-th on, on the I-th card
part() {
    local k=0
    export CUDA_VISIBLE_DEVICES=$(echo "$gpus" | cut -d, -f"$1")
    for r in $rows; do
        k=$((k + 1))
        [ $(((k - 1) % n + 1)) != "$1" ] || row "$r"
    done
}
parts() {
    if [ "$n" = 1 ]; then
        part 1
        return
    fi
    for i in $(seq 1 "$n"); do
        part "$i" >"$work/out.$i" 2>&1 &
    done
    wait
    cat "$work"/out.*
}
parts | python3 "$here/table.py"
