#!/bin/sh
# What must not change a bit of a model's answers, on a model of 135 million parameters.
# TW_TEST_SMOLLM2 names the folder of SmolLM2-135M-Instruct (float32 values of its Q4_1 GGUF).
. "$(dirname "$0")/lib.sh"

test_case 'SmolLM2: packing, cuts, threads, recompute, decoding, mixed adapters' '
	[ -f "$TW_TEST_SMOLLM2/model.safetensors" ] || test_skip "TW_TEST_SMOLLM2 is not a model"
	(cd "$TOP" && model_bits "$TW_TEST_SMOLLM2")
'
test_done
