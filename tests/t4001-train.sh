#!/bin/sh
# What tw-train computes: each option that changes it, and that nothing else does.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
test_case 'a model with random weights' make_base

# train RUN OPTIONS..: on the shared records
train()
{
    run_=$1
    shift
    tw-train -m "$BASE" -o "$run_" "$@" "$TMP/d.jsonl"
}
losses()
{
    values loss <"$1/metrics.jsonl"
}
# changes OPTIONS..: they change the weights that two steps of LoRA training give.
changes()
{
    [ -d "$TMP/plain" ] || train "$TMP/plain" --lora r=2 --batch 8 --steps 2
    rm -rf other
    train other --lora r=2 --batch 8 --steps 2 "$@"
    ! cmp -s "$TMP/plain/latest/adapter_model.safetensors" other/latest/adapter_model.safetensors
}
# keeps OPTIONS..: they do not change a bit.
keeps()
{
    [ -d "$TMP/plain" ] || train "$TMP/plain" --lora r=2 --batch 8 --steps 2
    rm -rf other
    train other --lora r=2 --batch 8 --steps 2 "$@"
    cmp "$TMP/plain/latest/adapter_model.safetensors" other/latest/adapter_model.safetensors
}

test_case 'training lowers the loss, of an adapter and of all weights' '
	train a --lora r=4,alpha=8 --lr 1e-2 --batch 24 --steps 8
	train b --lr 1e-3 --batch 24 --steps 8
	for r in a b; do
	    test_equal "$(losses $r | wc -l | tr -d " ")" 8
	    losses $r | awk "{ if (NR > 1 && \$1 >= last) exit 1; last = \$1 }"
	    [ -f $r/latest/trainer/optimizer.safetensors ]
	done
	[ -f a/latest/adapter_model.safetensors ] && [ -f a/latest/adapter_config.json ]
	[ -f b/latest/model.safetensors ] && [ -f b/latest/config.json ]
'
test_case 'metrics have their keys in their order' '
	train a --lora r=2 --steps 1
	sed -n 2p a/metrics.jsonl | sed "s/:[^,}]*//g" >keys
	test_equal "$(cat keys)" "{\"event\",\"step\",\"time\",\"loss\",\"lr\",\"grad_norm\",\"tokens\",\"tokens_per_s\",\"mfu\",\"memory\"}"
	sed -n 1p a/metrics.jsonl | grep -q "\"event\":\"start\",\"step\":0,\"time\":.*\"lora\":\"r=2\""
'
test_case 'metrics go to a file of their own too' '
	train a --lora r=2 --batch 8 --steps 2 --metrics here.jsonl
	for k in loss lr grad_norm tokens; do
	    test_equal "$(values $k <here.jsonl)" "$(values $k <a/metrics.jsonl)"
	done
	test_equal "$(wc -l <here.jsonl | tr -d " ")" 3
'
test_case 'the cut into passes, threads and recomputation change nothing' '
	keeps --micro-tokens 1
	keeps --micro-tokens 40
	keeps --micro-tokens 100000
	keeps --threads 1
	keeps --threads 2
	keeps --recompute layer
	keeps --recompute none
	keeps --device cpu
	keeps --nproc 1
	keeps --metrics here.jsonl
	keeps --dtype f32
	for m in 1 100000; do
	    train full$m --batch 8 --steps 2 --micro-tokens $m
	done
	cmp full1/latest/model.safetensors full100000/latest/model.safetensors
	train full1r --batch 8 --steps 2 --micro-tokens 30 --recompute layer
	cmp full1/latest/model.safetensors full1r/latest/model.safetensors
'
test_case 'options that change the result' '
	changes --lr 1e-3
	changes --batch 12
	changes --steps 3
	changes --shuffle 7
	changes --shuffle off
	changes --seed 7
	changes --lora r=2,alpha=4
	changes --lora r=3
	changes --lora r=2,rslora=on
	changes --lora r=2,dropout=0.5
	changes --lora r=2,targets=q_proj+v_proj
	changes --lora r=2,init=gaussian
	changes --optimizer sgd
	changes --optimizer sgd,momentum=0.5 --lr 1
	changes --optimizer adamw,beta1=0.5
	changes --optimizer adamw,beta2=0.5
	changes --optimizer adamw,eps=1e-2
	changes --weight-decay 0.5
	changes --schedule linear
	changes --schedule cosine,warmup=1
	changes --clip 0.01 --optimizer sgd
	changes --loss-scale sum --optimizer sgd
	changes --loss-scale sequence
	changes --dtype bf16
