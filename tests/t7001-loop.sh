#!/bin/sh
# t7001-loop.sh - reinforcement as one pipe: sampler, reward, trainer, and the path back
. "$(dirname "$0")/lib.sh"
M=$DATA/models/qwen3
export M

# Prompts are token lists; the reward is a command: 1 where the completion holds an even number of even ids.
i=0
while [ $i -lt 24 ]; do
    echo "{\"tokens\":[$((10 + i)),$((40 + i * 3)),77,$((100 + i))],\"id\":$i}"
    i=$((i + 1))
done >"$TMP/in.jsonl"
cat >"$TMP/even" <<'X'
#!/bin/sh
while IFS= read -r line; do
    t=${line#*\"completion\":\{\"tokens\":\[}
    n=0
    for id in $(echo "${t%%\]*}" | tr , ' '); do [ $((id % 2)) = 0 ] && n=$((n + 1)); done
    echo $((n % 2))
done
X
chmod +x "$TMP/even"
loop() # RUN, input, options of tw-sample, of tw-reward, of tw-train
{
    tw-sample -q -m "$M" --policy "$1" -n 4 --max-tokens 5 --temperature 1.2 $3 "$2" >"$1.sampled.pipe" &
    tw-reward -q --exec "$TMP/even" --advantage grpo $4 <"$1.sampled.pipe" >"$1.scored.pipe" &
    tw-train -q -m "$M" --lora r=4 --lr 1e-2 --loss grpo --batch 8 -o "$1" $5 <"$1.scored.pipe"
}
pipes() { mkfifo "$1.sampled.pipe" "$1.scored.pipe"; }

test_case 'the ratio is 1, and the sampler gave the very log-probabilities of the trainer' '
	pipes run
	loop run "$TMP/in.jsonl" "--max-lag 0" "" ""
	wait
	test "$(grep -c "\"event\":\"step\"" run/metrics.jsonl)" = 12
	test "$(grep -c "\"ratio_mean\":1.0,\"ratio_max\":1.0,\"clip_ratio\":0.0,.*\"logp_diff_mean\":0.0" run/metrics.jsonl)" = 12
	test_text run/policy.json "\"step\":12,"
	test_text run/policy.json "\"trained\":96,\"dropped\":0,\"prompts\":24"
	test_text run/rollout.json "\"emitted\": 96, \"done\": true"
'
test_case 'twice the same, with groups of no use put aside, too' '
	for r in a b; do
	    pipes $r
	    loop $r "$TMP/in.jsonl" "--max-lag 0" "--drop-uniform" ""
	    wait
	done
	cmp a/latest/adapter_model.safetensors b/latest/adapter_model.safetensors
	cmp a/policy.json b/policy.json
	grep -q "\"dropped\":[1-9]" a/policy.json
'
test_case 'every rollout of step N was sampled from the weights after step N-1' '
	mkfifo p
	tw-sample -q -m "$M" --policy run -n 4 --max-lag 0 --max-tokens 3 "$TMP/in.jsonl" |
	    tw-reward --exec "$TMP/even" --advantage grpo 2>reward.err | tee rolls |
	    tw-train -m "$M" --lora r=4 --loss grpo --batch 8 -o run 2>train.err
	test_text reward.err " of 96 scored, "
	test_text train.err " s for rollouts, trained "
	i=0
	while IFS= read -r line; do
	    echo "$line" | grep -q "\"policy_step\":$((i / 8))," || { echo "rollout $i"; exit 1; }
	    i=$((i + 1))
	done <rolls
	test $i = 96
'
test_case 'with --steps every stage ends with 0, whatever it had under way' '
	for lag in 0 2; do
	    rm -rf run
	    { tw-sample -q -m "$M" --policy run -n 4 --max-lag $lag --max-tokens 3 "$TMP/in.jsonl"; echo $? >s1; } |
		{ tw-reward -q --exec "$TMP/even" --advantage grpo; echo $? >s2; } |
		tw-train -q -m "$M" --lora r=4 --loss grpo --batch 8 --steps 3 -o run
	    test_equal "$(cat s1 s2 | tr "\n" " ")" "0 0 "
	    test_text run/policy.json "\"trained\":24"
	    test_text run/policy.json "\"done\":true"
	done
