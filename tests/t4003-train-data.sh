#!/bin/sh
# Where tw-train gets its samples: files, pipes, shards, kinds of records; what it leaves out.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
test_case 'a model with random weights' make_base

T='tw-train --lora r=2 --batch 8'
test_case 'a file, a pipe, a shard and a piped shard give the same run' '
	o="--epochs 2 --schedule cosine,warmup=1 --lr 1e-2"
	$T -m "$BASE" $o -o file "$TMP/d.jsonl"
	cat "$TMP/d.jsonl" | $T -m "$BASE" $o -o pipe
	$T -m "$BASE" $o -o stdin - <"$TMP/d.jsonl"
	tw-encode -m "$BASE" -o d.tws "$TMP/d.jsonl"
	$T -m "$BASE" $o -o shard d.tws
	cat d.tws | $T -m "$BASE" $o -o piped
	head -n 9 "$TMP/d.jsonl" >1.jsonl
	tail -n +10 "$TMP/d.jsonl" >2.jsonl
	tw-encode -m "$BASE" -o 2.tws 2.jsonl
	$T -m "$BASE" $o -o parts 1.jsonl 2.jsonl
	$T -m "$BASE" $o -o mixed 1.jsonl 2.tws
	mkfifo fifo
	cat 2.jsonl >fifo &
	cat 1.jsonl | $T -m "$BASE" $o -o pipes - fifo
	for r in pipe stdin shard piped parts mixed pipes; do same_run file $r; done
	(printf "\357\273\277"; sed "s/\$/\r/" "$TMP/d.jsonl"; printf "\n\n") >crlf.jsonl
	(printf "[\n"; sed "\$!s/\$/,/" "$TMP/d.jsonl"; printf "]\n") >array.json
	$T -m "$BASE" $o -o crlf crlf.jsonl
	$T -m "$BASE" $o -o array array.json
	same_run file crlf
	same_run file array
	[ -f pipe/data-0.tws ] && [ ! -e file/data-0.tws ]
'
test_case 'a pipe that needs no other order is trained on as it comes' '
	$T -m "$BASE" --shuffle off -o file "$TMP/d.jsonl"
	(head -n 8 "$TMP/d.jsonl"
	    until [ -s stream/metrics.jsonl ] && grep -q "\"step\":1," stream/metrics.jsonl; do sleep 0.05; done
	    tail -n +9 "$TMP/d.jsonl") | $T -m "$BASE" --shuffle off -o stream
	same_run file stream
	[ ! -e stream/data-0.tws ]
	cat "$TMP/d.jsonl" | $T -m "$BASE" --shuffle off --steps 9 -o short 2>err
	test_text err "the data ended after 3 of 9 steps"
	test_equal "$(readlink short/latest)" step-3
'
test_case 'a stream goes on behind what was consumed, and must be the same' '
	o="--shuffle off --save-every 1 --keep 0"
	cat "$TMP/d.jsonl" | $T -m "$BASE" $o -o whole
	mkdir r
	cp -r whole/step-2 whole/metrics.jsonl whole/config.json r
	cp -r r r2
	cat "$TMP/d.jsonl" | $T -m "$BASE" $o -o r --resume
	same_run whole r
	records 24 5 | test_exit 1 $T -m "$BASE" $o -o r2 --resume 2>err
	test_text err "its first 16 samples are not those that the run has trained on"
'
test_case 'a signal acts while a stream is waited for; what was read of that step is read again' '
	o="--shuffle off --save-every 1 --keep 0"
	cat "$TMP/d.jsonl" | $T -m "$BASE" $o -o whole
	mkfifo fifo
	{ head -n 19 "$TMP/d.jsonl"; exec sleep 60; } >fifo &
	writer=$!
	env --default-signal=INT $T -m "$BASE" $o -o r <fifo &
	trainer=$!
	until grep -q "\"step\":2," r/metrics.jsonl 2>/dev/null; do sleep 0.05; done
	sleep 0.3
	kill -INT $trainer
	test_exit 130 wait $trainer
	kill $writer
	test_equal "$(readlink r/latest)" step-2
	cat "$TMP/d.jsonl" | $T -m "$BASE" $o -o r --resume
	same_run whole r
