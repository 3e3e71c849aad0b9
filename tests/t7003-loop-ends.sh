#!/bin/sh
# t7003-loop-ends.sh - how a reinforcement pipe ends before its data does: a killed stage, Ctrl-C
. "$(dirname "$0")/lib.sh"
M=$DATA/models/qwen3
export M

i=0
while [ $i -lt 4000 ]; do
    echo "{\"tokens\":[$((10 + i % 50)),$((40 + i % 37)),77,$((100 + i % 90))],\"id\":$i}"
    i=$((i + 1))
done >"$TMP/in"
# The three stages as a shell starts them: one group, each with its own stderr, status and process id.
cat >"$TMP/pipe" <<'X'
stage() { n=$1; shift; sh -c 'echo $$ >"$0.pid"; exec "$@" 2>"$0.err"' "$n" "$@"; echo $? >$n.status; }
stage sample tw-sample -q -m "$M" --policy run -n 4 --max-tokens 5 $LAG "$IN" |
    stage reward tw-reward -q --exec 'while read -r l; do echo $((${#l} % 2)); done' --advantage grpo |
    stage train tw-train -q -m "$M" $LORA --lr 1e-3 --loss grpo --batch 8 --save-every 2 -o run $RESUME
X
start() # FILE: in the background, where SIGINT is not ignored
{
    IN=$1 LAG=$LAG LORA=${LORA---lora r=4} setsid env --default-signal=INT sh "$TMP/pipe" &
    group=$!
}
finish() # FILE: with --resume, to its end
{
    IN=$1 RESUME=--resume LORA=${LORA---lora r=4} sh "$TMP/pipe"
    test_equal "$(cat sample.status reward.status train.status | tr "\n" " ")" "0 0 0 "
}
running() { until grep -qE "\"step\":([3-9]|[1-9][0-9])" run/policy.json 2>/dev/null; do sleep 0.02; done; }
# ended: all three, which takes no two seconds on a machine without other work
ended()
{
    t_=0
    while [ ! -s sample.status ] || [ ! -s reward.status ] || [ ! -s train.status ]; do
        t_=$((t_ + 1))
        [ $t_ -lt 1200 ] || { echo "still running:"; ls; ps -ef | grep tw-; exit 1; }
        sleep 0.05
    done
}
# nothing twice and nothing lost: after a restart every prompt of the input was trained once
whole() # PROMPTS
{
    test_text run/policy.json "\"trained\":$((4 * $1)),\"dropped\":0,\"prompts\":$1"
}

test_case 'kill -9 of the sampler ends the others, with a message; --resume goes on' '
	start "$TMP/in"
	running
	rm -f *.status
	kill -9 "$(cat sample.pid)"
	ended
	test_text train.err "a stage before this one failed; --resume goes on from step "
	test_equal "$(cat train.status)" 1
	head -n 60 "$TMP/in" >in60
	finish in60
	whole 60
'
test_case 'kill -9 of the reward stage ends the others, with a message from both' '
	start "$TMP/in"
	running
	rm -f *.status
	kill -9 "$(cat reward.pid)"
	ended
	test_text train.err "a stage before this one failed; --resume goes on from step "
	test_equal "$(cat sample.status train.status | tr "\n" " ")" "1 1 "
	grep -qE "the command that reads the rollouts is gone|the trainer is gone" sample.err
	head -n 60 "$TMP/in" >in60
	finish in60
	whole 60
'
test_case 'kill -9 of the trainer ends the others, with a message' '
	start "$TMP/in"
	running
	rm -f *.status
	kill -9 "$(cat train.pid)"
	ended
	test_equal "$(cat sample.status)" 1
	grep -qE "the trainer is gone after [0-9]* rollouts; tw-train --resume goes on from its last saved step|reads the rollouts is gone" sample.err
	head -n 60 "$TMP/in" >in60
	finish in60
	whole 60
'
test_case 'Ctrl-C ends all three without a complaint; the step is saved, and a restart loses nothing' '
	for LAG in "" "--max-lag 0"; do
	    rm -rf run
	    start "$TMP/in"
	    running
	    rm -f *.status
	    kill -s INT -- -$group
	    i=0
	    while kill -s 0 -- -$group 2>/dev/null; do
		i=$((i + 1))
		test $i -lt 1200
		sleep 0.05
	    done
	    wait $group || :
	    cat train.err sample.err reward.err
	    test ! -s train.err && test ! -s sample.err && test ! -s reward.err
	    step=$(sed "s/.*\"step\":\([0-9]*\),.*/\1/" run/latest/trainer/state.json | head -n 1)
	    test "$(readlink run/latest)" = "step-$step"
	    test "$(tail -n 1 run/metrics.jsonl | grep -c "\"step\":$step,")" = 1
	    head -n 100 "$TMP/in" >in100
	    finish in100
	    whole 100
	done
