#!/bin/sh
# t6001-reward.sh - records, groups, advantages, options
. "$(dirname "$0")/lib.sh"

# group SIZE REWARD..: rollouts of one group; the reward of each is what --exec ECHO answers
n=0
group()
{
	n=$((n + 1)) k=0 size=$1
	shift
	for v in "$@"; do
		echo "{\"group\":$n,\"group_size\":$size,\"sample\":$k,\"completion\":{\"text\":\"t\",\"tokens\":[7,8.0],\"logprobs\":[-1.50,-0.1]},\"v\":$v}"
		k=$((k + 1))
	done
}
cat >"$TMP/echo.sh" <<'X'
while read -r l; do l=${l##*\"v\":}; echo "${l%%[,\}]*}"; done
X
ECHO="sh $TMP/echo.sh"
adv()	# the advantages of the records of stdin
{
	sed 's/.*"advantage":\([^,}]*\).*/\1/' | tr '\n' ' '
}

test_case 'a record passes byte for byte; rewards, reward and advantage come behind it' '
	printf "%s\n" "{ \"tokens\":[1, 2.50,1e3], \"text\":\"a\\u00e9\" ,\"answer\":\"x\",\"reward\":7,\"dropped\":true}" |
	    tw-reward exact >out
	printf "%s\n" "{\"tokens\":[1, 2.50,1e3],\"text\":\"a\\u00e9\",\"answer\":\"x\",\"rewards\":{\"exact\":0.0},\"reward\":0.0,\"advantage\":0.0}" >want
	cmp out want
'
test_case 'weights: a weighted sum; weight 0 only shows' '
	printf "%s\n" "{\"text\":\"\\\\boxed{5}\",\"answer\":5}" |
	    tw-reward exact*2 gsm8k-format*-0.25 gsm8k-format,as=shown*0 >out
	test_text out "\"rewards\":{\"exact\":1.0,\"gsm8k-format\":1.0,\"shown\":1.0},\"reward\":1.75"
	printf "%s\n" "{\"text\":\"\\\\boxed{5}\"}" | tw-reward -q gsm8k-format exact*0 >out
	test_text out "\"exact\":null},\"reward\":1.0"
'
test_case 'grpo and rloo with every scale; equal rewards give exactly 0' '
	{ group 4 1 0 0 1; group 4 0.1 0.1 0.1 0.1; } >in.jsonl
	test_equal "$(tw-reward -q --exec "$ECHO" --advantage grpo in.jsonl | adv)" \
	    "0.8660253887844389 -0.8660253887844389 -0.8660253887844389 0.8660253887844389 0.0 0.0 0.0 0.0 "
	test_equal "$(tw-reward -q --exec "$ECHO" --advantage grpo --scale none in.jsonl | adv)" \
	    "0.5 -0.5 -0.5 0.5 0.0 0.0 0.0 0.0 "
	test_equal "$(tw-reward -q --exec "$ECHO" --advantage rloo --scale none in.jsonl | adv | cut -c 1-18)" "0.6666666666666667"
	tw-reward -q --exec "$ECHO" --advantage rloo in.jsonl | adv | grep -q "^1.15470051837925"
	# the deviation of 1 0 0 1 .1 .1 .1 .1 is sqrt(1.32/7) = 0.43424...
	tw-reward -q --exec "$ECHO" --advantage grpo --scale batch in.jsonl | adv | grep -q "^1.15141"
	test_equal "$(tw-reward -q --exec "$ECHO" in.jsonl | adv)" "1.0 0.0 0.0 1.0 0.1 0.1 0.1 0.1 "
'
test_case '--scale batch with --batch divides by each batch of whole groups' '
	{ group 2 0 1; group 2 0 10; group 2 0 100; } >in.jsonl
	tw-reward -q --exec "$ECHO" --advantage grpo --scale batch --batch 2 in.jsonl | adv >out
	grep -q "^-0.70710677.* 0.70710677.* -0.7071067[0-9.]* 0.7071067[0-9.]* -0.7071067[0-9.]* 0.7071067" out
	tw-reward -q --exec "$ECHO" --advantage grpo --scale batch --batch 3 in.jsonl >out
	test_equal "$(wc -l <out | tr -d " ")" 6
	test_exit 2 tw-reward --exec "$ECHO" --advantage grpo --batch 3 in.jsonl 2>err
	test_text err "is for --scale batch"
	test_exit 2 tw-reward --exec "$ECHO" --scale none in.jsonl 2>err
	test_text err "needs --advantage grpo or rloo"
'
test_case 'a group of one has advantage 0 and is counted' '
	group 1 5 >in.jsonl
	echo "{\"text\":\"a\",\"v\":3}" >>in.jsonl
	tw-reward --exec "$ECHO" --advantage grpo --scale batch in.jsonl >out 2>err
	test_equal "$(adv <out)" "0.0 0.0 "
	test_text err "2 of one record"
'
test_case 'an unscored reward is null, in no mean and no divisor' '
	group 3 1 null 0 >in.jsonl
	tw-reward --exec "$ECHO" --advantage grpo in.jsonl >out 2>err
	test_equal "$(adv <out)" "0.707106771186548 null -0.707106771186548 " ||
	    test_equal "$(adv <out | cut -c 1-12)" "0.7071067711"
	sed -n 2p out | grep -q "\"rewards\":{\"exec\":null},\"reward\":null,\"advantage\":null}"
	test_text err "unscored: exec: the command answered null: 1 (first in.jsonl:2)"
	test_text err "tw-reward: mean reward 0.5 of 2 scored"
	tw-reward -q --exec "$ECHO" in.jsonl >out 2>err
	test ! -s err
	group 2 1 null >in.jsonl
	test_equal "$(tw-reward -q --exec "$ECHO" --advantage rloo in.jsonl | adv)" "0.0 null "
'
test_case 'what has no reference or no reply is unscored, not 0' '
	printf "%s\n" "{\"text\":\"a\"}" "{\"text\":\"a\",\"answer\":null}" "{\"text\":\"a\",\"answer\":{\"x\":1}}" \
	    "{\"text\":\"a\",\"answer\":\"\"}" "{\"n\":1,\"answer\":\"a\"}" "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"answer\":\"a\"}" \
	    "{\"completion\":{\"text\":\"a\",\"stop_reason\":\"error\"},\"answer\":\"a\"}" >in.jsonl
	tw-reward exact in.jsonl >out 2>err
	test_equal "$(grep -c "\"reward\":null,\"advantage\":null}" out)" 7
	test_text err "exact: no usable reference: 4 (first in.jsonl:1)"
	test_text err "no reply"
	test_text err "the sampler did not finish it (error)"
