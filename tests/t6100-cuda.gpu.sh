#!/bin/sh
# The commands on a GPU: golden models, the same bytes twice, where the CPU ends, sampled and scored.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/golden_bf16.sh"

awk -f "$TOP/examples/sums.awk" -v n=64 -v as=chat >"$TMP/sums.jsonl"
gpu() { tw-train -m tiny --lora r=2 --device cuda --plan "$TMP/sums.jsonl" >/dev/null 2>err || test_skip "$(cat err)"; }
train() { r_=$1; shift; tw-train -q -m tiny --lora r=8 --lr 1e-3 --batch 16 --steps 4 -o "$r_" "$@" "$TMP/sums.jsonl"; }

test_case 'golden models, in f32 as exactly as on the CPU' '
	gpu
	for m in "$DATA"/models/*/; do
	    [ -f "$m/config.json" ] || continue
	    golden-models "$m" --device cuda >out 2>&1 || grep -q "does not run on this device" out || { cat out; exit 1; }
	done
'
test_case 'golden models in bf16 as near as roundings allow' 'gpu && golden_bf16 cuda "$DATA"/models/*/'
test_case 'a run twice ends in the same bytes' '
	gpu
	for d in f32 bf16; do
	    train a$d --dtype $d --device cuda
	    train b$d --dtype $d --device cuda
	    cmp a$d/latest/adapter_model.safetensors b$d/latest/adapter_model.safetensors
	done
'
test_case 'the GPU ends where the CPU ends' '
	gpu
	train c --dtype f32 --device cpu
	train g --dtype f32 --device cuda
	train h --dtype bf16 --device cuda
	loss() { grep "\"step\":4" $1/metrics.jsonl | sed "s/.*\"loss\":\([^,]*\),.*/\1/"; }
	ends="$(loss c) $(loss g) $(loss h)"
	echo "losses of CPU, GPU in f32, GPU in bf16: $ends"
	echo "$ends" | awk "{ exit !((\$1 - \$2) ^ 2 < 1e-8 && (\$1 - \$3) ^ 2 < 1e-4) }"
'
test_case 'the plan is what the driver shows, and no step takes more than the first' '
	gpu
	for o in "--lora r=8" "--lora r=8 --recompute layer" ""; do
	    rm -rf p
	    set -- -q -m tiny $o --lr 1e-4 --batch 16 --steps 6 --device cuda --dtype bf16
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
test_case 'what was sampled is scored alike' '
	gpu
	head -4 "$TMP/sums.jsonl" | tw-sample -m tiny --device cuda --dtype f32 --temperature 1 --max-tokens 12 --seed 3 >s
	tw-sample -m tiny --device cuda --dtype f32 --score s >t
	sed "s/.*\"completion\":.*\"logprobs\":\[\([^]]*\)\].*/\1/" s >a
	sed "s/.*\"logprobs\":\[\([^]]*\)\]}$/\1/" t >b
	paste -d "|" a b | awk -F "|" "{
	    n = split(\$1, x, \",\"); m = split(\$2, y, \",\")
	    for (i = 1; i <= n; i++) { d = x[i] - y[m - n + i]; seen++; if (d > 1e-3 || d < -1e-3) bad++ }
	} END { exit bad || seen < 8 }"
'
hopper() {
	echo "{\"tokens\":[1]}" >one
	tw-sample -m tiny --device cuda --dtype bf16 --exact --max-tokens 1 one >/dev/null 2>err || ! grep Hopper err || test_skip "$(cat err)"
}
# off SCORED SAMPLED: how far their log-probabilities are apart at the most
off() {
	sed "s/.*\"completion\":.*\"logprobs\":\[\([^]]*\)\].*/\1/" "$2" >a
	sed "s/.*\"logprobs\":\[\([^]]*\)\]}$/\1/" "$1" >b
	paste -d "|" a b | awk -F "|" "{
	    n = split(\$1, x, \",\"); m = split(\$2, y, \",\")
	    for (i = 1; i <= n; i++) { d = x[i] - y[m - n + i]; d = d < 0 ? -d : d; most = d > most ? d : most; seen++ }
	} END { if (seen < 500) exit 1; print most + 0 }"
}
test_case '--exact: what was sampled in bf16 has the log-probabilities of a pass, and not without' '
	gpu
	hopper
	train l --device cuda --dtype bf16
	sample() { tw-sample -m tiny --device cuda --dtype bf16 "$@"; }
	head -40 "$TMP/sums.jsonl" | sed "s/,{\"role\":\"assistant.*/]}/" >ask
	for o in "" "--adapter l"; do
	    sample --exact $o -n 2 --max-tokens 90 --ignore-eos --seed 3 ask >s
	    sample --exact $o --score s >t
	    sample --exact $o --prefix-cache 0 --max-batch 7 -n 2 --max-tokens 90 --ignore-eos --seed 3 ask | cmp - s
	    test_equal "$(off t s)" 0
	    sample $o -n 2 --max-tokens 90 --ignore-eos --seed 3 ask >s
	    sample --exact $o --score s >t
	    echo "without it: $(off t s)"
	    awk "BEGIN { exit !($(off t s) > 1e-3) }"
	done
'
# ratios RUN OPTIONS: reinforcement in bf16, always from the newest weights; then the ratios of all steps
ratios() {
	run=$1
	shift
	awk -f "$TOP/examples/sums.awk" -v n=32 -v seed=2 |
	    tw-sample -q -m tiny --device cuda --dtype bf16 --exact --policy $run -n 8 --max-lag 0 --max-tokens 24 |
	    tw-reward --exec "$TOP/examples/last-number.sh" --advantage grpo |
	    tw-train -q -m tiny --device cuda --dtype bf16 "$@" --loss grpo --batch 64 -o $run
	grep -o "\"ratio_[a-z]*\":[^,}]*" $run/metrics.jsonl | sort -u | tr "\n" " "
}
test_case '--exact: on policy the ratio is 1, of an adapter and of all weights' '
	gpu
	hopper
	test_equal "$(ratios a --lora r=8 --lr 1e-3)" "\"ratio_max\":1.0 \"ratio_mean\":1.0 "
	test_equal "$(ratios b --lr 3e-4)" "\"ratio_max\":1.0 \"ratio_mean\":1.0 "
	train s --lora r=24 --device cuda --dtype bf16
	test_equal "$(ratios c --adapter s --lr 1e-3)" "\"ratio_max\":1.0 \"ratio_mean\":1.0 "
	grep -c "\"grad_norm\":0\.[0-9]*[1-9]" b/metrics.jsonl
'
test_case '--exact: families and numbers that cannot are refused' '
	gpu
	echo "{\"tokens\":[1,2,3]}" >q
	for o in "-m $DATA/models/qwen3_5 --dtype bf16" "-m tiny --dtype f32"; do
	    test_exit 1 tw-sample --device cuda --exact $o q 2>err
	    test_text err "tw-sample: --exact: "
	    test_equal "$(wc -l <err)" 1
	done
'
test_case 'reinforcement on a GPU learns what it learns on the CPU' '
	gpu
	OUT=$PWD/run bash "$TOP/examples/grpo.sh" >out 2>&1
	after=$(sed -n "s/^after: \([0-9.]*\) %.*/\1/p" out)
	awk "BEGIN { exit !($after > 75) }"
'
test_done
