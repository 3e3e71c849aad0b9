#!/bin/sh
# Moments of AdamW in bf16 and in 8 bits: curves beside those in f32, bytes that do not depend on threads,
# a file that all of them can go on from, and what they take.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
test_case 'a model with random weights' make_base

# mean of the last losses
tail_loss()
{
    values loss <"$1/metrics.jsonl" | tail -n 8 | awk '{ s += $1 } END { print s / NR }'
}
test_case 'losses of the built-in model, all weights, within 1 % of f32' '
	tw-preprocess self-cognition,name=Twinkle,author=ModelScope "$TOP/examples/data/identity.json" |
	    tw-encode -m tiny --max-length 512 >d.tws
	for s in f32 bf16 8bit; do
	    tw-train -m tiny -o $s --dtype f32 --lr 3e-4 --batch 4 --steps 12 --keep 0 --optimizer adamw,states=$s d.tws
	    echo "$s $(tail_loss $s)"
	done
	near "$(tail_loss bf16)" "$(tail_loss f32)" 0.01
	near "$(tail_loss 8bit)" "$(tail_loss f32)" 0.01
	! near "$(tail_loss f32)" "$(values loss <f32/metrics.jsonl | head -n 1)" 0.2
'
test_case 'the same bytes with any number of threads' '
	for s in bf16 8bit; do
	    for o in "--dtype f32" "--dtype bf16" "--lora r=3"; do
	        rm -rf a b
	        for t in 1 3; do
	            tw-train -m "$BASE" --optimizer adamw,states=$s --lr 1e-3 --batch 6 $o -o run-$t --threads $t "$TMP/d.jsonl"
	        done
	        same_run run-1 run-3
	        rm -rf run-1 run-3
	    done
	done
'
test_case 'another form can go on from a file, when it is forced to' '
	for s in f32 bf16 8bit; do
	    tw-train -m "$BASE" --optimizer adamw,states=$s --steps 2 --keep 1 --lr 1e-3 -o a "$TMP/d.jsonl"
	    for n in f32 bf16 8bit; do
	        cp -r a b
	        [ $s = $n ] || test_exit 1 tw-train -m "$BASE" --optimizer adamw,states=$n --steps 2 --resume -o b "$TMP/d.jsonl"
	        tw-train -m "$BASE" --optimizer adamw,states=$n --steps 3 --resume --force --lr 1e-3 -o b "$TMP/d.jsonl"
	        test_equal "$(readlink b/latest)" step-3
	        rm -rf b
	    done
	    rm -rf a
	done
'
test_case 'the plan counts 8, 4 and about 2 bytes a number' '
	for s in f32 bf16 8bit; do
	    tw-train -m tiny --optimizer adamw,states=$s --plan "$TMP/d.jsonl" >$s
	done
	plan() { sed -n "s/^memory: optimizer.* \([0-9]*\) bytes/\1/p" <"$1"; }
	near $(plan bf16) $(($(plan f32) / 2)) 0.01
	near $(plan 8bit) $(($(plan f32) / 4)) 0.05
'
test_case 'what they are not is refused' '
	test_exit 2 tw-train -m "$BASE" --optimizer adamw,states=4bit -o r "$TMP/d.jsonl" 2>err
	test_text err "f32|bf16|8bit"
	test_exit 2 tw-train -m "$BASE" --optimizer muon,states=bf16 -o r "$TMP/d.jsonl" 2>err
	test_text err "states"
'
test_done
