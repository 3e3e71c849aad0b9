#!/bin/sh
# With TW_SERVER set, tw-sample samples on a server, and what comes out is what it would have drawn here.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

far() { TW_SERVER=$URL "$@"; }
asks() { awk -f "$TOP/examples/sums.awk" -v n="$1"; }
chats() { awk -f "$TOP/examples/sums.awk" -v n="$1" -v as=chat; }
# here FILE, there FILE: the same options on this machine and on the server.
both()
{
    tw-sample -m tiny "$@" >here.jsonl
    far tw-sample -m tiny "$@" >there.jsonl
    cmp here.jsonl there.jsonl
}

test_case 'the same samples: temperatures, cuts, penalties, stops, top log-probabilities' '
	asks 5 >q.jsonl
	serve_start --state st
	both --max-tokens 12 q.jsonl
	both -n 3 --max-tokens 8 --temperature 0.7 --seed 7 q.jsonl
	both --temperature 0 --max-tokens 8 --logprobs 3 q.jsonl
	both --max-tokens 8 --stop 1 --stop "<|im_end|>" --stop-token 50 --logprobs 2 q.jsonl
	both --max-tokens 8 --ignore-eos --prompt-logprobs --temperature 1.3 q.jsonl
	tw-sample -m tiny --max-tokens 8 --top-k 20 --top-p 0.9 --min-p 0.01 --repetition-penalty 1.2 --presence-penalty 0.1 \
	    --frequency-penalty 0.1 --penalty-prompt on q.jsonl | sed "s/,\"sampled_logprobs\":\[[^]]*\]//" >here.jsonl
	far tw-sample -m tiny --max-tokens 8 --top-k 20 --top-p 0.9 --min-p 0.01 --repetition-penalty 1.2 --presence-penalty 0.1 \
	    --frequency-penalty 0.1 --penalty-prompt on q.jsonl >there.jsonl
	cmp here.jsonl there.jsonl
'
test_case 'scores, and samples, of a server that is exact' '
	chats 20 >q.jsonl
	serve_start --state st --exact
	both --max-tokens 6 --seed 5 q.jsonl
	both --score q.jsonl
	both --score --temperature 0.5 q.jsonl
	far tw-sample -m tiny --score --out x.jsonl q.jsonl
	far tw-sample -m tiny --score --resume -o x.jsonl q.jsonl
	test_equal "$(wc -l <x.jsonl)" 20
'
test_case 'adapters: of a run, by its path on the server, several, and one of this machine' '
	chats 16 >t.jsonl
	asks 3 >q.jsonl
	serve_start --state st
	far tw-train -m tiny --lora r=4 --lr 3e-3 --batch 4 -o a t.jsonl
	far tw-train -m tiny --lora r=2 --lr 3e-3 --batch 4 --seed 1 -o b t.jsonl
	both --adapter a --temperature 0 --max-tokens 8 q.jsonl
	path=$(sed "s/.*\"path\":\"\([^\"]*\)\".*/\1/" a/latest/trainer/server.json)
	far tw-sample -m tiny --adapter $path --temperature 0 --max-tokens 8 q.jsonl | sed "s,$path,a," >there.jsonl
	cmp here.jsonl there.jsonl
	sed "s/}\$/,\"adapter\":\"a\"}/" q.jsonl >two.jsonl
	sed "s/}\$/,\"adapter\":\"b\"}/" q.jsonl >>two.jsonl
	sed "s/}\$/,\"adapter\":null}/" q.jsonl >>two.jsonl
	both --adapter a --adapter b --max-tokens 8 two.jsonl
	both --adapter a --score t.jsonl
	test_exit 1 tw-sample -m tiny --adapter $path q.jsonl 2>err
	test_text err "is on a server: set TW_SERVER"
	tw-train -m tiny --lora r=2 --steps 1 -o own t.jsonl
	test_exit 1 far tw-sample -m tiny --adapter own q.jsonl 2>err
	test_text err "own: was trained on this machine"
	test_exit 1 far tw-sample -m tiny --adapter tinker://x/weights/y q.jsonl 2>err
	test_text err "no such checkpoint"
'
test_case 'a bad prompt ends one record; more than a tenant may ask at once waits' '
	asks 6 >q.jsonl
	{ echo "{\"tokens\":[1,2,3]}"; } >bad.jsonl
	printf "tml-k t rights=sample concurrency=2\n" >keys
	chmod 600 keys
	serve_start --state st --keys keys
	export TW_API_KEY=tml-k
	both -n 2 --max-tokens 8 q.jsonl
	awk "BEGIN { printf \"{\\\"prompt\\\":\\\"\"; for (i = 0; i < 4000; i++) printf \"a b \"; print \"\\\"}\" }" >long.jsonl
	head -n 1 q.jsonl | cat long.jsonl - >mixed.jsonl
	far tw-sample -m tiny --max-tokens 4 mixed.jsonl >out.jsonl 2>err
	test_equal "$(grep -c "\"stop_reason\":\"error\"" out.jsonl)" 1
	test_equal "$(wc -l <out.jsonl)" 2
	test_text out.jsonl "the server"
'
test_case 'a server that is killed and comes back is waited for' '
	asks 24 >q.jsonl
	export SERVE_LISTEN=unix:$PWD/s
	tw-sample -m tiny -n 4 --max-tokens 40 --ignore-eos q.jsonl >here.jsonl
	serve_start --state st
	TW_SERVER=$URL tw-sample -m tiny -n 4 --max-tokens 40 --ignore-eos q.jsonl >there.jsonl &
	client=$!
	until [ -s there.jsonl ]; do kill -0 $client; sleep 0.02; done
	serve_stop KILL
	serve_start --state st
	wait $client
	cmp here.jsonl there.jsonl
'
test_case 'Ctrl-C takes back what is under way' '
	asks 40 >q.jsonl
	serve_start --state st
	TW_SERVER=$URL tw-sample -m tiny -n 16 --max-tokens 400 --ignore-eos q.jsonl >there.jsonl &
	client=$!
	ask "
while metric(\"tw_engine_running_samples\") == 0:
    time.sleep(0.02)
"
	kill -INT $client
	test_exit 130 wait $client
	ask "
while metric(\"tw_engine_running_samples\") + metric(\"tw_engine_queued\"):
    time.sleep(0.05)
assert metric(\"tw_requests_failed_total\") >= 2 and metric(\"tw_sessions\") == 0
"
'
test_case 'a talk' '
	serve_start --state st
	printf "Who are you?\n/reset\nWhat is 2 + 3?\n" >said
	tw-sample -m tiny --chat --temperature 0 --max-tokens 12 <said >here
	far tw-sample -m tiny --chat --temperature 0 --max-tokens 12 <said >there
	cmp here there
'
test_case 'what a server does not do is refused by name' '
	asks 1 >q.jsonl
	serve_start --state st
	refuse() { name=$1; shift; test_exit 2 far tw-sample -m tiny "$@" q.jsonl 2>err >out; test_text err "tw-sample: $name: "; test ! -s out; }
	refuse --dtype --dtype bf16
	refuse --device --device cpu
	refuse --threads --threads 1
	refuse --max-tokens --max-tokens 0
	refuse --max-model-len --max-model-len 64
	refuse --prefix-cache --prefix-cache 0
	refuse --routed-experts --routed-experts
	refuse --exact --exact
'
test_done