'
test_case 'token scale: one token of loss 4 and three of loss 1 give their mean' '
	# a batch that is one pass, or one pass a sample, or two samples a pass: the loss and the norm
	train a --batch 24 --steps 1
	train b --batch 24 --steps 1 --micro-tokens 1
	test_equal "$(values loss <a/metrics.jsonl)" "$(values loss <b/metrics.jsonl)"
	test_equal "$(values grad_norm <a/metrics.jsonl)" "$(values grad_norm <b/metrics.jsonl)"
	# the scales agree: sum = token * tokens; the weighted tokens that count are those not 0
	train c --batch 24 --steps 1 --loss-scale sum
	n=$(awk "{ w = \$0; if (sub(/.*weights\":\[/, \"\", w)) { sub(/].*/, \"\", w); k = split(w, x, \",\");
	    for (i = 2; i <= k; i++) n += x[i] != 0 } else { k = split(\$0, x, /tokens\":\[/); n += split(x[2], y, \",\") - 1 } }
	    END { print n }" "$TMP/d.jsonl")
	near "$(values loss <c/metrics.jsonl)" "$(awk -v l=$(values loss <a/metrics.jsonl) -v n=$n "BEGIN { printf \"%.17g\", l * n }")" 1e-9
	# each sequence alone, and their mean
	sum=0
	head -n 3 "$TMP/d.jsonl" >three.jsonl
	tw-train -m "$BASE" -o s --loss-scale sequence --steps 1 three.jsonl
	for i in 1 2 3; do
	    sed -n ${i}p three.jsonl >one.jsonl
	    tw-train -m "$BASE" -o s$i --steps 1 one.jsonl
	done
	near "$(values loss <s/metrics.jsonl)" "$(cat s[123]/metrics.jsonl | values loss | awk "{ s += \$1 } END { printf \"%.17g\", s / NR }")" 1e-6
'
test_case 'weights: a factor scales the loss, a negative one turns it around' '
	echo "{\"tokens\":[5,6,7,8,9]}" >1.jsonl
	echo "{\"tokens\":[5,6,7,8,9],\"weights\":[9,0.5,0.5,0.5,0.5]}" >2.jsonl
	echo "{\"tokens\":[5,6,7,8,9],\"weights\":[0,-1,-1,-1,-1]}" >3.jsonl
	for i in 1 2 3; do tw-train -m "$BASE" -o r$i --steps 1 $i.jsonl; done
	l=$(values loss <r1/metrics.jsonl)
	near "$(values loss <r2/metrics.jsonl)" "$(awk -v l=$l "BEGIN { printf \"%.17g\", l / 2 }")" 1e-6
	near "$(values loss <r3/metrics.jsonl)" "-$l" 1e-6
'
test_case 'the learning rate of each step' '
	train a --lora r=2 --lr 1e-5 --schedule linear --batch 24 --steps 10
	values lr <a/metrics.jsonl | awk "{ d = \$1 - (11 - NR) * 1e-6; if (d > 1e-12 || d < -1e-12) exit 1 } END { exit NR != 10 }"
	train b --lora r=2 --lr 1 --schedule constant,warmup=4 --batch 24 --steps 5
	test_equal "$(values lr <b/metrics.jsonl | tr "\n" " ")" "0.0 0.25 0.5 0.75 1.0 "
	train c --lora r=2 --batch 24 --steps 1
	test_equal "$(values lr <c/metrics.jsonl)" 0.0001
	train d --batch 24 --steps 1
	test_equal "$(values lr <d/metrics.jsonl)" 1e-05
'
test_case 'clipping: the norm is logged before it, 0 never clips' '
	train a --optimizer sgd --lr 1e-3 --clip 1e-3 --weight-decay 0 --batch 24 --steps 1
	train b --optimizer sgd --lr 1e-3 --clip 0 --weight-decay 0 --batch 24 --steps 1
	train c --optimizer sgd --lr 1e-3 --clip 1e30 --weight-decay 0 --batch 24 --steps 1
	test_equal "$(values grad_norm <a/metrics.jsonl)" "$(values grad_norm <b/metrics.jsonl)"
	cmp b/latest/model.safetensors c/latest/model.safetensors
	! cmp -s a/latest/model.safetensors b/latest/model.safetensors
'
test_case 'weight decay: matrices, or everything; no gradient is not needed' '
	# a weight so small that the gradient is nothing beside the decay
	echo "{\"tokens\":[5,6],\"weights\":[0,1e-30]}" >z.jsonl
	o="--optimizer sgd --lr 0.1 --weight-decay 0.1 --steps 1"
	tw-train -m "$BASE" -o a $o z.jsonl
	tw-train -m "$BASE" -o b $o --decay-on all z.jsonl
	tw-train -m "$BASE" -o c $o --weight-decay 0 z.jsonl
	cmp c/latest/model.safetensors "$BASE/model.safetensors"
	! cmp -s a/latest/model.safetensors "$BASE/model.safetensors"
	! cmp -s a/latest/model.safetensors b/latest/model.safetensors
'
test_case 'bf16 weights have masters in f32: small updates are not lost' '
	train a --dtype bf16 --lr 2e-6 --weight-decay 0 --batch 24 --steps 100 --save-every 100
	values loss <a/metrics.jsonl | awk "NR == 1 { first = \$1 } END { exit !(\$1 < first - 1e-3) }"
	[ -f a/latest/trainer/weights.safetensors ]
'
test_case 'epochs and steps' '
	train a --lora r=2 --batch 10 --epochs 2
	test_equal "$(values step <a/metrics.jsonl | tail -n 1)" 6
	train b --lora r=2 --batch 10 --steps 4
	test_equal "$(values step <b/metrics.jsonl | tail -n 1)" 4
	train c --lora r=2 --batch 10 --steps 40 --epochs 1
	test_equal "$(values step <c/metrics.jsonl | tail -n 1)" 3
'
test_case 'evaluation: loss, perplexity, and never with dropout' '
	records 5 9 >e.jsonl
	train a --lora r=2,dropout=0.5 --lr 0 --batch 8 --steps 4 --eval e.jsonl --eval-every 2
	values loss eval <a/metrics.jsonl >l
	test_equal "$(wc -l <l | tr -d " ")" 2
	test_equal "$(sort -u l | wc -l | tr -d " ")" 1
	near "$(values perplexity eval <a/metrics.jsonl | head -n 1)" "$(awk "NR == 1 { print exp(\$1) }" l)" 1e-5
	tw-train -m "$BASE" -o b --steps 1 --batch 5 e.jsonl
	near "$(values loss <b/metrics.jsonl)" "$(head -n 1 l)" 1e-6
	train c --lora r=2 --batch 8 --epochs 2 --eval e.jsonl
	test_equal "$(values step eval <c/metrics.jsonl | tr "\n" " ")" "3 6 "
'
test_case 'keep-best and early-stop' '
	records 5 9 >e.jsonl
	train a --lr 3e-2 --batch 8 --steps 40 --eval e.jsonl --eval-every 1 --early-stop 3 --keep-best --keep 1 2>err
	test_text err "stops early"
	best=$(values loss eval <a/metrics.jsonl | awk "NR == 1 || \$1 < m { m = \$1; at = NR } END { print at }")
	test_equal "$(readlink a/best)" "step-$best"
	test_equal "$(readlink a/latest)" "step-$((best + 3))"
	test_equal "$(ls -d a/step-* | wc -l | tr -d " ")" 2
'
test_case 'an adapter goes on from an adapter' '
	train a --lora r=2 --batch 8 --steps 2 --lr 1e-2
	train b --adapter a --batch 24 --steps 1 --lr 0
	tw-train -m "$BASE" --adapter a/step-2 -o c --batch 24 --steps 1 --lr 0 "$TMP/d.jsonl"
	train d --lora r=2 --batch 24 --steps 1 --lr 0
	test_equal "$(values loss <b/metrics.jsonl)" "$(values loss <c/metrics.jsonl)"
	[ "$(values loss <b/metrics.jsonl)" != "$(values loss <d/metrics.jsonl)" ]
	cmp a/latest/adapter_model.safetensors b/latest/adapter_model.safetensors
'
test_case 'merged weights compute what base and adapter do' '
	train a --lora r=2 --batch 8 --steps 3 --lr 1e-2
	tw-train --merge -m "$BASE" --adapter a -o merged 2>err
	test_text err "merged as F32"
	train b --adapter a --batch 24 --steps 1 --lr 0
	tw-train -m merged -o c --batch 24 --steps 1 --lr 0 "$TMP/d.jsonl"
	near "$(values loss <c/metrics.jsonl)" "$(values loss <b/metrics.jsonl)" 1e-5
	mkdir merged16 merged16.tmp-999999999
	tw-train --merge --dtype bf16 -m "$BASE" --adapter a -o merged16/ 2>err
	test_text err "merged as BF16"
	test_equal "$(ls -Ad merged16*)" merged16
	test -s merged16/model.safetensors
	test_exit 1 tw-train --merge -m "$BASE" --adapter a -o merged 2>err
	test_text err "merged: is there already"
	test_exit 2 tw-train --merge -m "$BASE" -o x 2>err
	test_text err "needs --adapter"
'
test_case 'publishing: the weights of each step, by rename' '
	train a --lora r=2 --batch 8 --steps 5 --publish on
	cmp a/policy/step-5/adapter_model.safetensors a/latest/adapter_model.safetensors
	test_equal "$(ls a/policy | tr "\n" " ")" "step-3 step-4 step-5 "
	grep -q "\"step\":5,\"path\":\"policy/step-5\",\"batch\":8,\"trained\":32" a/policy.json || cat a/policy.json
	train b --lora r=2 --batch 8 --steps 2 --publish off
	[ ! -e b/policy.json ]
'
test_done
