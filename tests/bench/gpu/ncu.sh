#!/bin/bash
# ncu.sh [FOLDER] - the five heaviest kernels of a LoRA step and of a step of all weights of the 0.6B shape (8 sequences
# of 2048): their share of the GPU's busy time, by trace.c, and one launch of each by Nsight Compute. FOLDER (made when
# it is not there) takes 10 GB. KINDS by environment: lora full
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${TW_BUILD:-$here/../../../build}" && pwd)
export PATH="$build/bin:$PATH"
work=${1:-$(mktemp -d)}
cuda=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$work"
[ -e "$work/q06/model.safetensors" ] || python3 "$here/shapes.py" "$work" q06
gcc -O2 -shared -fPIC "-I$cuda/include" "-I$cuda/extras/CUPTI/include" -o "$work/trace.so" "$here/trace.c" \
    "-L$cuda/lib64" "-L$cuda/extras/CUPTI/lib64" -lcupti
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:$cuda/extras/CUPTI/lib64"

# train STEPS OPTION..; --lr 0 and a metrics file that nobody reads: only kernels matter
train() {
    rm -rf "$work/run"
    tw-train -q -m "$work/q06" --dtype bf16 --device cuda --batch 8 --micro-tokens 8192 --keep 1 --force -o "$work/run" \
        --steps "$@" "$work/tokens.jsonl"
}

kind() { # NAME OPTION..
    local name=$1
    shift
    # the first steps try algorithms
    TW_TRACE_SKIP=14000 CUDA_INJECTION64_PATH=$work/trace.so train 8 "$@" >"$work/trace" 2>&1 || true
    awk -v name="$name" '/busy:/ { all = $(NF - 3); next } /idle:/ { exit } all && $4 !~ /^(memset|copy)$/ && n < 5 {
        printf "%s %s %.1f %s %s\n", name, $4, 100 * $1 / all, $2, $3; n++ }' "$work/trace" >"$work/top"
    while read -r name kernel share calls us; do
        # a launch of the second half
        rm -rf "$work/run"
        ncu --clock-control none --kernel-name-base mangled -k "$kernel" --launch-skip $((calls / 2)) --launch-count 1 --kill yes \
            --metrics "$metrics" --page raw --csv "$(command -v tw-train)" -q -m "$work/q06" --dtype bf16 --device cuda \
            --batch 8 --micro-tokens 8192 --keep 1 --force -o "$work/run" --steps 5 "$@" "$work/tokens.jsonl" \
            >"$work/ncu.csv" 2>/dev/null || true
        python3 - "$work/ncu.csv" "$name" "$kernel" "$share" "$us" <<'P'
import csv, sys
rows = list(csv.reader(l for l in open(sys.argv[1]) if l.startswith('"')))
at = dict(zip(rows[0], rows[2])) if len(rows) > 2 else {}
get = lambda k: next((f"{float(v.replace(',', '')):.0f}" for n, v in at.items() if n.startswith(k)), "-")
print(f"| {sys.argv[2]} | `{sys.argv[3][:60]}` | {sys.argv[4]} % | {sys.argv[5]} | "
        f"{get('dram__throughput')} | {get('sm__pipe_tensor')} | {get('sm__warps_active')} |")
P
    done <"$work/top"
}
metrics=dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed
metrics=$metrics,sm__warps_active.avg.pct_of_peak_sustained_active
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
echo "| step | kernel | share of busy time | us | DRAM % | tensor pipe % | warps % |"
echo "|---|---|---|---|---|---|---|"
for k in ${KINDS:-lora full}; do
    case $k in
    lora) kind lora --lora r=16,alpha=32 ;;
    full) kind full --lr 1e-5 ;;
    esac
done