'
test_case 'a signal acts at once while the trainer waits for a record' '
	at_once() # SIGNAL, FILE that comes before the silence
	{
	    rm -rf r fifo
	    mkfifo fifo
	    { cat "$2"; exec sleep 100; } >fifo &
	    writer=$!
	    env --default-signal=INT tw-train -q -m "$M" --lora r=4 --loss grpo --batch 8 -o r <fifo 2>err &
	    p=$!
	    until [ -s r/policy.json ]; do sleep 0.02; done
	    sleep 0.3
	    [ ! -s "$2" ] || until grep -q "\"step\":1," r/policy.json; do sleep 0.02; done
	    kill -$1 $p
	    i=0
	    while kill -0 $p 2>/dev/null; do i=$((i + 1)); test $i -lt 1200; sleep 0.05; done
	    s=0
	    wait $p || s=$?
	    kill $writer
	    test_equal "$(cat err)" ""
	}
	: >none
	at_once INT none
	test_equal $s 130
	test ! -e r/latest
	tw-sample -q -m "$M" -n 4 --max-tokens 3 "$TMP/in" 2>/dev/null | head -n 12 >rolls || :
	tw-reward -q --exec "while read -r l; do echo 1; done" rolls --advantage none >twelve
	at_once TERM twelve
	test_equal $s 143
	test "$(readlink r/latest)" = step-1
	test_text r/latest/trainer/state.json "\"trained\":8,\"dropped\":0,\"prompts\":2,"
'
test_case 'all weights: the sampler takes each step of the whole model, and its numbers are the trainer'"'"'s' '
	export LORA= LAG="--max-lag 0"
	head -n 24 "$TMP/in" >in24
	mkfifo a
	tw-sample -q -m "$M" --policy run -n 4 --max-lag 0 --max-tokens 4 in24 |
	    tw-reward -q --exec "while read -r l; do echo \$((\${#l} % 2)); done" --advantage grpo | tee rolls |
	    tw-train -q -m "$M" --lr 1e-3 --loss grpo --batch 8 -o run
	test "$(grep -c "\"ratio_mean\":1.0,\"ratio_max\":1.0,.*\"logp_diff_mean\":0.0" run/metrics.jsonl)" = 12
	i=0
	while IFS= read -r line; do
	    echo "$line" | grep -q "\"policy_step\":$((i / 8))," || { echo "rollout $i"; exit 1; }
	    i=$((i + 1))
	done <rolls
	test $i = 96
	test -s run/policy/step-12/model.safetensors
	cmp run/policy/step-12/model.safetensors run/latest/model.safetensors
'
test_case 'a sampler does not trust what a killed trainer left: it is gone before the lock is held' '
	start "$TMP/in"
	running
	kill -9 "$(cat train.pid)"
	ended
	test -e run/policy.json
	mkfifo held go
	flock -s run/lock sh -c "echo >held; read -r x <go" &
	read -r x <held                 # as a sampler does for a moment
	: | tw-train -q -m "$M" --lora r=4 --lr 1e-3 --loss grpo --batch 8 -o run --resume 2>err &
	trainer=$!
	while [ -e run/policy.json ]; do kill -0 $trainer; sleep 0.02; done
	flock -ns run/lock true
	echo >go
	wait $trainer || :
	! grep "another tw-train" err
'
test_case 'a trainer that goes on behind a sampler that stayed: the sampler says so and ends' '
	mkdir run
	: >run/lock
	echo "{\"step\":5,\"batch\":8,\"trained\":40,\"dropped\":0,\"prompts\":0}" >run/policy.json
	mkfifo held go
	flock run/lock sh -c "echo >held; read -r x <go" &
	read -r x <held
	timeout --foreground 60 tw-sample -q -m "$M" --policy run -n 4 --max-tokens 5 "$TMP/in" >rolls 2>err &
	sampler=$!
	until [ "$(wc -l <rolls)" = 16 ]; do kill -0 $sampler; sleep 0.02; done
	echo "{\"step\":3,\"batch\":8,\"trained\":24,\"dropped\":0,\"prompts\":0}" >new
	mv new run/policy.json
	status=0
	wait $sampler || status=$?
	test_equal $status 1
	test_text err "run/policy.json: goes back from step 5 to 3: another tw-train goes on in this run; start tw-sample anew, too"
	echo >go
'
test_done