'
test_case 'a run from a pipe goes on without the pipe, or with the same' '
	o="--epochs 3 --save-every 1 --keep 0"
	cat "$TMP/d.jsonl" | $T -m "$BASE" $o -o whole
	for how in 1 2; do
	    rm -rf r
	    mkdir r
	    cp -r whole/step-4 whole/metrics.jsonl whole/config.json whole/data-0.tws r
	    if [ $how = 1 ]; then $T -m "$BASE" $o -o r --resume </dev/null
	    else cat "$TMP/d.jsonl" | $T -m "$BASE" $o -o r --resume; fi
	    same_run whole r
	done
	records 24 5 | test_exit 1 $T -m "$BASE" $o -o r --resume 2>err
	test_text err "the data: the run was started with"
'
test_case 'the order is a function of seed, epoch and index' '
	# one token record a step, told apart by its length: two epochs are permutations, and differ
	for s in 42 7; do
	    tw-train -m "$BASE" --lora r=2 --batch 1 --epochs 2 --shuffle $s -o r$s "$TMP/d.jsonl"
	    values tokens <r$s/metrics.jsonl | awk "{ print \$1 - last; last = \$1 }" >order$s
	    for e in 1 25; do
	        tail -n +$e order$s | head -n 24 >o$s.$e
	        sort -n o$s.$e >sorted$s.$e
	    done
	    cmp sorted$s.1 sorted$s.25
	    ! cmp -s o$s.1 o$s.25
	done
	cmp sorted42.1 sorted7.1
	! cmp -s o42.1 o7.1
	tw-train -m "$BASE" --lora r=2 --batch 1 --shuffle off -o off "$TMP/d.jsonl"
	awk "{ gsub(/,\"weights.*/, \"\"); print split(\$0, x, /tokens\":/) ? split(x[2], y, \",\") : 0 }" "$TMP/d.jsonl" >lengths
	values tokens <off/metrics.jsonl | awk "{ print \$1 - last; last = \$1 }" | cmp - lengths
'
test_case 'records without anything to train on are left out and counted' '
	head -n 8 "$TMP/d.jsonl" >few.jsonl
	$T -m "$BASE" -o few few.jsonl
	(head -n 4 few.jsonl; for i in 1 2 3; do echo "{\"tokens\":[5,6],\"weights\":[1,0]}"; done; tail -n 4 few.jsonl) >some.jsonl
	$T -m "$BASE" -o some some.jsonl 2>err
	test_text err "3 skipped"
	test_text err "some.jsonl:5"
	same_run few some
	for i in 1 2 3 4; do echo "{\"tokens\":[5,6,7],\"weights\":[1,0,0]}"; done >none.jsonl
	test_exit 1 $T -m "$BASE" -o none none.jsonl 2>err
	test_text err "none.jsonl: no sample has a token to train on (4 records read)"
	[ ! -e none ]
	cat few.jsonl none.jsonl none.jsonl none.jsonl >most.jsonl
	test_exit 1 $T -m "$BASE" -o most most.jsonl 2>err
	test_text err "12 of 20 records have nothing to train on"
	$T -m "$BASE" -o most --force most.jsonl
	same_run few most
	: >empty.jsonl
	test_exit 1 $T -m "$BASE" -o empty empty.jsonl 2>err
	test_text err "no sample has a token to train on (0 records read)"
'
test_case 'a packed row counts as one sample and its documents do not see each other' '
	tw-encode -m "$BASE" --pack 64 -o packed.tws "$TMP/d.jsonl"
	tw-train -m "$BASE" --batch 100 --steps 1 -o plain "$TMP/d.jsonl"
	tw-train -m "$BASE" --batch 100 --steps 1 -o packed packed.tws
	near "$(values loss <packed/metrics.jsonl)" "$(values loss <plain/metrics.jsonl)" 1e-6
	near "$(values grad_norm <packed/metrics.jsonl)" "$(values grad_norm <plain/metrics.jsonl)" 1e-5
