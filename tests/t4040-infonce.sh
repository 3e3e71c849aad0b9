#!/bin/sh
# t4040-infonce.sh - training of embeddings: groups of anchor, positive and negatives
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/train.sh"
M=$DATA/models/qwen3
G=$DATA/infonce/groups.jsonl
TINY=$TW_SHARE/models/tiny
export M G TINY

# numbers RUN: loss, gradient and similarities of its steps.
numbers()
{
    grep '"event":"step"' "$1/metrics.jsonl" |
        sed 's/.*\("loss":[^,]*\),.*\("grad_norm":[^,]*\),.*\("pos_sim":.*\)}/\1,\2,\3/'
}
# fields: "key value" of each number in a line of JSON.
fields()
{
    tr '{,' '\n\n' | sed -n 's/^"\([a-z_]*\)":\(-*[0-9][^}]*\).*/\1 \2/p'
}
# pairs: a train.jsonl and a held.jsonl of sentences that belong together; no pair is in both.
pairs()
{
    awk 'BEGIN {
        na = split("red blue green old new small big cold warm soft hard dark", a, " ")
        nb = split("house car dog cat tree river book chair lamp door boat bird", b, " ")
        for (i = 1; i <= na; i++)
            for (k = 1; k <= nb; k++)
                printf "{\"anchor\":\"I see a %s %s.\",\"positive\":\"The %s over there is %s.\"}\n",
                    a[i], b[k], b[k], a[i] >((i * 5 + k * 3) % 7 < 2 ? "held.jsonl" : "train.jsonl")
    }'
}

test_case 'three steps of each option are those of torch and transformers' '
	while read -r want; do
	    loss=$(echo "$want" | sed "s/.*\"text\":\"\([^\"]*\)\".*/\1/")
	    tw-train -q -m "$M" --loss "$loss" --optimizer sgd --lr 0.02 --weight-decay 0 --clip 0 --shuffle off \
		--batch 3 --micro-tokens 30 -o run "$G"
	    for key in loss grad_norm pos_sim pos_sim_min pos_sim_max neg_sim accuracy; do
		echo "$want" | fields | sed -n "s/^$key //p" >want
		numbers run | fields | sed -n "s/^$key //p" >got
		test "$(wc -l <want)" = 3
		paste want got | awk -v key="$key" "{ d = \$1 - \$2; a = \$1 < 0 ? -\$1 : \$1
		    if (!((d < 0 ? -d : d) <= 2e-4 * (a > 0.1 ? a : 0.1))) { print key, \$0; bad = 1 } } END { exit bad }"
	    done
	    rm -r run
	done <"$DATA/infonce/train.jsonl"
	test "$(wc -l <"$DATA/infonce/train.jsonl")" = 11
'
test_case 'the same bits in small passes and in one, with one thread and two, dropout and recomputation' '
	for how in "--lora r=4,dropout=0.3" "--weight-decay 0.1" "--lora r=4 --dtype bf16"; do
	    for pass in "8 1 none" "8 2 layer" "64 2 selective" "4096 1 auto"; do
		set -- $pass
		tw-train -q -m "$M" $how --lr 1e-2 --batch 4 --micro-tokens $1 --threads $2 --recompute $3 --epochs 2 \
		    --loss infonce,include_qq=on,include_dd=on --eval "$G" -o "run-$1-$3" "$G"
		rm -f "run-$1-$3/latest/config.json"
		same_run run-8-none "run-$1-$3"
	    done
	    rm -r run-*
	done
'
test_case 'with experts: their balancing loss goes along' '
	for micro in 16 4096; do
	    tw-train -q -m "$DATA/models/qwen3_moe" --lora r=4 --lr 1e-2 --batch 4 --micro-tokens $micro --router-aux 0.1 \
		--loss infonce -o "run-$micro" "$G"
	done
	same_run run-16 run-4096
	test "$(values router_aux <run-16/metrics.jsonl | grep -c "^[1-9]")" = 3
