#!/bin/sh
# gemm.sh - the CPU device's products, one thread and all, by processor time and by the clock
set -eu
: "${TW_BUILD:=build}"
TW_BENCH_CPU=1 "$TW_BUILD/bench/gemm" 1 auto 7
"$TW_BUILD/bench/gemm" 0 auto 7