'
test_case 'bad records are named before any training' '
	bad() { # LINE TEXT
	    (head -n 2 "$TMP/d.jsonl"; echo "$1") >bad.jsonl
	    test_exit 1 $T -m "$BASE" -o bad bad.jsonl 2>err
	    test_text err "tw-train: bad.jsonl:3: "
	    test_text err "$2"
	    [ ! -e bad ]
	    (head -n 2 "$TMP/d.jsonl"; echo "$1") | test_exit 1 $T -m "$BASE" -o bad 2>err
	    test_text err "tw-train: stdin:3: "
	    [ ! -e bad ]
	}
	bad "{\"tokens\":[1,200]}" "200"
	bad "{\"tokens\":[1,-1]}" "tokens[1]: expected a token id"
	bad "{\"tokens\":[1,2],\"weights\":[1]}" "weights"
	bad "{\"tokens\":\"x\"}" "tokens"
	bad "{\"tokens\":[1,2" "column"
	bad "{\"other\":1}" ""
	bad "{\"chosen\":{\"tokens\":[1,2]},\"rejected\":{\"tokens\":[1,3]},\"messages\":[]}" ""
	long=$(awk "BEGIN { printf \"{\\\"tokens\\\":[5\"; for (i = 0; i < 512; i++) printf \",6\"; print \"]}\" }")
	bad "$long" "513 tokens is longer than the model"
	tw-encode -m "$BASE" -o d.tws "$TMP/d.jsonl"
	head -c 900 d.tws >cut.tws
	test_exit 1 $T -m "$BASE" -o bad cut.tws 2>err
	test_text err "cut.tws: "
	(head -c 700 d.tws; printf xxx; tail -c +704 d.tws) >flip.tws
	test_exit 1 $T -m "$BASE" -o bad flip.tws 2>err
	test_text err "flip.tws: "
	test_exit 1 $T -m "$BASE" -o bad missing.jsonl 2>err
	test_text err "missing.jsonl: cannot open"
	test_exit 1 $T -m "$BASE" -o bad . 2>err
	test_text err "this is a folder"
	[ ! -e bad ]
'
test_case 'log-probabilities of rollouts that cannot be are named before any training' '
	roll() { # LOGPROBS [WEIGHTS]
	    echo "{\"prompt_tokens\":[1,2],\"completion\":{\"tokens\":[5,6],\"logprobs\":$1${2:+,\"weights\":$2}},\"group\":0,\"group_size\":1,\"reward\":1,\"advantage\":1}"
	}
	for l in grpo ppo gspo importance_sampling dro; do
	    for x in "0.0011 0.0011" "2.5 2.5" "1e9 1e+09"; do
	        (roll "[-1,-2]"; roll "[-1,${x% *}]") >r.jsonl
	        test_exit 1 $T -m "$BASE" -o bad --loss $l r.jsonl 2>err
	        test_text err "tw-train: r.jsonl:2: completion.logprobs[1] is ${x#* }, which the logarithm of a probability cannot be"
	        test_equal "$(wc -l <err | tr -d " ")" 1
	        [ ! -e bad/latest ]
	    done
	done
	for x in -1e300 1e300 null "\"a\""; do
	    roll "[$x,-1]" >r.jsonl
	    test_exit 1 $T -m "$BASE" -o bad --loss grpo r.jsonl 2>err
	    test_text err "r.jsonl:1: completion.logprobs[0] is not a finite number"
	    rm -rf bad
	done
	# of a token that is not trained it is nothing that is read; rounding may lead above 0
	(roll "[-1,3]" "[1,0]"; roll "[-1,1e-6]") >r.jsonl
	$T -m "$BASE" -o good --loss grpo r.jsonl
'
test_case 'a step that overflows is skipped, and too many in a row end the run' '
	head -n 4 "$TMP/d.jsonl" >some.jsonl
	echo "{\"tokens\":[5,6,7],\"weights\":[0,2e38,2e38]}" >inf.jsonl
	(cat some.jsonl; cat inf.jsonl; cat some.jsonl) >one.jsonl
	o="--batch 1 --shuffle off --lr 1e-2 --save-every 1 --keep 0 --loss-scale sum"
	tw-train -m "$BASE" --lora r=2 $o -o a one.jsonl 2>err
	test_text err "step 5 is skipped: the gradient is not finite"
	test_equal "$(values step skip <a/metrics.jsonl)" 5
	cmp a/step-4/adapter_model.safetensors a/step-5/adapter_model.safetensors
	cmp a/step-4/trainer/optimizer.safetensors a/step-5/trainer/optimizer.safetensors
	! cmp -s a/step-5/adapter_model.safetensors a/step-6/adapter_model.safetensors
	(cat some.jsonl; for i in 1 2 3 4 5; do cat inf.jsonl; done) >many.jsonl
	test_exit 1 tw-train -m "$BASE" --lora r=2 $o --max-skips 3 -o b many.jsonl 2>err
	test_text err "4 steps in a row had a gradient that is not finite"
	cmp a/step-4/adapter_model.safetensors b/latest/adapter_model.safetensors
	tw-train -m "$BASE" --lora r=2 $o --max-skips 5 -o c many.jsonl
'
test_done