'
test_case 'a resumed run is an unbroken one' '
	tw-train -q -m "$M" --lora r=4,dropout=0.2 --lr 1e-2 --batch 2 --steps 6 --loss infonce -o whole "$G"
	tw-train -q -m "$M" --lora r=4,dropout=0.2 --lr 1e-2 --batch 2 --steps 6 --loss infonce --save-every 1 -o cut "$G" &
	pid=$!
	while [ ! -e cut/step-2 ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
	kill -INT $pid 2>/dev/null || :
	wait $pid || :
	tw-train -q -m "$M" --lora r=4,dropout=0.2 --lr 1e-2 --batch 2 --steps 6 --loss infonce --save-every 1 --resume \
	    -o cut "$G"
	same_run whole cut
	test_exit 1 tw-train -q -m "$M" --lora r=4,dropout=0.2 --lr 1e-2 --batch 2 --steps 6 --resume \
	    --loss infonce,temperature=0.2 -o cut "$G" 2>err
	test_text err "the run was started with infonce, this is infonce,temperature=0.2"
'
test_case 'sentences that belong together end up side by side, those that were held out, too' '
	pairs
	tw-train -q -m "$TINY" --lora r=8 --lr 0 --batch 41 --steps 1 --loss infonce --eval held.jsonl -o before train.jsonl
	tw-train -q -m "$TINY" --lora r=8 --lr 3e-3 --batch 41 --epochs 6 --loss infonce,temperature=0.07 \
	    --eval held.jsonl -o run train.jsonl
	before=$(values accuracy eval <before/metrics.jsonl)
	after=$(values accuracy eval <run/metrics.jsonl | tail -n 1)
	echo "rank-1 accuracy $before, then $after"
	awk "BEGIN { exit !($before < 0.2 && $after > 0.8) }"
	first=$(values neg_sim eval <run/metrics.jsonl | head -n 1)
	last=$(values neg_sim eval <run/metrics.jsonl | tail -n 1)
	awk "BEGIN { exit !($last < $first) }"
	test_no_text run/metrics.jsonl perplexity
	# and out they come: the cosines of the groups are what the evaluation says
	tw-sample -q -m "$TINY" --adapter run --embed held.jsonl >out
	test "$(wc -l <out)" = 41
	sed "s/.*\"embeddings\":\[\[//; s/\],\[/ /; s/\]\]}//" out | awk "{
	    n = split(\$1, a, \",\"); split(\$2, b, \",\"); own = 0
	    for (i = 1; i <= n; i++) { own += a[i] * b[i]; one += a[i] * a[i] }
	    sum += own } END { printf \"%d %.9f\\n%.9f\\n\", n, one / NR, sum / NR }" >told
	test_equal "$(sed -n "s/ .*//p" told)" 256
	near "$(sed -n "1s/.* //p" told)" 1 1e-6
	near "$(sed -n 2p told)" "$(values pos_sim eval <run/metrics.jsonl | tail -n 1)" 1e-6
'
test_case 'an embedding depends on nothing that stands beside it' '
	cat >in.jsonl <<-X
		{"id":1,"text":"What is this?","embedding":"old"}
		{"id":2,"anchor":"What is this?","positive":{"tokens":[40,41]},"negatives":["A dog.","A house."]}
		{"id":3,"messages":[{"role":"user","content":"Hello"}]}
		{"id":4,"tokens":[40,41],"adapter":null}
	X
	tw-sample -q -m "$TINY" --embed in.jsonl >all
	for i in 1 2 3 4; do sed -n ${i}p in.jsonl | tw-sample -q -m "$TINY" --threads $((i % 2 + 1)) --embed; done >each
	cmp all each
	text=$(sed -n "1s/.*\"embedding\":\[\(.*\)\]}/\1/p" all)
	test_equal "$(sed -n "2s/.*\"embeddings\":\[\[\([^]]*\)\].*/\1/p" all)" "$text"
	test_equal "$(sed -n "4s/.*\"embedding\":\[\(.*\)\]}/\1/p" all)" \
	    "$(sed -n "2s/.*\"embeddings\":\[\[[^]]*\],\[\([^]]*\)\].*/\1/p" all)"
	test "$(grep -c old all)" = 0
	tw-encode -q -m "$TINY" --format jsonl in.jsonl | tw-sample -q -m "$TINY" --embed >encoded
	test_equal "$(sed -n "1s/.*\"embedding\":\[\(.*\)\]}/\1/p" encoded)" "$text"
	bad() # message, options..
	{
	    want=$1
	    shift
	    test_exit 2 tw-sample -m "$TINY" --embed "$@" in.jsonl 2>err
	    test_text err "$want"
	}
	bad "--embed: goes without --score" --score
	bad "--policy: goes with none of" --policy run
	bad "--chat: takes no files" --chat
	TW_SERVER=http://127.0.0.1:9 TW_API_KEY=tml-x bad "--embed: a server tells log-probabilities"
	echo "{\"text\":\"\"}" >in.jsonl
	test_exit 1 tw-sample -m "$TINY" --embed in.jsonl 2>err
	test_text err "tw-sample: in.jsonl:1:"
	echo "{\"chosen\":\"a\",\"rejected\":\"b\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}" >in.jsonl
	test_exit 1 tw-sample -m "$TINY" --embed in.jsonl 2>err
	test_text err "--embed takes records with one sequence"
