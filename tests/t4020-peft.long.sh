#!/bin/sh
# t4020-peft.long.sh - adapters of ours in PEFT, of PEFT's in ours, merged weights in transformers.
# TW_TEST_PYTHON: a Python that has torch, transformers and peft (python3).
. "$(dirname "$0")/lib.sh"
export PY="${TW_TEST_PYTHON:-python3}"

for m in llama qwen2 qwen3 llama-bias qwen2_moe qwen3_moe glm4_moe; do
    export MODEL="$DATA/models/$m"
    test_case "$m: PEFT and Twinkle read each other's adapters" '
        "$PY" -c "import torch, transformers, peft" 2>/dev/null ||
            test_skip "needs Python with torch, transformers and peft (TW_TEST_PYTHON)"
        "$PY" "$TOP/tests/oracle/adapter.py" "$TW_BUILD/bin" "$MODEL"
    '
done
test_done