'
test_case 'the reference: answer, solution, ground_truth, user_data of both forms, key=' '
	printf "%s\n" "{\"text\":\"a\",\"answer\":\"a\"}" "{\"text\":\"a\",\"solution\":\" a \"}" "{\"text\":\"a\",\"ground_truth\":[\"b\",\"a\"]}" \
	    "{\"text\":\"a\",\"user_data\":[[\"x\",\"b\"],[\"ground_truth\",\"a\"]]}" "{\"text\":\"a\",\"user_data\":{\"answer\":\"a\"}}" \
	    "{\"text\":\"7\",\"answer\":7}" "{\"text\":\"a\",\"answer\":{},\"solution\":\"a\"}" >in.jsonl
	tw-reward exact in.jsonl >out
	test_equal "$(grep -c "\"reward\":1.0" out)" 7
	echo "{\"text\":\"a\",\"answer\":\"b\",\"gold\":\"a\"}" | tw-reward exact,key=gold >out
	test_text out "\"reward\":1.0"
'
test_case 'what is scored: completion, the last reply, parts, reasoning, text' '
	printf "%s\n" "{\"completion\":{\"text\":\"a\"},\"text\":\"b\",\"answer\":\"a\"}" \
	    "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}],\"answer\":\"a\"}" \
	    "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],\"answer\":\"a\"}" >in.jsonl
	test_equal "$(tw-reward exact in.jsonl | grep -c "\"reward\":1.0")" 3
	echo "{\"messages\":[{\"role\":\"assistant\",\"content\":\"<answer>a</answer>\",\"reasoning_content\":\"hm\"}]}" | tw-reward format >out
	test_text out "\"reward\":1.0"
'
test_case 'groups leave as soon as they are complete, mixed as they may come' '
	group 2 1 0 >a; group 2 0 1 >b
	{ sed -n 1p a; sed -n 1p b; sed -n 2p b; sed -n 2p a; } >in.jsonl
	tw-reward -q --exec "$ECHO" --advantage grpo --scale none in.jsonl >out
	test_equal "$(adv <out)" "-0.5 0.5 0.5 -0.5 "
	mkfifo p
	tw-reward -q --exec "$ECHO" --advantage grpo <p >live &
	exec 3>p
	cat b >&3
	until [ -s live ] && [ "$(wc -l <live)" -ge 2 ]; do kill -0 $!; sleep 0.05; done
	test_equal "$(wc -l <live | tr -d " ")" 2
	exec 3>&-
	wait
'
test_case 'an incomplete group is an error that says what is missing; complete ones are out' '
	{ group 4 1 0 1; group 2 1 0; group 3 1; } >in.jsonl
	test_exit 1 tw-reward -q --exec "$ECHO" --advantage grpo in.jsonl >out 2>err
	test_text err "in.jsonl:1: the records end while 2 groups are incomplete: group 1 has 3 of 4 members, 3 records are missing in all"
	test_equal "$(wc -l <out | tr -d " ")" 2
	{ group 3 1 0; } | sed "s/\"group_size\":3,//" | tw-reward -q --exec "$ECHO" --advantage grpo --scale none >out
	test_equal "$(adv <out)" "0.5 -0.5 "
	tw-reward -q --exec "$ECHO" in.jsonl >out
	test_equal "$(wc -l <out | tr -d " ")" 6