'
test_case 'who finds another trainer in a run takes nothing from it' '
	mkdir run
	awk -f "$TOP/examples/sums.awk" -v n=8 -v as=chat >sums.jsonl
	(flock 9; test_exit 1 tw-train -q -m tiny --lora r=4 --steps 1 --batch 4 -o run sums.jsonl 2>err) 9>run/lock
	test_text err "run: another tw-train is working in it"
	test -e run/lock
'
test_case 'a sampler that looks for a trainer is no other trainer' '
	mkdir run
	: >run/lock
	flock -s run/lock sleep 0.5 &
	while flock -n run/lock true; do sleep 0.01; done
	awk -f "$TOP/examples/sums.awk" -v n=8 -v as=chat >sums.jsonl
	tw-train -q -m tiny --lora r=4 --steps 1 --batch 4 -o run sums.jsonl
	test_text run/metrics.jsonl "\"step\":1"
'
test_case 'a killed sampler never looks like the end of the data; --resume goes on' '
	pipes run
	i=0; while [ $i -lt 200 ]; do cat "$TMP/in.jsonl"; i=$((i + 1)); done >in
	tw-sample -q -m "$M" --policy run -n 4 --max-tokens 5 in >run.sampled.pipe &
	sampler=$!
	tw-reward -q --exec "$TMP/even" --advantage grpo <run.sampled.pipe >run.scored.pipe &
	{ while ! grep -qE "\"step\":([5-9]|[1-9][0-9])" run/policy.json 2>/dev/null; do sleep 0.05; done; kill -9 $sampler; } &
	test_exit 1 tw-train -q -m "$M" --lora r=4 --loss grpo --batch 8 --save-every 2 -o run <run.scored.pipe 2>err
	wait
	test_text err "a stage before this one failed; --resume goes on from step"
	n=$(sed "s/.*\"step\":\([0-9]*\),.*/\1/" run/latest/trainer/state.json | head -n 1)
	test -L run/latest
	head -n 40 in >in40
	tw-sample -q -m "$M" --policy run -n 4 --max-tokens 5 in40 |
	    tw-reward -q --exec "$TMP/even" --advantage grpo |
	    tw-train -q -m "$M" --lora r=4 --loss grpo --batch 8 --save-every 2 -o run --resume
	test_text run/policy.json "\"trained\":160,\"dropped\":0,\"prompts\":40"
'
test_case 'a killed trainer ends the sampler within 2 s, and it says why' '
	i=0; while [ $i -lt 200 ]; do cat "$TMP/in.jsonl"; i=$((i + 1)); done >in
	pipes run
	{ s=0; tw-sample -q -m "$M" --policy run -n 4 --max-tokens 5 in >run.sampled.pipe 2>err || s=$?; echo $s >status; } &
	tw-reward -q --exec "$TMP/even" --advantage grpo <run.sampled.pipe >run.scored.pipe 2>/dev/null &
	tw-train -q -m "$M" --lora r=4 --loss grpo --batch 8 -o run <run.scored.pipe &
	trainer=$!
	while ! grep -qE "\"step\":([3-9]|[1-9][0-9])" run/policy.json 2>/dev/null; do sleep 0.05; done
	kill -9 $trainer
	i=0; while [ ! -s status ]; do test $i -lt 1200; sleep 0.05; i=$((i + 1)); done
	[ "$(cat status)" != 0 ]
	[ "$(cat status)" -gt 128 ] || grep -qE "trainer is gone|reads the rollouts is gone|cannot write" err
