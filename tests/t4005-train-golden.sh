#!/bin/sh
# tw-train against the reference: the losses before each of eight AdamW steps and after the last, and
# the gradient norms before clipping, of all weights and of an adapter.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"

# expected FILE OBJECT KEY: the numbers of a list in an object of expected.json, one a line.
expected()
{
    tr -d '\n ' <"$1" | sed "s/.*\"$2\":{\([^}]*\)}.*/\1/; s/.*\"$3\":\[\([^]]*\)\].*/\1/" | tr ',' '\n'
}
for m in llama llama-rope3 qwen2 qwen2-yarn qwen3; do
    test_case "$m, all weights" '
	golden_records "$DATA/models/'$m'" >r.jsonl
	test_equal "$(wc -l <r.jsonl | tr -d " ")" 2
	tw-train -m "$DATA/models/'$m'" -o run --dtype f32 --lr 0.002 --optimizer adamw,beta1=0.9,beta2=0.95 \
	    --weight-decay 0.01 --decay-on all --clip 1 --steps 9 --batch 2 --shuffle off r.jsonl
	for k in losses:loss grad_norms:grad_norm; do
	    values ${k#*:} <run/metrics.jsonl >got
	    expected "$DATA/models/'$m'/expected.json" adamw ${k%:*} >want
	    head -n $(grep -c . want) got >same
	    close_to same want
	done
'
    test_case "$m, an adapter" '
	golden_records "$DATA/models/'$m'" >r.jsonl
	tw-train -m "$DATA/models/'$m'" --adapter "$DATA/models/'$m'/adapter" -o run --lr 0.005 --weight-decay 0 \
	    --clip 0 --steps 8 --batch 2 --shuffle off r.jsonl
	values loss <run/metrics.jsonl >got
	expected "$DATA/models/'$m'/expected.json" lora_adamw losses >want
	close_to got want
'
done
test_done
