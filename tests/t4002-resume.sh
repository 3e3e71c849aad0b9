#!/bin/sh
# A run that was cut and goes on ends with the same bytes as one that was not.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
test_case 'a model with random weights' make_base

train()
{
    run_=$1
    shift
    tw-train -m "$BASE" -o "$run_" "$@" "$TMP/d.jsonl"
}
# cut_at STEP RUN OPTIONS..: trains until step STEP is saved, and interrupts there.
cut_at()
{
    at_=$1
    shift
    cp -r "whole/step-$at_" . # the state of the unbroken run at that step
    mkdir -p "$1"
    mv "step-$at_" "$1/"
    cp "whole/metrics.jsonl" "whole/config.json" "$1/"
}
OPTS='--batch 10 --epochs 3 --schedule linear --lr 1e-3 --save-every 1 --keep 0'

test_case 'of an adapter with dropout, cut after each step' '
	train whole --lora r=2,dropout=0.3 $OPTS
	for at in 1 2 3 4 5 6 7 8; do
	    rm -rf r
	    cut_at $at r
	    train r --lora r=2,dropout=0.3 $OPTS --resume 2>err
	    test_text err "going on after step $at"
	    same_run whole r
	    test_equal "$(values lr <"whole/metrics.jsonl")" "$(values lr <r/metrics.jsonl)"
	done
'
test_case 'of all weights, f32 and bf16, adamw, its moments in fewer bits, sgd and muon' '
	for o in "--dtype f32" "--dtype bf16" "--optimizer sgd,momentum=0.9" "--optimizer sgd" "--optimizer muon" \
	    "--optimizer muon --dtype bf16" "--optimizer adamw,states=8bit" \
	    "--optimizer adamw,states=bf16 --dtype bf16"; do
	    rm -rf whole
	    train whole $o $OPTS
	    for at in 1 3 7; do
	        rm -rf r
	        cut_at $at r
	        train r $o $OPTS --resume 2>err
	        same_run whole r
	    done
	done