'
test_case 'texts, messages, tokens and shards of them train the same' '
	cat >in.jsonl <<-X
		{"id":1,"anchor":"What is this?","positive":"A cat.","negatives":["A dog.","A house."]}
		{"id":2,"anchor":[{"role":"user","content":"Hello"}],"positive":{"role":"assistant","content":"Hi"},"negative":"Bye"}
		{"id":3,"anchor":{"messages":[{"role":"user","content":"Hello"}],"tools":[]},"positive":{"tokens":[40,41]},"system":"Be kind."}
	X
	tw-encode -q -m "$TINY" in.jsonl -o in.tws
	tw-encode -q -m "$TINY" --format jsonl in.jsonl >tokens.jsonl
	tw-encode -q -m "$TINY" --format jsonl in.tws >again.jsonl
	cmp tokens.jsonl again.jsonl
	tw-encode -q -m "$TINY" tokens.jsonl -o again.tws
	test "$(grep -c "^{\"anchor\":{\"tokens\":\[.*,\"weights\":\[0,.*,1\]},\"positive\":{.*,\"id\":[123]}$" tokens.jsonl)" = 3
	for f in in.jsonl in.tws tokens.jsonl again.tws; do
	    tw-train -q -m "$TINY" --lora r=2 --lr 1e-3 --batch 3 --epochs 2 --shuffle off --loss infonce -o "run-$f" "$f"
	    same_run run-in.jsonl "run-$f"
	done
	tw-train -q -m "$TINY" --lora r=2 --lr 1e-3 --batch 3 --epochs 2 --shuffle off --loss infonce -o run-pipe <in.jsonl
	same_run run-in.jsonl run-pipe
'
test_case 'tw-encode shows what counts: the last token' '
	echo "{\"anchor\":\"cat\",\"positive\":\"a dog\",\"negatives\":[\"x\"],\"id\":7}" >in.jsonl
	tw-encode -q -m "$TINY" --mask in.jsonl >mask
	test "$(grep -c "\[.*\]$" mask)" = 3
	tw-encode -q -m "$TINY" --decode in.jsonl >text
	test_equal "$(cat text)" "{\"anchor\":\"cat\",\"positive\":\"a dog\",\"negatives\":[\"x\"],\"id\":7}"
	tw-encode -q -m "$TINY" --format jsonl --add-eos on in.jsonl >eos
	test "$(grep -o ",2\]" eos | wc -l)" = 3
	tw-encode -q -m "$TINY" --format jsonl --stats in.jsonl >stats
	test_text stats "\"sequences\":3"
	test_text stats "\"trained\":3"
'
test_case 'a long text is cut, the group is dropped, or it is said' '
	echo "{\"anchor\":{\"tokens\":[40,41,42,43]},\"positive\":{\"tokens\":[50]}}" >in.jsonl
	e="tw-encode -m $TINY --format jsonl --max-length 2"
	test_equal "$($e -q --truncation left in.jsonl)" \
	    "{\"anchor\":{\"tokens\":[42,43]},\"positive\":{\"tokens\":[50]}}"
	$e -q --truncation right in.jsonl | grep -q "^{\"anchor\":{\"tokens\":\[40,41\]"
	test_exit 1 $e in.jsonl 2>err
	test_text err "tw-encode: in.jsonl:1: 4 tokens, more than --max-length 2"
	test_exit 1 $e --truncation split in.jsonl 2>err
	test_text err "cannot be split"
	$e --truncation drop in.jsonl in.jsonl >out 2>err || :
	[ ! -s out ]
	test_text err "too long"
	test_exit 1 tw-encode -m "$TINY" --pack 64 in.jsonl -o x.tws 2>err
	test_text err "groups and rollouts cannot be packed"
