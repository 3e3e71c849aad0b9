#!/bin/sh
# t7004-loop-metrics.sh - the numbers that steps of policy and preference losses report, against a
# calculation by awk from the log-probabilities of tw-sample --score
. "$(dirname "$0")/lib.sh"
M=$DATA/models/qwen3
export M

logps() # OPTION.. <records: the log-probabilities of each, one record a line
{
    tw-sample -q -m "$M" --score "$@" | sed 's/.*"logprobs":\[null,//; s/\].*//; s/,/ /g'
}
value() { sed -n "s|.*\"event\":\"step\",\"step\":1,.*\"$1\":\([^,}]*\)[,}].*|\1|p" run/metrics.jsonl; }
is() # KEY EXPECTED
{
    awk -v a="$(value "$1")" -v b="$2" -v k="$1" 'BEGIN {
        d = a - b; d = d < 0 ? -d : d
        if (a == "" || d > 2e-5) { print k " is " a ", not " b; exit 1 }
    }'
}

test_case 'two rollouts: ratios, both clips, KL of three kinds, rewards by name' '
	cat >seq <<X
{"tokens":[10,40,77,5,9]}
{"tokens":[11,41,78,6,8,3]}
X
	logps <seq >lp
	# the sampler saw less or more likely tokens: d = new - old
	read -r a b c d <<X
$(sed -n 1p lp)
X
	read -r e f g h i <<X
