#!/bin/sh
# Training models with experts: resuming, balancing routers, replaying what a sampler's routers chose.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
Q2=$DATA/models/qwen2_moe Q3=$DATA/models/qwen3_moe G4=$DATA/models/glm4_moe
export Q2 Q3 G4
records 24 3 >"$TMP/d.jsonl"

test_case 'all weights, and adapters of experts: a cut run ends with the same bytes' '
	for o in "" "--lora r=2,targets=experts.gate_up_proj+experts.down_proj+gate" "--dtype bf16"; do
	    rm -rf whole r
	    tw-train -q -m "$Q2" -o whole $o --batch 8 --epochs 2 --lr 1e-3 --save-every 3 --keep 0 "$TMP/d.jsonl"
	    mkdir r
	    cp -r whole/step-3 whole/metrics.jsonl whole/config.json r/
	    tw-train -q -m "$Q2" -o r $o --batch 8 --epochs 2 --lr 1e-3 --save-every 3 --keep 0 --resume "$TMP/d.jsonl"
	    same_run whole r
	done
'
test_case 'what is saved has the names of what was read' '
	tw-train -q -m "$G4" -o r --batch 24 "$TMP/d.jsonl"
	names() { head -c 60000 "$1/model.safetensors" | tr "{" "\n" | grep -ao "model\.[a-z0-9_.]*[a-z]\"" | sort; }
	names "$G4" >a
	names r/latest >b
	test "$(wc -l <a)" -gt 30
	cmp a b
	tw-train -q -m r -o again --batch 24 "$TMP/d.jsonl"
'
test_case 'the balancing loss does not depend on how a step is cut, and goes down' '
	for t in 30 5000; do
	    tw-train -q -m "$Q3" -o r$t --router-aux 5 --lr 1e-2 --batch 24 --epochs 6 --micro-tokens $t "$TMP/d.jsonl"
	    test_equal "$(values router_aux_coef <r$t/metrics.jsonl | sort -u)" 5.0
	    values router_aux <r$t/metrics.jsonl >aux$t
	done
	same_run r30 r5000
	cmp aux30 aux5000
	awk "NR == 1 { a = \$1 } END { exit !(a > 2 && \$1 > 1.99 && \$1 < a - 0.02) }" aux30
	tw-train -q -m "$Q3" -o plain --lr 1e-2 --batch 24 --epochs 6 "$TMP/d.jsonl"
	test_exit 1 cmp -s plain/latest/model.safetensors r30/latest/model.safetensors
	test_exit 1 grep router_aux plain/metrics.jsonl
'
test_case 'biases of routers move by the rate' '
	tw-train -q -m "$G4" -o a --lr 0 --batch 24 "$TMP/d.jsonl"
	tw-train -q -m "$G4" -o b --lr 0 --batch 24 --router-bias 0.25 "$TMP/d.jsonl"
	test "$(cmp -l a/latest/model.safetensors b/latest/model.safetensors | wc -l)" -gt 3
	test "$(cmp -l a/latest/model.safetensors b/latest/model.safetensors | wc -l)" -le 32
	tw-train -q -m b -o c --lr 0 --batch 24 --router-bias 0.25 --resume "$TMP/d.jsonl"
'
test_case 'options that do not fit the model' '
	test_exit 2 tw-train -m "$Q3" -o r --router-bias 0.1 "$TMP/d.jsonl" 2>err
	test_text err "routers of family qwen3_moe have no bias"
	test_exit 2 tw-train -m "$DATA/models/qwen3" -o r --router-aux 0.1 "$TMP/d.jsonl" 2>err
	test_text err "has no routers"
	test_exit 2 tw-train -m "$G4" -o r --lora r=2 --router-bias 0.1 "$TMP/d.jsonl" 2>err
	test_exit 2 tw-train -m "$Q3" -o r --router-replay "$TMP/d.jsonl" 2>err
	test_text err "does not take the rollouts"
	echo "{\"tokens\":[5,6,7]}" | test_exit 2 tw-sample -m "$DATA/models/qwen3" --routed-experts 2>err
	test_text err "has none"
