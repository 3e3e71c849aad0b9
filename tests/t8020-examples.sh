#!/bin/sh
# t8020-examples.sh - every script in examples/ runs, at toy size: what it says it writes is there
. "$(dirname "$0")/lib.sh"
X=$TOP/examples
export OUT=. MODEL=tiny
steps() { grep -c '"event":"step"' run/metrics.jsonl; }

test_case 'each is bash that stops at an error, and says what was measured' '
	for f in "$X"/*.sh; do
	    bash -n "$f"
	    case $f in */last-number.sh) continue ;; esac
	    ! grep -q "OUT=run" "$f" || test_text "$f" "mkdir -p \"\$OUT\""
	    for t in "#!/bin/bash" "set -euo pipefail" "Measured"; do test_text "$f" "$t"; done
	    test_equal "$(sed -n 2p "$f" | cut -d " " -f 2)" "$(basename "$f")"
	done
	for f in "$X"/*.sh; do          # and is run here or in a test of its own
	    case $f in */smollm2-identity.sh) continue ;; esac      # it needs a download
	    grep -qw "$(basename "$f" .sh)" "$TOP"/tests/t80*.sh || { echo "$f is not run"; exit 1; }
	done
'
test_case 'sft.sh, evaluate.sh' '
	ROWS=16 "$X/sft.sh" >out
	test_text out "step 6: loss "
	test_text out "after:  "
	test -f run/best/adapter_model.safetensors
	ROWS=10 "$X/evaluate.sh" >out
	grep -qE "^[0-9.]+ % of 10$" out
	REWARD=length,min=1 PROMPTS=test.jsonl TOKENS=3 "$X/evaluate.sh" >out
	test_text out "100.0 % of 10"
'
test_case 'pretrain.sh' '
	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do printf "Line %d, a \"word\"\tand \\\\n.\nMore.\n\n" $i; done >text
	STEPS=2 "$X/pretrain.sh" text >out 2>err
	test_text out "step 2: perplexity "
	test_text train.jsonl "\\\"word\\\""
	test "$(wc -l <test.jsonl)" = 1
'
test_case 'embed.sh' '
	EPOCHS=1 "$X/embed.sh" >out 2>err
	grep -q "^before: own 0[.0-9]*, others 0[.0-9]*, 0[.0-9]* find their own$" out
	test "$(grep -c "^step 3: own " out)" = 1
'
for k in dpo orpo; do
    test_case "$k.sh" "
	ROWS=32 '$X/$k.sh' >out
	grep -qE 'step 4: loss [0-9.]+, [0-9.]+ of the held-out pairs told apart' out
	grep -qE 'after: [0-9]+ of 100 replies are short' out
"
done
test_case 'kto.sh, which makes its folder' '
	OUT=new/folder ROWS=16 "$X/kto.sh" >out
	[ -d new/folder/run/latest ]
	grep -qE "after: [0-9]+ of 100 replies are short" out
'
test_case 'grpo.sh' '
	ROWS=16 "$X/grpo.sh" >out
	grep -qE "^start: [0-9.]+ % of 16" out
	grep -qE "^after: [0-9.]+ % of 16" out
	test_text out "reward_mean"
	test_equal "$(steps)" 2
'
test_case 'grpo-exec.sh, with last-number.sh and with a judge of our own' '
	ROWS=8 "$X/grpo-exec.sh" >out
	test_text out "\"exec\":"
	test_equal "$(steps)" 1
	rm -rf run
	ROWS=8 JUDGE="while read -r r; do echo 0.25; done" "$X/grpo-exec.sh" >out
	test_text out "\"exec\":0.25"
'
test_case 'last-number.sh' '
	{
	    echo "{\"answer\":\"42\",\"completion\":{\"text\":\"40 + 2 = 42.\",\"tokens\":[1]}}"
	    echo "{\"completion\":{\"text\":\"40 + 2 = 142\",\"tokens\":[1]},\"answer\":\"42\"}"
	    echo "{\"completion\":{\"text\":\"\",\"tokens\":[1]},\"answer\":\"42\"}"
	} | "$X/last-number.sh" | tr "\n" " " >out
	test_equal "$(cat out)" "1 0 0 "
'
test_case 'grpo-gsm8k.sh: records with prompt, reply, rewards, advantage, step' '
	for i in 1 2 3 4 5; do
	    printf "%s\n" "{\"question\":\"Ann has $i hens and buys 2. How many hens?\",\"answer\":\"$i + 2 = $((i + 2)) hens.\\n#### $((i + 2))\"}"
	done >rows.jsonl
	STEPS=1 TOKENS=8 "$X/grpo-gsm8k.sh" rows.jsonl >out
	test_text out "step 1: mean reward "
	test "$(wc -l <rollouts.jsonl)" = 32
	test "$(grep "\"ground_truth\":.*\"messages\":.*\"completion\":.*\"policy_step\":0.*\"rewards\":{\"gsm8k-accuracy\":.*\"advantage\":" rollouts.jsonl | wc -l)" = 32
	grep -q "^step 0 {.*} advantage .* wanted [3-7]: " out
'
test_case 'experiment/Makefile: a table; made once' '
	make -s -C "$X/experiment" OUT="$PWD" LR="1e-3 2e-3" RANK=4 ROWS=16 EPOCHS=1 >out
	grep -qE "^[0-9.]+ % of 16 lr=1e-3,r=4,seed=1$" table
	test "$(wc -l <table)" = 2
	make -C "$X/experiment" OUT="$PWD" LR="1e-3 2e-3" RANK=4 ROWS=16 EPOCHS=1 >out
	! grep tw-train out || exit 1
'
test_case 'cron-retrain.sh: publishes what is better, goes on where it was killed, one at a time' '
	mkdir -p h/inbox
	awk -f "$X/sums.awk" -v n=16 -v part=test -v as=chat >h/eval.jsonl
	"$X/cron-retrain.sh" h >out                     # nothing to do
	test ! -s out
	awk -f "$X/sums.awk" -v n=48 -v as=chat >h/inbox/a.jsonl
	"$X/cron-retrain.sh" h >out
	test_text out "runs/0001 published: loss"
	test_equal "$(readlink h/current)" runs/0001/run
	awk -f "$X/sums.awk" -v n=160 -v seed=2 -v as=chat >h/inbox/b.jsonl
	setsid "$X/cron-retrain.sh" h >out &
	while ! [ -e h/runs/0002.new/run/latest ]; do sleep 0.1; done
	"$X/cron-retrain.sh" h >second
	test_text second "another one is at work"
	kill -9 -$!
	wait $! || :
	test ! -s out
	# what was killed may take a moment to let go of the lock
	while "$X/cron-retrain.sh" h >out && grep -q "another one" out; do sleep 0.1; done
	grep -qE "runs/0002 (not )?published: loss" out
	test "$(grep -c "\"event\":\"step\",\"step\":40," h/runs/0002/run/metrics.jsonl)" = 1
	test "$(grep -c "\"event\":\"step\"" h/runs/0002/run/metrics.jsonl)" = 40
	test -z "$(ls h/inbox)"
'
test_done
