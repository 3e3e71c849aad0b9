#!/bin/sh
# Optimisers on a GPU: Muon's losses beside torch.optim.Muon's, moments in fewer bits beside the CPU's, and
# of each the same bytes twice, after a resume too, in the memory that was planned.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"

awk -f "$TOP/examples/sums.awk" -v n=64 -v as=chat >"$TMP/sums.jsonl"
gpu() { tw-train -m tiny --lora r=2 --device cuda --plan "$TMP/sums.jsonl" >/dev/null 2>err || test_skip "$(cat err)"; }

# beside LINE MODEL OPTIMIZER OPTIONS..: the losses of that line of tests/data/muon/expected.json.
beside()
{
    line=$1 model=$DATA/models/$2 optimizer=$3
    shift 3
    golden_records "$model" >r.jsonl
    tw-train -q -m "$model" -o run --device cuda --dtype f32 --optimizer "$optimizer" --weight-decay 0.01 \
        --decay-on all --clip 1 --steps 9 --batch 2 --shuffle off "$@" r.jsonl
    values loss <run/metrics.jsonl >got
    sed -n "${line}p" "$DATA/muon/expected.json" | sed 's/.*"losses": \[\([^]]*\)\].*/\1/' | tr -d ' ' | tr ',' '\n' >want
    close_to got want
}
test_case 'muon, scaled as AdamW' 'gpu; beside 1 llama muon --lr 4e-3'
test_case 'muon, as it was first described' 'gpu; beside 2 qwen3 muon,scale=original --lr 4e-3'
test_case 'muon, spectral, three steps, no look ahead' '
	gpu
	beside 3 qwen2 muon,scale=spectral,nesterov=off,momentum=0.9,steps=3 --lr 4e-3'
test_case 'muon of experts, each by itself' 'gpu; beside 4 qwen3_moe muon --lr 2e-3'
test_case 'muon of an adapter' 'gpu; beside 6 llama muon --lr 4e-3 --adapter "$DATA/models/llama/adapter"'

ALL='muon adamw,states=bf16 adamw,states=8bit'
end() { values loss <$1/metrics.jsonl | tail -n 1; }
test_case 'where the CPU ends, in f32 and in bf16' '
	gpu
	for o in $ALL; do
	    for d in f32 bf16; do
	        rm -rf c g
	        set -- -q -m tiny --dtype $d --optimizer $o --lr 3e-4 --batch 16 --steps 4
	        tw-train "$@" --device cpu -o c "$TMP/sums.jsonl"
	        tw-train "$@" --device cuda -o g "$TMP/sums.jsonl"
	        echo "$o $d: $(end c) $(end g)"
	        echo "$(end c) $(end g)" | awk "{ d = \$1 - \$2; exit !(d < 0.01 && d > -0.01) }"
	    done
	done
'
test_case 'the same bytes twice and after a resume, of all weights and of an adapter' '
	gpu
	for o in $ALL; do
	    for w in "--dtype f32" "--dtype bf16" "--dtype bf16 --lora r=8"; do
	        rm -rf a b
	        set -- -q -m tiny $w --device cuda --optimizer $o --lr 3e-4 --batch 16 --save-every 1 --keep 0
	        tw-train "$@" --steps 4 -o a "$TMP/sums.jsonl"
	        tw-train "$@" --steps 4 -o b "$TMP/sums.jsonl"
	        same_run a b
	        rm -rf b/step-3 b/step-4 b/latest
	        tw-train "$@" --steps 4 -o b --resume "$TMP/sums.jsonl"
	        same_run a b
	    done
	done
'
test_case 'the plan is what the driver shows' '
	gpu
	for o in $ALL; do
	    rm -rf p
	    set -- -q -m tiny --lr 1e-4 --batch 16 --steps 8 --device cuda --dtype bf16 --optimizer $o
	    planned=$(tw-train "$@" --plan "$TMP/sums.jsonl" | sed -n "s/^memory: total .* \([0-9]*\) bytes/\1/p")
	    tw-train "$@" -o p "$TMP/sums.jsonl"
	    taken=$(sed -n "s/.*\"event\":\"step\".*\"memory\":\([0-9]*\).*/\1/p" p/metrics.jsonl)
	    echo "$o: $planned planned, taken:" $taken
	    for t in $taken; do
	        awk "BEGIN { exit !($t < $planned * 1.05 && $t > $planned * 0.95) }"
	        [ $((t - $(echo "$taken" | head -1))) -le 8388608 ]     # code that is loaded when it is first used
	    done
	done
'
test_done