'
test_case 'targets: experts only by name, a word about what is left out' '
	tw-train -v -m "$Q2" -o r --lora r=2 --batch 24 "$TMP/d.jsonl" 2>err
	test_text err "not adapted: gate, experts.gate_up_proj, experts.down_proj"
	test_exit 1 grep -a "mlp.experts" r/latest/adapter_model.safetensors
	test_exit 1 tw-train -m "$Q3" -o bad --lora r=2,targets=experts.gate_prj "$TMP/d.jsonl" 2>err
	test_text err "experts.gate_up_proj"
	test_exit 1 tw-train -m "$Q3" -o bad --lora r=2,targets=experts.3.gate_proj "$TMP/d.jsonl" 2>err
	test_text err "1 of the 8 experts"
	test_exit 1 tw-train -m "$Q3" -o bad --lora r=2,dropout=0.1,targets=gate_up_proj "$TMP/d.jsonl" 2>err
	test_text err "trained without dropout"
	tw-train -q -m "$Q3" -o each --lora r=2,targets=gate_proj+up_proj+down_proj --batch 24 "$TMP/d.jsonl"
	grep -aq "layers.1.mlp.experts.7.down_proj.lora_B" each/latest/adapter_model.safetensors
'

rollouts() # records of tw-sample --routed-experts, with advantages
{
	awk "BEGIN { for (i = 0; i < 12; i++) printf \"{\\\"tokens\\\":[%d,%d,77,%d]}\\n\", 10 + i, 40 + i * 3, 100 + i }" |
		tw-sample -q -m "$Q3" -n 2 --max-tokens 6 --routed-experts |
		awk "{ sub(/^{/, sprintf(\"{\\\"advantage\\\":%d,\\\"reward\\\":1,\", NR % 2 ? 1 : -1)); print }"
}
test_case 'the trainer sends tokens where the sampler did' '
	rollouts >r.jsonl
	test_text r.jsonl "\"routed_experts\":[[["
	tw-train -q -m "$Q3" -o a --lora r=2 --loss grpo --batch 8 --steps 1 --router-replay r.jsonl
	tw-train -q -m "$Q3" -o b --lora r=2 --loss grpo --batch 8 --steps 1 r.jsonl
	cmp a/latest/adapter_model.safetensors b/latest/adapter_model.safetensors
	test_equal "$(values logp_diff_mean <a/metrics.jsonl | head -1)" 0.0
	sed "s/\[\[[0-7],[0-7]\],/[[0,1],/g" r.jsonl >other.jsonl
	tw-train -q -m "$Q3" -o c --lora r=2 --loss grpo --batch 8 --router-replay other.jsonl
	test_exit 1 test "$(values logp_diff_mean <c/metrics.jsonl | head -1)" = 0.0
	sed "s/\"routed_experts\":\[\[\[[0-7],/\"routed_experts\":[[[9,/" r.jsonl >bad.jsonl
	test_exit 1 tw-train -q -m "$Q3" -o d --lora r=2 --loss grpo --router-replay bad.jsonl 2>err
	test_text err "is not 2 lists of 2 different experts below 8"
	sed "s/routed_experts/other/" r.jsonl >bad.jsonl
	test_exit 1 tw-train -q -m "$Q3" -o e --lora r=2 --loss grpo --router-replay bad.jsonl 2>err
	test_text err "tw-sample --routed-experts"
'
test_case 'experts recorded from the prefix cache are those recorded without' '
	for c in 0 65536; do
	    for i in 1 2 3; do echo "{\"tokens\":[9,8,7,6,5,4,3,2,1,$i]}"; done |
	        tw-sample -q -m "$Q3" --temperature 0 --max-tokens 5 --max-batch 1 --prefix-cache $c --routed-experts >out$c
	done
	cmp out0 out65536
'
test_done