'
test_case 'with evaluation, the best one and the early stop' '
	records 5 9 >e.jsonl
	o="--lr 3e-2 --batch 8 --steps 40 --eval e.jsonl --eval-every 1 --early-stop 3 --keep-best --save-every 1 --keep 0"
	train whole $o 2>err
	last=$(readlink "whole/latest")
	last=${last#step-}
	for at in 1 $((last - 2)) $((last - 1)) $last; do
	    rm -rf r
	    cut_at $at r
	    train r $o --resume 2>err
	    same_run whole r
	done
	test_text err "is finished: step $last was its last"
'
test_case 'an interrupt finishes the step, saves, and is raised again' '
	train whole --lora r=2 --batch 2 --steps 400 --keep 0
	tw-train -m "$BASE" -o r --lora r=2 --batch 2 --steps 400 "$TMP/d.jsonl" 2>err &
	pid=$!
	until grep -q "\"step\":10," r/metrics.jsonl 2>/dev/null; do sleep 0.01; done
	kill -TERM $pid
	status=0
	wait $pid || status=$?
	test_equal $status 143
	[ -f r/latest/adapter_model.safetensors ]
	train r --lora r=2 --batch 2 --steps 400 --resume 2>err
	for f in adapter_model.safetensors trainer/optimizer.safetensors; do
	    cmp r/latest/$f "whole/latest/$f"
	done
'
test_case 'a signal while records are read ends it at once, and nothing is in the way' '
	mkfifo in
	for o in "--epochs 2" "--steps 1"; do
	    tw-train -m "$BASE" -o r $o --batch 4 <in 2>err &
	    pid=$!
	    exec 5>in
	    head -n 3 "$TMP/d.jsonl" >&5
	    while [ ! -e r/lock ]; do sleep 0.05; done
	    sleep 0.2
	    kill -TERM $pid
	    status=0
	    wait $pid || status=$?      # the writer still has the pipe open
	    exec 5>&-
	    test_equal $status 143
	    tw-train -m "$BASE" -o r --steps 1 "$TMP/d.jsonl"
	    rm -rf r
	done
'
test_case 'data of a run that never began is not that of the next one' '
	test_exit 1 tw-train -m "$BASE" -o r </dev/null 2>err
	[ ! -e r ]
	test_exit 1 tw-train -m "$BASE" -o r --eval missing <"$TMP/d.jsonl" 2>err
	[ ! -e r ]
	tw-train -m "$BASE" -o a --lora r=2 --epochs 2 <"$TMP/d.jsonl"
	mkdir r
	cp a/data-0.tws r/                          # as kill -9 leaves it
	test_exit 1 tw-train -m "$BASE" -o r --lora r=2 --epochs 2 </dev/null 2>err
	test_text err "tw-train: stdin: no sample has a token to train on (0 records read)"
	[ ! -e r ]
'
test_case 'killed before the first checkpoint, it begins again' '
	mkdir r
	echo "{}" >r/config.json
	echo "{\"event\":\"step\"}" >r/metrics.jsonl
	: >r/lock
	train r --lora r=2 --batch 8 --steps 2 --resume
	test_equal "$(values step <r/metrics.jsonl | tr "\n" " ")" "1 2 "
	train fresh --resume --lora r=2 --batch 8 --steps 2
	cmp r/latest/adapter_model.safetensors fresh/latest/adapter_model.safetensors
'
test_case 'a damaged checkpoint is named and the one before it taken' '
	train whole --lora r=2 --batch 8 --steps 4 --save-every 1 --keep 0
	cp -r whole r
	printf x | dd of=r/step-4/adapter_model.safetensors bs=1 seek=200 conv=notrunc 2>/dev/null
	rm r/step-3/trainer/state.json
	mkdir r/step-9 r/.ckpt-step-5.new-1
	train r --lora r=2 --batch 8 --steps 4 --save-every 1 --keep 0 --resume 2>err
	test_text err "r/step-9 is skipped"
	test_text err "r/step-4 is skipped: r/step-4/adapter_model.safetensors: damaged"
	test_text err "r/step-3 is skipped: r/step-3/trainer/state.json"
	test_text err "going on after step 2"
	same_run whole r
	[ ! -e r/.ckpt-step-5.new-1 ]
	for s in 1 2 3 4; do rm r/step-$s/trainer/manifest.json; done
	test_exit 1 train r --lora r=2 --batch 8 --steps 5 --save-every 1 --keep 0 --resume 2>err
	test_text err "checkpoints is intact"
'
test_case 'what would change the result is refused by name, and --force goes on' '
	o="--lora r=2 --batch 8 --steps 2"
	train a $o
	for new in "--lr 1e-3" "--batch 6" "--steps 4" "--steps 1" "--shuffle 1" "--shuffle off" "--seed 1" \
	    "--schedule linear" "--optimizer sgd" "--weight-decay 0" "--decay-on all" "--clip 2" \
	    "--lora r=3" "--loss-scale sum" "--dtype bf16"; do
	    test_exit 1 train a $o $new --resume 2>err
	    test_text err "${new% *}"
	    test_text err "the run was started with"
	done
	records 24 2 >other.jsonl
	test_exit 1 tw-train -m "$BASE" -o a $o --resume other.jsonl 2>err
	test_text err "the data: the run was started with 24 samples"
	train a --lora r=2 --batch 8 --steps 4 --lr 1e-3 --resume --force
	test_equal "$(values step <a/metrics.jsonl | tr "\n" " ")" "1 2 3 4 "
	# what changes no number may change
	cp -r a b
	train b --lora r=2 --batch 8 --steps 4 --lr 1e-3 --resume --threads 1 --micro-tokens 9 \
	    --recompute layer --keep 1 --save-every 7
'
test_case 'a finished run stays as it is' '
	train a --lora r=2 --batch 8 --steps 2
	cp -r a b
	train a --lora r=2 --batch 8 --steps 2 --resume 2>err
	test_text err "a is finished: step 2 was its last"
	same_run a b
'
test_case 'two in one folder, and a folder that is in use' '
	train a --lora r=2 --batch 8 --steps 1
	test_exit 1 train a --lora r=2 --batch 8 --steps 1 2>err
	test_text err "a: is there already: go on with it by --resume"
	(flock 9; test_exit 1 train a --lora r=2 --batch 8 --steps 1 --resume 2>err) 9>a/lock
	test_text err "another tw-train is working in it"
	mkdir empty
	train empty --lora r=2 --batch 8 --steps 1
	: >file
	test_exit 1 train file --lora r=2 2>err
	test_text err "file: is not a folder"
'
test_case 'how many checkpoints stay' '
	train a --lora r=2 --batch 8 --steps 6 --save-every 1 --keep 2
	test_equal "$(ls -d a/step-* | tr "\n" " ")" "a/step-5 a/step-6 "
	train b --lora r=2 --batch 8 --steps 6 --save-every 2
	test_equal "$(ls -d b/step-* | tr "\n" " ")" "b/step-2 b/step-4 b/step-6 "
	train c --lora r=2 --batch 8 --epochs 5
	test_equal "$(ls -d c/step-* | tr "\n" " ")" "c/step-12 c/step-15 c/step-9 "
	test_equal "$(readlink c/latest)" step-15
'
test_done
