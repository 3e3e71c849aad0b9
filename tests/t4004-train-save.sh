#!/bin/sh
# Saving: a failed write, flush or rename, or a full disk, leaves the checkpoints before it intact, and
# the run goes on from there to the same bytes.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
test_case 'a model with random weights' make_base

O="--lora r=2,dropout=0.2 --batch 8 --steps 3 --save-every 1 --keep 2"
train()
{
    run_=$1
    shift
    tw-train -m "$BASE" -o "$run_" "$@" "$TMP/d.jsonl"
}
inject()
{
    LD_PRELOAD="$TW_BUILD/tests/inject.so" TW_INJECT_PATH=r/ TW_INJECT="$1" train r $O --resume
}

test_case 'one failure anywhere, then going on' '
	train whole $O
	LD_PRELOAD="$TW_BUILD/tests/inject.so" TW_INJECT_PATH=r/ TW_INJECT_COUNT="$PWD/count" train r $O --resume
	same_run whole r
	for kind in open write fsync rename; do
	    n=$(grep -c "^$kind" count || :)
	    echo "$kind: $n calls"
	    [ $n -gt 3 ]
	    i=1
	    while [ $i -le $n ]; do
	        rm -rf r
	        status=0
	        inject $kind:$i 2>err || status=$?
	        if [ $status != 0 ]; then
	            [ $status = 1 ]
	            test_text err "tw-train: "
	            grep -qE "No space left on device|cannot" err
	        fi
	        # what is there verifies, and nothing half-written has a name
	        if [ -L r/latest ]; then [ -f r/latest/trainer/manifest.json ]; fi
	        train r $O --resume 2>err2
	        test_no_text err2 "is skipped"
	        same_run whole r
	        # of many calls, some: the steps are alike
	        if [ $n -gt 20 ] && [ -z "$TW_TEST_LONG" ]; then i=$((i + n / 10)); else i=$((i + 1)); fi
	    done
	done
'
test_case 'a pipe that cannot be kept' '
	cat "$TMP/d.jsonl" | tw-train -m "$BASE" -o whole $O
	for at in open:1 open:2 write:1 write:2 write:3 write:4 fsync:1 rename:1 rename:2; do
	    status=0
	    cat "$TMP/d.jsonl" | LD_PRELOAD="$TW_BUILD/tests/inject.so" TW_INJECT_PATH=r/ TW_INJECT=$at \
	        tw-train -m "$BASE" -o r $O 2>err || status=$?
	    test_equal $status 1
	    test_text err "No space left on device"
	    cat "$TMP/d.jsonl" | tw-train -m "$BASE" -o r $O --resume
	    same_run whole r
	    rm -rf r
	done
'
test_case 'a disk that holds one checkpoint and a half' '
	mkdir disk
	mount -t tmpfs -o size=1200k tmpfs disk 2>/dev/null || test_skip "cannot mount"
	status=0
	# 31,200 weights and two moments: 375 kB a checkpoint, of which an old one stays
	train disk/r --batch 8 --steps 9 --save-every 1 --keep 0 2>err || status=$?
	kept=$(readlink disk/r/latest)
	ls -A disk/r >names
	cp -r disk/r r
	umount disk
	cat err
	test_equal $status 1
	test_text err "no space for a checkpoint: it takes"
	test_text err "are free"
	! grep -q "^.ckpt" names
	train r --batch 8 --steps 9 --save-every 1 --keep 0 --resume 2>err
	test_text err "going on after step ${kept#step-}"
	train whole --batch 8 --steps 9 --save-every 1 --keep 0
	same_run whole r
'
test_case 'a file that may not grow so large' '
	test_exit 1 sh -c "ulimit -f 100; trap \"\" XFSZ; exec tw-train -m $BASE -o r --batch 8 --steps 1 $TMP/d.jsonl" 2>err
	test_text err "File too large"
	[ ! -e r/latest ]
	! ls -d r/step-* 2>/dev/null
'
test_case 'metrics that cannot be written are an error' '
	test_exit 1 train r --lora r=2 --metrics /dev/full 2>err
	test_text err "/dev/full: cannot write"
'
test_case 'weights that are not finite are never saved' '
	train a --lora r=2 --batch 8 --steps 1
	test_exit 1 train b --optimizer sgd --clip 0 --lr 1e6 --weight-decay 1e3 --decay-on all --batch 8 --steps 40 --keep 0 --save-every 1 2>err
	grep -qE "is not finite|not finite" err
	[ ! -L b/latest ] || [ -f b/latest/trainer/manifest.json ]
'
test_case 'a checkpoint carries what the tokenizer and the sampler need' '
	cp -r "$BASE" m
	echo "{\"eos_token_id\":2}" >m/generation_config.json
	echo "{{ messages }}" >m/chat_template.jinja
	tw-train -m m -o r --lora r=2 --batch 8 --steps 1 "$TMP/d.jsonl"
	cmp m/generation_config.json r/latest/generation_config.json
	cmp m/chat_template.jinja r/latest/chat_template.jinja
	grep -q "chat_template.jinja" r/latest/trainer/manifest.json
	grep -q "\"base_model_name_or_path\": *\"m\"" r/latest/adapter_config.json
'
test_done
