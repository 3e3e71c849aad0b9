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
test_case 'scores' '
	chats 20 >q.jsonl
	serve_start --state st
	both --score q.jsonl
	both --score --temperature 0.5 q.jsonl
	far tw-sample -m tiny --score --out x.jsonl q.jsonl
	far tw-sample -m tiny --score --resume -o x.jsonl q.jsonl
	test_equal "$(wc -l <x.jsonl)" 20
'
test_done
