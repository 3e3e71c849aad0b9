#!/bin/sh
# tw-train against the reference: the losses before each of eight AdamW steps and after the last, and
# the gradient norms before clipping, of all weights and of an adapter.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"

# ints FILE NAME: the values of an I32 tensor of a safetensors file, one a line.
ints()
{
    head_=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    at_=$(dd if="$1" bs=1 skip=8 count="$head_" 2>/dev/null |
        sed "s/.*\"$2\":{[^}]*\"data_offsets\":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/")
    set -- "$1" $at_
    od -An -v -w4 -td4 -j $((8 + head_ + $2)) -N $(($3 - $2)) "$1" | tr -d ' '
}
# golden_records DIR: its two rows as token records.
golden_records()
{
    ints "$1/expected.safetensors" input_ids >ids
    ints "$1/expected.safetensors" labels >labels
    paste ids labels | awk -v n=150 '{
        t = t (t == "" ? "" : ",") $1; w = w (w == "" ? "" : ",") ($2 != -100)
        if (NR % n == 0) { print "{\"tokens\":[" t "],\"weights\":[" w "]}"; t = w = "" }
    }'
}
# expected FILE OBJECT KEY: the numbers of a list in an object of expected.json, one a line.
expected()
{
    tr -d '\n ' <"$1" | sed "s/.*\"$2\":{\([^}]*\)}.*/\1/; s/.*\"$3\":\[\([^]]*\)\].*/\1/" | tr ',' '\n'
}
# close_to GOT WANT: as many lines (WANT decides), each within 1e-4.
close_to()
{
    paste "$2" "$1" | awk '{ d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (!(d <= 1e-4)) bad++
        if (d > worst) worst = d } END { print "worst", worst + 0, "of", NR; exit bad || NR < 7 }'
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
