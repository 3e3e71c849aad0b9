#!/bin/sh
# What tw-train refuses, and the plan.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
test_case 'a model with random weights' make_base

# no STATUS TEXT OPTIONS..: refused with that text, in one line, leaving nothing.
no()
{
    want_s=$1 want_t=$2
    shift 2
    test_exit "$want_s" tw-train -m "$BASE" -o r "$@" "$TMP/d.jsonl" 2>err
    test_text err "$want_t"
    test_equal "$(wc -l <err | tr -d ' ')" 1
    [ ! -e r ]
}
test_case 'unknown names, settings and values are refused, and what is known is named' '
	no 2 "unknown loss" --loss grpq
	no 2 "known are cross_entropy" --loss entropy
	tw-train --help | sed -n "/^  *--loss /,/^  *--loss-scale/p" >shown
	for l in $(sed -n "s/.*known are //p" err | tr -d ,); do grep -qw "$l" shown || { cat err shown; exit 1; }; done
	no 2 "beta" --loss cross_entropy,beta=1
	no 2 "known are adamw, muon, sgd" --optimizer lion
	no 2 "scale" --optimizer muon,scale=none
	no 2 "beta1" --optimizer sgd,beta1=0.5
	no 2 "known are constant, linear, cosine" --schedule step
	no 2 "warmup" --schedule linear,warmup=x
	no 2 "rank" --lora rank=8
	no 2 "r=0 is out of range" --lora r=0
	no 2 "dropout=1" --lora r=2,dropout=1
	no 2 "key=value" --lora on
	no 1 "q_prj" --lora r=2,targets=q_prj
	no 1 "xavier" --lora r=2,init=xavier
	no 2 "--shuffle: " --shuffle yes
	ls /dev/nvidiactl 2>/dev/null || no 1 "there is no CUDA GPU here" --device cuda
	no 2 "known are auto, cpu" --device cuda:x
	no 2 "known are auto, cpu" --device tpu
	no 2 "this build trains on one device" --nproc 2
	no 2 "unknown option --mesh" --mesh dp=2
	no 2 "--dtype" --dtype f16
	no 2 "--recompute" --recompute all
	no 2 "--loss-scale" --loss-scale mean
	no 2 "--decay-on" --decay-on norms
	no 2 "--init" --init zeros
	no 2 "--publish" --publish maybe
	for o in lr weight-decay clip epochs steps batch micro-tokens eval-every early-stop save-every keep \
	    max-skips seed threads; do
	    no 2 "--$o" --$o -1
	    no 2 "--$o" --$o x
	done
'
test_case 'options that need another one, or exclude it' '
	no 2 "needs --eval" --keep-best
	no 2 "needs --eval" --early-stop 2
	no 2 "needs --eval" --eval-every 2
	no 2 "needs --init random" --config-json "$TMP/shape/config.json"
	no 2 "give one of them" --lora r=2 --adapter x
	no 2 "of no use" --init random --lora r=2
	no 2 "does not fit" --init random --adapter x
	test_exit 2 tw-train -m "$BASE" "$TMP/d.jsonl" 2>err
	test_text err "RUN, the folder of the run, must be given"
	test_exit 2 tw-train -o r "$TMP/d.jsonl" 2>err
	test_text err "--model"
	no 1 "x: no such folder" --adapter x
	no 1 "cannot open" --eval missing.jsonl
'
test_case 'a folder without a tokenizer takes token records and says so of others' '
	echo "{\"text\":\"a\"}" >t.jsonl
	test_exit 1 tw-train -m "$BASE" -o r t.jsonl 2>err
	test_text err "t.jsonl:1: "
	[ ! -e r ]
'
test_case 'shapes from a file of their own' '
	sed "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 3/" "$TMP/shape/config.json" >three.json
	tw-train -m "$TMP/shape" --init random --config-json three.json --steps 1 -o a "$TMP/d.jsonl"
	grep -q "num_hidden_layers\": *3" a/latest/config.json
	tw-train -m "$TMP/shape" --init random --seed 1 --steps 1 -o b "$TMP/d.jsonl"
	tw-train -m "$TMP/shape" --init random --seed 2 --steps 1 -o c "$TMP/d.jsonl"
	! cmp -s b/latest/model.safetensors c/latest/model.safetensors
	tw-train -m a --steps 1 -o d "$TMP/d.jsonl"
