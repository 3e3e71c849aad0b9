#!/bin/sh
# Muon: losses beside torch.optim.Muon's, the same bytes with any number of threads and after a resume,
# and what it keeps. See tests/data/muon/make.py.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"

want()
{
    sed -n "$1p" "$DATA/muon/expected.json" | sed 's/.*"losses": \[\([^]]*\)\].*/\1/' | tr -d ' ' | tr ',' '\n'
}

# beside LINE MODEL OPTIMIZER OPTIONS..: the losses of that line of expected.json.
beside()
{
    line=$1 model=$DATA/models/$2 optimizer=$3
    shift 3
    golden_records "$model" >r.jsonl
    tw-train -m "$model" -o run --dtype f32 --optimizer "$optimizer" --weight-decay 0.01 --decay-on all --clip 1 \
        --steps 9 --batch 2 --shuffle off "$@" r.jsonl
    values loss <run/metrics.jsonl >got
    want "$line" >want
    close_to got want
}
test_case 'llama, scaled as AdamW' 'beside 1 llama muon --lr 4e-3'
test_case 'qwen3, as it was first described' 'beside 2 qwen3 muon,scale=original --lr 4e-3'
test_case 'qwen2, spectral, three steps, no look ahead' '
	beside 3 qwen2 muon,scale=spectral,nesterov=off,momentum=0.9,steps=3 --lr 4e-3'
test_case 'experts, each by itself' 'beside 4 qwen3_moe muon --lr 2e-3'
test_case 'convolutions are no matrices' 'beside 5 qwen3_5 muon --lr 1e-3'
test_case 'an adapter' 'beside 6 llama muon --lr 4e-3 --adapter "$DATA/models/llama/adapter"'

test_case 'a model with random weights' make_base
test_case 'the same bytes with any number of threads' '
	for o in "--dtype f32" "--dtype bf16" "--lora r=3"; do
	    rm -rf a b
	    tw-train -m "$BASE" --optimizer muon --lr 1e-3 --batch 6 $o -o a --threads 1 "$TMP/d.jsonl"
	    tw-train -m "$BASE" --optimizer muon --lr 1e-3 --batch 6 $o -o b --threads 3 "$TMP/d.jsonl"
	    same_run a b
	done
'
# Matrices of the layers keep one moment, the rest (embedding, head, norms) two; a step takes four
# matrices more, of the largest.
test_case 'the plan counts what it keeps' '
	for o in muon adamw sgd,momentum=0.9; do
	    tw-train -m "$DATA/models/llama" --optimizer $o --plan "$TMP/d.jsonl" >$o
	done
	plan() { sed -n "s/^memory: optimizer.* \([0-9]*\) bytes/\1/p" <"$1"; }
	[ $(plan muon) -gt $(plan sgd,momentum=0.9) ] && [ $(plan muon) -lt $(plan adamw) ]
'
test_done