$(sed -n 2p lp)
X
	old() { awk "BEGIN { printf \"%.9g\", $1 - ($2) }"; }
	cat >rolls <<X
{"prompt_tokens":[10,40,77],"completion":{"tokens":[5,9],"logprobs":[$(old $c 0.5),$(old $d -0.3)]},"temperature":1,"group":0,"group_size":2,"sample":0,"rewards":{"sum":1,"form":null},"reward":1,"advantage":1}
{"prompt_tokens":[11,41,78],"completion":{"tokens":[6,8,3],"logprobs":[$(old $g 0.1),$(old $h -0.4),$(old $i 0)]},"temperature":1,"group":0,"group_size":2,"sample":1,"rewards":{"sum":-2,"form":0.5},"reward":-1.5,"advantage":-2}
{"prompt_tokens":[11,41,78],"completion":{"tokens":[6,8,3]},"temperature":1,"group":0,"group_size":2,"sample":1,"reward":null,"advantage":null}
X
	tw-train -q -m "$M" --lora r=4 --loss grpo,epsilon=0.2,epsilon_high=0.3 --batch 3 -o run rolls
	x() { awk "BEGIN { printf \"%.9g\", $1 }"; }
	is ratio_mean "$(x "(exp(.5) + exp(-.3) + exp(.1) + exp(-.4) + 1) / 5")"
	is ratio_max "$(x "exp(.5)")"
	is clip_ratio 0.4				# e^.5 > 1.3 with A > 0, e^-.4 < 0.8 with A < 0
	is train/clip_ratio_low 0.2
	is train/clip_ratio_high 0.2
	is train/clip_ratio 0.4
	is kl 0
	is logp_diff_mean 0.26
	is train/logp_diff_mean -0.02
	is train/mean_new_logp "$(x "($c + $d + $g + $h + $i) / 5")"
	is train/mean_old_logp "$(x "($c + $d + $g + $h + $i + .1) / 5")"
	is train/policy_confidence "$(x "exp(($c + $d + $g + $h + $i) / 5)")"
	is train/approx_kl "$(x "(exp(.5) - 1.5 + exp(-.3) - .7 + exp(.1) - 1.1 + exp(-.4) - .6) / 5")"
	is train/token_kl_max "$(x "exp(.5) - 1.5")"
	is train/token_ratio_max "$(x "exp(.5)")"
	is completion_length 2.5
	is train/completion_length 2.5
	is reward_mean -0.25
	is reward_std "$(x "2.5 / sqrt(2)")"
	is train/sum_reward -0.5
	is train/sum_reward_std "$(x "3 / sqrt(2)")"
	is train/form_reward 0.5
	is train/form_reward_std 0
	is skipped 1
	is loss "$(x "(-(1.3 + exp(-.3)) / 2 + 2 * (exp(.1) + .8 + 1) / 3) / 2")"
	awk "BEGIN { exit !($(value train/entropy) > 0 && $(value busy_s) > 0) }"
	test "$(value "profiling/Time taken: generate")" = "$(value wait_s)"
	rm -rf run
	tw-train -q -m "$M" --lora r=4 --loss cispo,epsilon=0.2 --batch 3 -o run rolls
	is train/clip_ratio_low 0
	is train/clip_ratio_high 0.2
	for kl in k1 k2 k3; do
	    rm -rf run
	    logps --adapter "$M/adapter" <seq >ref
	    tw-train -q -m "$M" --lora r=4 --loss grpo,beta=0.1,kl=$kl --ref "$M/adapter" --batch 3 -o run rolls
	    is kl "$(awk -v k=$kl "NR == FNR { for (i = 3; i <= NF; i++) p[FNR, i] = \$i; next }
		{ for (i = 3; i <= NF; i++) { d = \$i - p[FNR, i]; n++; s += k == \"k1\" ? -d : k == \"k2\" ? d * d / 2 : exp(d) - d - 1 } }
		END { printf \"%.9g\", s / n }" lp ref)"
	done
'
test_case 'two pairs: sums, the gains over a reference, who wins' '
	cat >chosen <<X
{"tokens":[10,40,77,5,9]}
{"tokens":[11,41,78,6,8,3]}
X
	cat >rejected <<X
{"tokens":[10,40,77,70,71]}
{"tokens":[11,41,78,72,60]}
X
	pair() { echo "{\"chosen\":{\"tokens\":$1,\"weights\":$2},\"rejected\":{\"tokens\":$3,\"weights\":[0,0,0,1,1]}}"; }
	{ pair "[10,40,77,5,9]" "[0,0,0,1,1]" "[10,40,77,70,71]"; pair "[11,41,78,6,8,3]" "[0,0,0,1,1,1]" "[11,41,78,72,60]"; } >pairs
	sum() { logps "$@" | awk "{ s = 0; for (i = 3; i <= NF; i++) s += \$i; printf \"%.9g \", s }"; }
	set -- $(sum <chosen) $(sum <rejected) $(sum --adapter "$M/adapter" <chosen) $(sum --adapter "$M/adapter" <rejected)
	tw-train -q -m "$M" --lora r=4 --loss dpo,beta=0.2 --ref "$M/adapter" --batch 2 -o run pairs
	x() { awk "BEGIN { printf \"%.9g\", $1 }"; }
	is logps/chosen "$(x "($1 + $2) / 2")"
	is logps/rejected "$(x "($3 + $4) / 2")"
	is logps/ref_chosen "$(x "($5 + $6) / 2")"
	is logps/ref_rejected "$(x "($7 + $8) / 2")"
	is rewards/chosen "$(x ".2 * ($1 + $2 - ($5 + $6)) / 2")"
	is rewards/rejected "$(x ".2 * ($3 + $4 - ($7 + $8)) / 2")"
	is rewards/margins "$(x ".2 * ($1 + $2 - ($5 + $6) - ($3 + $4 - ($7 + $8))) / 2")"
	is rewards/accuracies "$(x "(($1 - ($5) > $3 - ($7)) + ($2 - ($6) > $4 - ($8))) / 2")"
	# an evaluation says the same of its pairs, here in passes of one
	tw-train -q -m "$M" --lora r=4 --lr 1e-15 --loss dpo,beta=0.2 --ref "$M/adapter" --batch 2 --micro-tokens 16 \
	    --eval pairs -o still pairs
	for k in logps/chosen logps/ref_rejected rewards/chosen rewards/margins rewards/accuracies; do
	    grep "\"event\":\"eval\"" still/metrics.jsonl | sed "s|.*\"$k\":\([^,}]*\).*|\1|"
	done >evaled
	for k in logps/chosen logps/ref_rejected rewards/chosen rewards/margins rewards/accuracies; do
	    grep "\"event\":\"step\"" run/metrics.jsonl | sed "s|.*\"$k\":\([^,}]*\).*|\1|"
	done | paste - evaled | awk "{ d = \$1 - \$2; if (d * d > 1e-10) { print; bad = 1 } } END { exit bad || NR != 5 }"
	is loss "$(x "(log(1 + exp(-.2 * ($1 - ($5) - ($3) + $7))) + log(1 + exp(-.2 * ($2 - ($6) - ($4) + $8)))) / 2")"
'
test_case 'rewards that are none are named' '
	echo "{\"prompt_tokens\":[10],\"completion\":{\"tokens\":[5]},\"temperature\":1,\"rewards\":[1],\"advantage\":1}" >rolls
	test_exit 1 tw-train -q -m "$M" --lora r=4 --loss grpo -o run rolls 2>err
	test_text err "rolls:1: rewards is not an object of numbers"
	sed -i "s/\[1\],\"adv/{\"a\":\"x\"},\"adv/" rolls
	test_exit 1 tw-train -q -m "$M" --lora r=4 --loss grpo -o run rolls 2>err
	test_text err "rewards.a is neither a number nor null"
'
test_done
