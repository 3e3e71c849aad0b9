#!/bin/bash
# sanitize.sh BUILD [TOOL..] - compute-sanitizer over the kernels: each case of the unit programs by itself (they
# are slow together), then steps of small models of each kind, in bf16, whose sizes take the large kernels.
#
# TOOL is memcheck, racecheck, initcheck, synccheck or poison, all by default. The copy engine's stores, which
# cuBLASLt's kernels use, are not seen by initcheck; TW_POISON=1 fills what a product is to write first. poison says
# that this changes no byte of what is trained or drawn, so no number that was not written is read.
# What racecheck says of cuBLASLt's kernels (nvjet) nobody here can judge or change: it is no finding.
# T: only what matches; JOBS (8) at once, LIMIT (300) seconds each, TOTAL (3600) for all. The exit status is the
# number of findings, 100 at most.
here=$(cd "$(dirname "$0")" && pwd)

if [ "$1" = --one ]; then
	tool=$2 name=$3 log=$OUT/$2.${3//[: ]/.}.log start=$(date +%s)
	shift 3
	left=$((END - start))
	[ $left -lt $LIMIT ] && LIMIT=$left
	[ $left -lt 1 ] && { printf '%-10s %-28s not begun\n' $tool "$name" | tee -a $OUT/summary; exit 0; }
	dir=$(mktemp -d "$OUT/run-XXXXXX")
	cd $dir || exit 1
	case $tool in
	poison)
		for p in '' TW_POISON=1; do
			timeout -k 5 $LIMIT env $p "$@" -o run${p:+-poisoned} || break
		done >$log 2>&1 && cmp run/latest/*model.safetensors run-poisoned/latest/*model.safetensors >>$log 2>&1
		status=$?
		[ $status != 1 ] || status=9 ;;
	*)
		[ $tool != initcheck ] || export TW_POISON=1
		timeout -k 5 $LIMIT compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 200 env "$@" \
			>$log 2>&1
		status=$?
		[ $tool$status != racecheck9 ] || grep 'Race reported' $log | grep -vq nvjet || status=nvjet ;;
	esac
	cd / && rm -rf $dir
	# what the programs themselves compare is for tests to judge
	[ $status != 1 ] || ! grep -q -E 'SUMMARY: 0 (errors|hazards)' $log || status=0
	case $status in
	0) said=clean ;;
	nvjet) said="clean but for cuBLASLt's own" ;;
	124 | 137) said="not done in $LIMIT s" ;;
	9) said="FOUND: $(grep -m 1 -E 'ERROR SUMMARY|RACECHECK SUMMARY|differ' $log | cut -c 1-90)" ;;
	*) said="FAILED with status $status: $(grep -v '^=' $log | tail -n 1 | cut -c 1-90)" ;;
	esac
	printf '%-10s %-28s %4d s  %s\n' $tool "$name" $(($(date +%s) - start)) "$said" | tee -a $OUT/summary
	exit 0
fi

B=$(cd "$1" && pwd) || exit 2
shift
export LIMIT=${LIMIT:-300} END=$(($(date +%s) + ${TOTAL:-3600})) OUT=${OUT:-$B/sanitize} TW_SHARE=$here/../../share
mkdir -p "$OUT" && : >"$OUT/summary"
config()
{
	tail='"vocab_size":512,"max_position_embeddings":4096,"rms_norm_eps":1e-6,"hidden_act":"silu","rope_theta":10000.0'
	printf '{"model_type":"%s",%s,%s}\n' "$2" "$3" "$tail" >"$OUT/$1.json"
}
config dense qwen3 '"hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":128,"tie_word_embeddings":true'
config small qwen2 '"hidden_size":192,"intermediate_size":352,"num_hidden_layers":2,"num_attention_heads":3,"num_key_value_heads":1,"tie_word_embeddings":false'
config experts qwen3_moe '"hidden_size":256,"intermediate_size":512,"moe_intermediate_size":128,"num_experts":8,"num_experts_per_tok":2,"norm_topk_prob":true,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":128,"tie_word_embeddings":false'
config latents deepseek_v2 '"hidden_size":256,"intermediate_size":512,"moe_intermediate_size":128,"n_routed_experts":8,"num_experts_per_tok":2,"n_shared_experts":1,"first_k_dense_replace":1,"moe_layer_freq":1,"topk_method":"greedy","routed_scaling_factor":1.0,"norm_topk_prob":false,"scoring_func":"softmax","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"kv_lora_rank":128,"q_lora_rank":null,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"tie_word_embeddings":false'
config delta qwen3_5_text '"hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":256,"linear_conv_kernel_dim":4,"linear_key_head_dim":128,"linear_value_head_dim":128,"linear_num_key_heads":2,"linear_num_value_heads":4,"layer_types":["linear_attention","full_attention"],"partial_rotary_factor":0.25,"attn_output_gate":true,"tie_word_embeddings":true'

cases()
{
	for m in dense small experts latents delta; do
		train="$B/bin/tw-train -q --device cuda --dtype bf16 --lr 1e-3 --epochs 100"
		case $1 in
		poison | racecheck) 	# a launch costs racecheck a tenth of a second
			n='--steps 3 --batch 4' o=
			[ $1 = racecheck ] && n='--steps 1 --batch 2' o='-o run'
			[ -d $OUT/$m ] || $train $n --init random --config-json $OUT/$m.json -o $OUT/$m $OUT/text.jsonl >&2
			echo "all:$m $train $n $o --recompute layer --init random --config-json $OUT/$m.json $OUT/text.jsonl"
			echo "lora:$m $train $n $o -m $OUT/$m/latest --lora r=8 $OUT/text.jsonl" ;;
		*) echo "train:$m $B/bench/mixed cuda $OUT/$m.json 2 4 150 1" ;;
		esac
		case $1 in
		poison) echo "kept:$m $train $n --init random --config-json $OUT/$m.json $OUT/text.jsonl" ;;
		racecheck) echo "decode:$m $B/bench/decode cuda $OUT/$m.json 20 3 1 1 20" ;;
		*) echo "decode:$m $B/bench/decode cuda $OUT/$m.json 40 12 1 1 3 20" ;;
		esac
	done
	if [ $1 != poison ]; then
		for p in $here/../unit/cuda*.c $here/../unit/draw*.c $here/../unit/exact*.c; do
			n=$(basename $p .c)
			for f in $(grep -o 'RUN([a-z_0-9]*)' $p | tr -d 'RUN()'); do
				echo "$n:$f TEST_QUICK=1 TEST_ONLY=$f $B/tests/$n"
			done
		done
	fi
}
awk 'BEGIN { for (i = 0; i < 16; i++) { s = "1"; for (j = 1; j < 120 + 40 * i; j++) s = s "," (i * j * 7 + j * j) % 509
	print "{\"tokens\": [" s "]}" } }' >"$OUT/text.jsonl"
for tool in ${*:-memcheck racecheck initcheck synccheck poison}; do
	cases $tool | grep -E "${T:-.}" | sed "s/^/$tool /"
done | xargs -P "${JOBS:-8}" -L 1 bash "$here/sanitize.sh" --one
n=$(grep -c -E 'FOUND|FAILED' "$OUT/summary")
echo "$(grep -c clean "$OUT/summary") clean, $(grep -c -E 'not (done|begun)' "$OUT/summary") not done, $n with findings; the logs are in $OUT"
[ "$n" -le 100 ] || n=100
exit $n
