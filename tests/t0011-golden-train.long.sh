#!/bin/sh
# A real model of 135 million parameters against the reference: log-probabilities, gradients, AdamW.
# TW_TEST_SMOLLM2 names the folder of SmolLM2-135M-Instruct (float32 values of its Q4_1 GGUF).
. "$(dirname "$0")/lib.sh"

test_case 'SmolLM2 trains as the reference does' '
	[ -f "$TW_TEST_SMOLLM2/model.safetensors" ] || test_skip "TW_TEST_SMOLLM2 is not a model"
	golden-train "$TW_TEST_SMOLLM2" "$DATA/smollm2/train.json"
'
test_done