'
test_case 'no trainer, no rollouts; misuse is refused' '
	test_exit 2 tw-sample -m "$M" --policy run --score "$TMP/in.jsonl" 2>err
	echo "{\"tokens\":[1,2]}" >t.jsonl
	test_exit 1 tw-train -q -m "$M" --lora r=4 --loss grpo -o r1 t.jsonl 2>err
	test_text err "no rollout: --loss takes what tw-sample and tw-reward write"
	tw-sample -q -m "$M" --max-tokens 2 "$TMP/in.jsonl" >rolls
	test_exit 1 tw-train -q -m "$M" --lora r=4 --loss grpo -o r2 rolls 2>err
	test_text err "send the rollouts through tw-reward --advantage"
	test_exit 2 tw-train -q -m "$M" --loss grpo,beta=0.1 -o r3 rolls 2>err
	test_text err "the reference of grpo is the base with the adapter off: it needs --lora"
'
test_case 'every policy loss trains on a file of rollouts, and each in its own way' '
	tw-sample -q -m "$M" -n 4 --max-tokens 6 --temperature 1.3 "$TMP/in.jsonl" |
	    tw-reward -q --exec "$TMP/even" --advantage grpo >rolls
	for l in grpo gspo sapo cispo bnpo dr_grpo ppo,clip_high_threshold=1.01 importance_sampling dro grpo,beta=0.1 grpo,beta=0.1,kl=k1 \
	    gspo,form=tinker cispo,form=tinker grpo,epsilon=0.01; do
	    rm -rf r
	    tw-train -q -m "$M" --lora r=4 --lr 1e-2 --loss $l --batch 16 -o r rolls
	    cksum <r/latest/adapter_model.safetensors
	done | sort | uniq -d >same
	test ! -s same
	for l in bnpo grpo,norm=token; do       # the same thing by definition
	    rm -rf r
	    tw-train -q -m "$M" --lora r=4 --lr 1e-2 --loss $l --batch 16 -o r rolls
	    cksum <r/latest/adapter_model.safetensors
	done | sort -u >one
	test "$(wc -l <one)" = 1
'
test_case 'preference losses: ln 2 before any update, pairs told apart after a few' '
	i=0
	while [ $i -lt 16 ]; do
	    echo "{\"chosen\":{\"tokens\":[$((10 + i)),20,31,40],\"weights\":[0,0,1,1]},\"rejected\":{\"tokens\":[$((10 + i)),20,90,91],\"weights\":[0,0,1,1]}}"
	    i=$((i + 1))
	done >pairs
	for l in dpo dpo,loss_type=hinge dpo,loss_type=ipo dpo,loss_type=kto_pair \
	    dpo,loss_type=robust,label_smoothing=0.1 dpo,label_smoothing=0.1 dpo,sft_weight=0.5 \
	    dpo,reference_free=on simpo cpo orpo; do
	    rm -rf r
	    tw-train -q -m "$M" --lora r=4,dropout=0.5 --lr 1e-2 --loss $l --batch 8 --epochs 4 --eval pairs -o r pairs
	    tail -n 1 r/metrics.jsonl | grep -q "\"event\":\"eval\"" || sed -n "\$p" r/metrics.jsonl
	    grep "\"event\":\"eval\"" r/metrics.jsonl | tail -n 1 | grep -q "\"rewards/accuracies\":1.0" || { echo "$l"; exit 1; }
	    [ $l != dpo ] || grep -q "\"step\":1,.*\"loss\":0.69314718055994" r/metrics.jsonl
	    cksum <r/latest/adapter_model.safetensors
	done | sort | uniq -d >same
	test ! -s same
'
test_case 'a pair with nothing to train on one side is counted, not lost in silence' '
	w() { echo "{\"chosen\":{\"tokens\":[10,20,31],\"weights\":[0,0,$1]},\"rejected\":{\"tokens\":[10,20,90],\"weights\":[0,0,$2]}}"; }
	{ w 1 1; w 1 0; w 1 1; w 1 1; w 0 1; } >pairs
	tw-train -m "$M" --lora r=4 --loss dpo --batch 3 -o r pairs 2>err
	test_text err "2 skipped (a side of the pair has no answer token left: 2 (first pairs:2))"
	test "$(grep -c "\"event\":\"step\"" r/metrics.jsonl)" = 1