'
# number KEY <plan: the bytes, or the number, of a line
number()
{
    sed -n "s/^$1  *//p" | sed "s/.*  \([0-9]*\) bytes/\1/; s/,//g; s/ tokens.*//"
}
test_case 'the plan: sizes that a run then has' '
	tw-train -m "$BASE" --plan "$TMP/d.jsonl" >full
	tw-train -m "$BASE" --lora r=2 --plan "$TMP/d.jsonl" >lora
	[ ! -e r ]
	test_equal "$(number parameters <full)" 31200
	test_equal "$(number trained <full)" 31200
	test_equal "$(number trained <lora)" 2432
	tw-train -m "$BASE" -o a "$TMP/d.jsonl"
	size=$(cat a/latest/*.* a/latest/trainer/* | wc -c)
	near "$(number "a checkpoint" <full)" $size 0.2
	test_equal "$(number "memory: optimizer" <lora)" $((2 * $(number "memory: gradients" <lora)))
	tw-train -m "$BASE" --optimizer sgd --plan "$TMP/d.jsonl" >sgd
	test_equal "$(number "memory: optimizer" <sgd)" 0
	tw-train -m "$BASE" --recompute layer --plan "$TMP/d.jsonl" >re
	[ $(number "memory: activations" <re) -lt $(number "memory: activations" <full) ]
	# the largest pass: all of a step where a pass takes that much
	all=$(sed "s/.*\"tokens\":\[\([^]]*\)].*/\1/" "$TMP/d.jsonl" | tr "," "\n" | wc -l | tr -d " ")
	tw-train -m "$BASE" --batch 24 --plan "$TMP/d.jsonl" >m
	test_equal "$(number "largest pass" <m)" $all
	for micro in 1 20 50; do
	    tw-train -m "$BASE" --micro-tokens $micro --plan "$TMP/d.jsonl" >m
	    n=$(number "largest pass" <m)
	    [ $n -le $((micro > 28 ? micro : 28)) ] && [ $n -ge 28 ]
	done
	tw-train -m "$BASE" --shuffle off --batch 1 --plan "$TMP/d.jsonl" >m
	test_equal "$(number "largest pass" <m)" 28
	cat "$TMP/d.jsonl" | tw-train -m "$BASE" --plan >piped
	cmp full piped
'
test_case 'the plan is what a run takes, within 5 percent' '
	! grep -q __asan_init "$TW_BUILD/bin/tw-train" || test_skip "a sanitizer takes memory of its own"
	sed "s/\"hidden_size\": 32/\"hidden_size\": 256/; s/\"intermediate_size\": 64/\"intermediate_size\": 1024/
	    s/\"vocab_size\": 200/\"vocab_size\": 60000/; s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 6/" \
	    "$TMP/shape/config.json" >big.json
	awk "BEGIN { for (i = 0; i < 8; i++) { printf \"{\\\"tokens\\\":[1\"; for (k = 1; k < 256; k++) printf \",%d\", k; print \"]}\" } }" >big.jsonl
	for o in "" "--recompute layer" "--optimizer sgd" "--micro-tokens 512"; do
	    rm -rf r
	    tw-train -m "$TMP/shape" --init random --config-json big.json $o --plan big.jsonl >plan
	    tw-train -m "$TMP/shape" --init random --config-json big.json $o --batch 8 --steps 1 --keep 1 -o r big.jsonl
	    echo "$o: $(number "memory: total" <plan) planned, $(values memory <r/metrics.jsonl) taken"
	    near "$(number "memory: total" <plan)" "$(values memory <r/metrics.jsonl)" 0.05
	done
'
test_case 'what does not fit is refused before any weight is read, with advice' '
	sed "s/\"hidden_size\": 32/\"hidden_size\": 8192/; s/\"vocab_size\": 200/\"vocab_size\": 9000000/" \
	    "$TMP/shape/config.json" >huge.json
	test_exit 1 tw-train -m "$TMP/shape" --init random --config-json huge.json -o r "$TMP/d.jsonl" 2>err
	test_text err "the training needs"
	test_text err "are free: weights and adapter"
	test_text err "--force goes on all the same"
	[ ! -e r ]
'
test_case 'what is forced and does not fit says so before and after' '
	! grep -q __asan_init "$TW_BUILD/bin/tw-train" || test_skip "a sanitizer maps more than a limit allows"
	awk "BEGIN { for (i = 0; i < 8; i++) { printf \"{\\\"tokens\\\":[1\"; for (k = 1; k < 500; k++) printf \",%d\", k % 200; print \"]}\" } }" >long.jsonl
	sed "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 48/" "$TMP/shape/config.json" >deep.json
	set -- -m "$TMP/shape" --init random --config-json deep.json --threads 1 --recompute none \
	    --micro-tokens 4000 --batch 8 -o r long.jsonl
	test_exit 1 sh -c "ulimit -v 400000; exec tw-train \"\$@\"" - "$@" 2>err
	test_text err "the training needs"
	test_text err "What helps; --recompute selective: "
	test_text err "; --recompute layer: "
	test_text err "; --micro-tokens 2000 --recompute layer: "
	test_text err "; --lora trains a small part of the weights"
	test_exit 1 sh -c "ulimit -v 400000; exec tw-train --force \"\$@\"" - "$@" 2>err
	test_equal "$(wc -l <err | tr -d " ")" 2
	sed -n 1p err | grep "activations of 4000 tokens" | grep "What helps"
	sed -n 2p err | grep "no memory on the device for .*; the training needs .*activations of 4000 tokens.*What helps; "
	[ ! -e r ]
'
# but for what kernels want beside the activations: 2.5 MB here, in f32 on tiles for numbers in parts
test_case 'the peak of the longest row is there after the first step' '
	! grep -q __asan_init "$TW_BUILD/bin/tw-train" || test_skip "a sanitizer takes memory of its own"
	awk "BEGIN { for (i = 0; i < 64; i++) { printf \"{\\\"tokens\\\":[1\"; for (k = 1; k < (i == 50 ? 500 : 4); k++) printf \",%d\", k % 200; print \"]}\" } }" >d.jsonl
	sed "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 48/" "$TMP/shape/config.json" >deep.json
	tw-train -m "$TMP/shape" --init random --config-json deep.json --recompute none --threads 1 \
	    --shuffle off --batch 1 --keep 1 -o r d.jsonl
	first=$(values memory <r/metrics.jsonl | sed -n 1p)
	near "$(values memory <r/metrics.jsonl | sed -n 64p)" "$first" 0.05
	near "$(tw-train -m "$TMP/shape" --init random --config-json deep.json --recompute none --shuffle off \
	    --batch 1 --plan d.jsonl | number "memory: total")" "$first" 0.2
'
test_done