'
test_case 'members that do not fit are named' '
	{ group 2 1 | sed p; } >in.jsonl
	test_exit 1 tw-reward --exec "$ECHO" --advantage grpo in.jsonl 2>err
	test_text err "in.jsonl:2: sample 0 of group"
	{ group 3 1; group 2 1; } | sed "s/\"group\":[0-9]*/\"group\":1/; s/\"sample\":0/\"sample\":1/" >in.jsonl
	test_exit 1 tw-reward --exec "$ECHO" --advantage grpo in.jsonl 2>err
	test_text err "group 1 has 2 members here and 3 at in.jsonl:1"
	echo "{\"group\":1,\"group_size\":2,\"sample\":2,\"v\":1}" >in.jsonl
	test_exit 1 tw-reward --exec "$ECHO" --advantage grpo in.jsonl 2>err
	test_text err "sample 2 of a group of 2"
	echo "{\"group\":1,\"group_size\":\"2\",\"v\":1}" >in.jsonl
	test_exit 1 tw-reward --exec "$ECHO" --advantage grpo in.jsonl 2>err
	test_text err "in.jsonl:1: "
	test_text err "group_size"
'
test_case '--group-by: equal values wherever they stand; --group-size lets them leave' '
	printf "%s\n" "{\"id\":\"p\",\"v\":1}" "{\"id\":\"q\",\"v\":5}" "{\"id\":\"p\",\"v\":3}" "{\"id\":\"q\",\"v\":6}" >in.jsonl
	tw-reward -q --exec "$ECHO" --group-by id --advantage grpo --scale none in.jsonl >out
	test_equal "$(adv <out)" "-1.0 1.0 -0.5 0.5 "
	test_exit 1 tw-reward -q --exec "$ECHO" --group-by id --group-size 3 --advantage grpo in.jsonl 2>err
	test_text err "2 groups are incomplete: group \"p\" has 2 of 3"
	echo "{\"v\":1}" | test_exit 1 tw-reward -q --exec "$ECHO" --group-by id --advantage grpo 2>err
	test_text err "stdin:1: no \"id\" to group by"
'
test_case '--drop-uniform marks groups that teach nothing, and says how many there are' '
	{ group 2 1 1; group 2 0 1; group 2 null 1; } >in.jsonl
	tw-reward --exec "$ECHO" --advantage grpo --drop-uniform in.jsonl >out 2>err
	test_equal "$(grep -n "\"dropped\":true}" out | cut -d: -f 1 | tr "\n" " ")" "1 2 5 6 "
	test_text err "3 groups: 2 with equal rewards (67 %)"
	tw-reward -q --exec "$ECHO" --advantage grpo in.jsonl >out
	test_no_text out dropped
'
test_case 'a running policy: what would wait for ever is refused' '
	group 2 1 0 | sed "s/}\$/,\"policy_step\":0}/" >in.jsonl
	test_exit 2 tw-reward --exec "$ECHO" --advantage grpo --scale batch in.jsonl 2>err
	test_text err "needs --batch N"
	tw-reward --exec "$ECHO" --advantage grpo --scale batch --batch 2 in.jsonl >out
	test_exit 2 tw-reward --exec "$ECHO" --advantage grpo --group-by v in.jsonl 2>err
	test_text err "needs --group-size N"
'
test_case '--max-held bounds the memory of incomplete groups' '
	awk "BEGIN { for (i = 0; i < 40; i++) { printf \"{\\\"id\\\":%d,\\\"v\\\":1,\\\"x\\\":\\\"\", i; for (k = 0; k < 5000; k++) printf \"0123456789\"; print \"\\\"}\" } }" >in.jsonl
	test_exit 1 tw-reward -q length --group-by id --max-held 1 --advantage grpo in.jsonl 2>err
	test_text err "groups are open and hold more than --max-held 1 MiB"
'
test_case 'misuse is told apart' '
	echo "{\"text\":\"a\"}" >in.jsonl
	test_exit 2 tw-reward exakt in.jsonl 2>err
	test_text err "\"exakt\" is neither a file nor a reward; --list shows the rewards"
	test_exit 2 tw-reward exact,cas=on in.jsonl 2>err
	test_text err "cas"
	test_exit 2 tw-reward exact exact in.jsonl 2>err
	test_text err "two rewards are called \"exact\"; as=NAME"
	test_exit 2 tw-reward </dev/null 2>err
	test_text err "name a reward"
	test_exit 1 tw-reward exact none.jsonl 2>err
	test_text err "none.jsonl"
	test_exit 1 tw-reward exact in.jsonl >/dev/full 2>err
	test_text err "cannot write"
	tw-reward --list >out
	test_text out gsm8k-accuracy
	printf "{\n" >bad.jsonl
	test_exit 1 tw-reward exact bad.jsonl 2>err
	test_text err "bad.jsonl:1"
	tw-reward exact </dev/null >out
	[ ! -s out ]
'
test_case '-o writes a file, whole or not at all' '
	group 2 1 0 >in.jsonl
	tw-reward -q --exec "$ECHO" -o out.jsonl in.jsonl
	test_equal "$(wc -l <out.jsonl | tr -d " ")" 2
	group 3 1 0 >in.jsonl
	test_exit 1 tw-reward -q --exec "$ECHO" --advantage grpo -o no.jsonl in.jsonl 2>err
	[ ! -e no.jsonl ]
'
test_done