'
test_case 'groups that are none are named by line and key' '
	bad() # record, message
	{
	    echo "$1" >in.jsonl
	    test_exit 1 tw-train -m "$TINY" --lora r=2 --loss infonce,hard_negatives=2 -o run in.jsonl 2>err
	    test_text err "tw-train: in.jsonl:1: $2"
	    [ ! -e run ]
	}
	bad "{\"anchor\":\"a\",\"positive\":\"b\"}" "no negatives, which hard_negatives takes 2 of"
	bad "{\"anchor\":\"a\",\"positive\":\"b\",\"negatives\":\"c\"}" "negatives: expected a list, got a string"
	bad "{\"anchor\":\"a\",\"positive\":\"b\",\"negatives\":[\"c\"],\"negative\":\"c\"}" \
	    "negative and negatives: give one of the two"
	bad "{\"anchor\":\"a\",\"positive\":3,\"negative\":\"c\"}" "positive: expected a text, a message"
	bad "{\"anchor\":\"a\",\"positive\":\"b\",\"negatives\":[null]}" "negatives: expected a text, a message"
	bad "{\"anchor\":\"a\",\"positive\":{\"tokens\":[9999]},\"negative\":\"c\"}" "tokens[0]: the tokenizer has no token 9999"
	bad "{\"anchor\":{\"tokens\":[5,6],\"weights\":[1,1]},\"positive\":\"b\"}" \
	    "anchor: weights[0]: of a group the last token alone counts"
	bad "{\"anchor\":\"a\"}" "no record that can be encoded"
	bad "{\"text\":\"a b c\"}" "no group (anchor, positive), which the loss needs"
	bad "{\"chosen\":\"a\",\"rejected\":\"b\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}" "a preference record"
	printf "{\"anchor\":\"\",\"positive\":\"b\"}\n{\"anchor\":\"a\",\"positive\":\"b\"}\n" >in.jsonl
	tw-train -m "$TINY" --lora r=2 --loss infonce -o run in.jsonl 2>err
	test_text err "a text of the group has no token"
	test_text err "in.jsonl:1"
	rm -r run
	echo "{\"anchor\":\"a\",\"positive\":\"b\"}" >in.jsonl
	test_exit 1 tw-train -m "$TINY" --lora r=2 -o run in.jsonl 2>err
	test_text err "tw-train: in.jsonl:1: a group (anchor, positive): --loss infonce takes those"
'
test_case 'what does not go with it says so' '
	refused() # message, options..
	{
	    want=$1
	    shift
	    test_exit 2 tw-train -m "$M" --lora r=2 -o run "$@" "$G" 2>err
	    test_text err "$want"
	}
	refused "--loss-exec: is told log-probabilities" --loss infonce --loss-exec cat
	refused "--ref: infonce looks at no reference" --loss infonce --ref "$M"
	refused "include_qq is about the other groups" --loss infonce,use_batch=off,include_qq=on
	refused "temperature" --loss infonce,temperature=0
	TW_SERVER=http://127.0.0.1:9 TW_API_KEY=tml-x refused "--loss: a server tells log-probabilities" --loss infonce
'
test_case 'the plan counts passes without a head' '
	tw-train -m "$M" --lora r=2 --loss infonce --batch 3 --micro-tokens 16 --plan "$G" >plan
	grep -q "^memory: head .* 0 bytes$" plan
	grep -q "^largest pass  *16 tokens" plan
'
test_case 'one group alone has nothing to compare with but its negatives' '
	head -n 1 "$G" >one.jsonl
	tw-train -q -m "$M" --lora r=2 --steps 2 --loss infonce -o run one.jsonl
	test_no_text run/metrics.jsonl neg_sim
	test_text run/metrics.jsonl "\"pos_sim_max\":"
'
test_done