'
test_case 'kto: 1/2 before any update, labels pull apart' '
	i=0
	while [ $i -lt 16 ]; do
	    echo "{\"tokens\":[$((10 + i)),20,31,40],\"weights\":[0,0,1,1],\"label\":true}"
	    echo "{\"tokens\":[$((10 + i)),20,90,91],\"weights\":[0,0,1,1],\"label\":false}"
	    i=$((i + 1))
	done >kto
	tw-train -q -m "$M" --lora r=4 --lr 1e-2 --loss kto --batch 8 --epochs 4 -o r kto
	grep -q "\"step\":1,.*\"loss\":0.5," r/metrics.jsonl
	grep "\"event\":\"step\"" r/metrics.jsonl | tail -n 1 | grep -q "\"loss\":0.[0-3]"
	echo "{\"tokens\":[1,2]}" | test_exit 1 tw-train -q -m "$M" --lora r=4 --loss kto -o r2 - 2>err
	test_text err "no boolean \"label\""
'
test_case 'a step whose rollouts are all of no use changes nothing, and nothing ends there' '
	M=$DATA/models/qwen3
	echo "{\"tokens\":[5,6,7,8,9]}" | tw-sample -q -m "$M" --max-tokens 3 -n 2 | tw-reward -q length,max=5 --advantage grpo >null.jsonl
	test_equal "$(grep -c "\"advantage\":null" null.jsonl)" 2
	sed "s/\"advantage\":null/\"advantage\":0.7/" null.jsonl >good.jsonl
	cat good.jsonl null.jsonl good.jsonl >mixed.jsonl
	cat good.jsonl good.jsonl >two.jsonl
	set -- --batch 2 --shuffle off -m "$M" --loss grpo --weight-decay 0.1
	tw-train -o a "$@" mixed.jsonl 2>err
	test_text err "step 2 has nothing to train and changes nothing"
	test_equal "$(sed 1d a/metrics.jsonl | sed "s/.*\"event\":\"\([a-z]*\)\",\"step\":\([0-9]\).*/\1\2/" | tr "\n" " ")" "step1 skip2 step3 "
	tw-train -o b "$@" two.jsonl
	cmp a/step-3/model.safetensors b/step-2/model.safetensors
	test_exit 1 tw-train -o c "$@" null.jsonl 2>err
	test_text err "no sample has a token to train on"
	[ ! -e c ]
'
# ratios RUN OPTIONS: reinforcement in bf16, always from the newest weights; then the ratios of all steps
ratios()
{
	run=$1
	shift
	awk -f "$TOP/examples/sums.awk" -v n=24 -v seed=2 |
	    tw-sample -q -m tiny --device cpu --dtype bf16 --policy $run -n 8 --max-lag 0 --max-tokens 24 |
	    tw-reward -q --exec "$TOP/examples/last-number.sh" --advantage grpo |
	    tw-train -q -m tiny --device cpu --dtype bf16 "$@" --loss grpo --batch 64 -o $run
	grep -o "\"ratio_[a-z]*\":[^,}]*" $run/metrics.jsonl | sort -u | tr "\n" " "
}
test_case 'on policy the ratio is 1 in bf16, too, of an adapter and of all weights' '
	test_equal "$(ratios a --lora r=8 --lr 1e-3)" "\"ratio_max\":1.0 \"ratio_mean\":1.0 "
	test_equal "$(ratios b --lr 3e-4)" "\"ratio_max\":1.0 \"ratio_mean\":1.0 "
	grep -c "\"grad_norm\":0\.[0-9]*[1-9]" b/metrics.jsonl
'
test_done
