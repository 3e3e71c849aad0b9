#!/bin/sh
# A real model of 135 million parameters against the reference: log-probabilities, gradients, AdamW.
# TW_TEST_SMOLLM2 names the folder of SmolLM2-135M-Instruct (float32 values of its Q4_1 GGUF).
. "$(dirname "$0")/lib.sh"

test_case 'SmolLM2 trains as the reference does' '
	[ -f "$TW_TEST_SMOLLM2/model.safetensors" ] || test_skip "TW_TEST_SMOLLM2 is not a model"
	golden-train "$TW_TEST_SMOLLM2" "$DATA/smollm2/train.json"
'

# lists NAME: the lists of numbers in train.json's NAME, one a line.
lists()
{
    tr -d '\n ' <"$DATA/smollm2/train.json" | sed "s/.*\"$1\":\[\[\([^]]*\(\],\[[^]]*\)*\)\]\].*/\1/; s/\],\[/\n/g"
    echo
}
# numbers NAME: those of adamw's list NAME, one a line.
numbers()
{
    tr -d '\n ' <"$DATA/smollm2/train.json" | sed "s/.*\"adamw\":{//; s/.*\"$1\":\[\([^]]*\)\].*/\1/" | tr , '\n'
    echo
}
test_case 'SmolLM2 trains as the reference does, through the command' '
	[ -f "$TW_TEST_SMOLLM2/model.safetensors" ] || test_skip "TW_TEST_SMOLLM2 is not a model"
	lists tokens >tokens
	lists labels | sed "s/-100/x/g; s/[0-9][0-9]*/1/g; s/x/0/g" >weights
	paste tokens weights | awk "{ printf \"{\\\"tokens\\\":[%s],\\\"weights\\\":[%s]}\\n\", \$1, \$2 }" >r.jsonl
	test_equal "$(wc -l <r.jsonl | tr -d " ")" 4
	# --keep 1: a checkpoint of all weights and moments takes 1.6 GB, and one is written
	tw-train -m "$TW_TEST_SMOLLM2" -o run --dtype f32 --lr 1e-4 --optimizer adamw,beta1=0.9,beta2=0.95,eps=1e-8 \
	    --weight-decay 0.01 --decay-on all --clip 1 --steps 4 --batch 4 --shuffle off --save-every 4 --keep 1 r.jsonl
	for k in losses:loss grad_norms:grad_norm; do
	    numbers ${k%:*} >want
	    sed -n "/\"event\":\"step\"/s/.*\"${k#*:}\":\([^,}]*\).*/\1/p" run/metrics.jsonl | paste want - >both
	    cat both
	    awk "{ d = (\$1 - \$2) / \$1; if (NF != 2 || d > 1e-4 || d < -1e-4) bad++ }
	        END { exit bad || NR != 4 }" both
	done
	rm -rf run
'
test_done
