#!/bin/sh
# --exact where it holds by itself, on the CPU: the same samples, and log-probabilities that scoring gives; what it
# cannot be had of is refused.
. "$(dirname "$0")/lib.sh"

sample() { tw-sample -m tiny --device cpu --dtype bf16 "$@"; }

test_case 'the CPU is exact: --exact changes nothing, and scores are those of the samples' '
	awk -f "$TOP/examples/sums.awk" -v n=12 >q.jsonl
	sample -n 2 --max-tokens 20 --seed 3 q.jsonl >a
	sample -n 2 --max-tokens 20 --seed 3 --exact q.jsonl | cmp a -
	sample --exact --score a >t
	sed "s/.*\"completion\":.*\"logprobs\":\[\([^]]*\)\].*/\1/" a >x
	sed "s/.*\"logprobs\":\[\([^]]*\)\]}$/\1/" t >y
	paste -d "|" x y | awk -F "|" "{
	    n = split(\$1, x, \",\"); m = split(\$2, y, \",\")
	    for (i = 1; i <= n; i++) { seen++; bad += x[i] != y[m - n + i] }
	} END { exit bad || seen < 200 }"
'
test_case 'recurrent states are exact on the CPU, too; latents are not, and are refused' '
	echo "{\"tokens\":[12,40,31,7]}" >q.jsonl
	tw-sample -m "$DATA/models/qwen3_5" --device cpu --exact --max-tokens 3 q.jsonl >out
	test_exit 1 tw-sample -m "$DATA/models/deepseek_v2" --device cpu --exact q.jsonl 2>err >out
	test_text err "tw-sample: --exact: family deepseek_v2 decodes from latents, which gives other bits"
	test_equal "$(wc -l <err)" 1
	test ! -s out
'
test_case 'a server has its own' '
	TW_SERVER=http://127.0.0.1:1 test_exit 2 tw-sample -m tiny --exact q 2>err
	test_text err "tw-sample: --exact: "
'
test_done
