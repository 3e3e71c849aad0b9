#!/bin/sh
# t5001-sample.sh - tw-sample on small models, some without a tokenizer
. "$(dirname "$0")/lib.sh"
M=$DATA/models/qwen3
export M
keys() { tr , '\n' | grep -o '"[a-z_]*":' | sort -u | tr -d '\n'; }

cat >"$TMP/in.jsonl" <<'X'
{"tokens":[12,40,77,31],"id":"a"}
{"prompt_tokens":[99,14],"id":"b"}
{"tokens":[5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34],"id":"c"}
X

test_case 'a rollout holds what came in and what was sampled' '
	tw-sample -m "$M" --max-tokens 5 "$TMP/in.jsonl" >out
	test "$(wc -l <out)" = 3
	for k in "\"id\":\"a\"" "\"group\":0" "\"group_size\":1" "\"sample\":0" "\"prompt_tokens\":[12,40,77,31]" "\"temperature\":1" "\"source\":{\"file\":" "\"line\":1" "\"epoch\":0" "\"stop_reason\":\"length\""; do
	    sed -n 1p out | grep -qF "$k" || { echo "no $k"; head -n 1 out; exit 1; }
	done
	test_no_text out sampled_logprobs
	test_no_text out top_logprobs
	test_no_text out prompt_logprobs
	test_no_text out "\"adapter\""
'
test_case 'an answer does not wait for the next record' '
	mkfifo in
	tw-sample -m "$M" --max-tokens 5 - <in >out &
	exec 5>in
	sed -n 1p "$TMP/in.jsonl" >&5
	until [ "$(wc -l <out)" = 1 ]; do kill -0 $!; sleep 0.05; done
	exec 5>&-
	wait
'
test_case 'greedy tokens are those of the reference' '
	p=$(sed "s/.*\"greedy_prompt\": *\[\([^]]*\)\].*/\1/; s/ //g" "$M/expected.json" | tr -d "\n")
	t=$(tr -d "\n " <"$M/expected.json" | sed "s/.*\"greedy_tokens\":\[\([^]]*\)\].*/\1/")
	p=$(tr -d "\n " <"$M/expected.json" | sed "s/.*\"greedy_prompt\":\[\([^]]*\)\].*/\1/")
	echo "{\"tokens\":[$p]}" | tw-sample -m "$M" --temperature 0 --max-tokens 80 --ignore-eos >out
	test_text out "\"tokens\":[$t]"
'
test_case 'same seed, same bytes; another seed, another sample; batch, threads and cache change nothing' '
	tw-sample -m "$M" -n 3 --max-tokens 20 "$TMP/in.jsonl" >a
	tw-sample -m "$M" -n 3 --max-tokens 20 --max-batch 1 "$TMP/in.jsonl" | cmp a -
	tw-sample -m "$M" -n 3 --max-tokens 20 --max-batch 2 --threads 1 "$TMP/in.jsonl" | cmp a -
	tw-sample -m "$M" -n 3 --max-tokens 20 --prefix-cache 0 --threads 2 "$TMP/in.jsonl" | cmp a -
	tw-sample -m "$M" -n 3 --max-tokens 20 --unordered "$TMP/in.jsonl" | sort >u
	sort a | cmp u -
	tw-sample -m "$M" -n 3 --max-tokens 20 --seed 43 "$TMP/in.jsonl" | cmp -s a - && exit 1
	test "$(wc -l <a)" = 9
	grep -c "\"group\":1,\"group_size\":3,\"sample\":2" a
'
test_case '-n 1 is the first of -n 3' '
	tw-sample -m "$M" -n 1 --max-tokens 9 "$TMP/in.jsonl" | grep -o "\"completion\".*\"stop" >one
	tw-sample -m "$M" -n 3 --max-tokens 9 "$TMP/in.jsonl" | grep "\"sample\":0" | grep -o "\"completion\".*\"stop" | cmp one -
'
test_case 'truncation and penalties change the draw and give sampled_logprobs' '
	tw-sample -m "$M" --max-tokens 30 --temperature 3 "$TMP/in.jsonl" >base
	for o in "--top-k 2" "--top-p 0.3" "--min-p 0.5" "--repetition-penalty 5" "--presence-penalty 50" "--frequency-penalty 50"; do
	    tw-sample -m "$M" --max-tokens 30 --temperature 3 $o "$TMP/in.jsonl" >out
	    cmp -s base out && { echo "$o changed nothing"; exit 1; }
	    test_text out sampled_logprobs
	done
	tw-sample -m "$M" --max-tokens 30 --temperature 3 --presence-penalty 50 --penalty-prompt on "$TMP/in.jsonl" >on
	tw-sample -m "$M" --max-tokens 30 --temperature 3 --presence-penalty 50 "$TMP/in.jsonl" | cmp -s on - && exit 1
	tw-sample -m "$M" --max-tokens 30 --temperature 2 "$TMP/in.jsonl" | cmp -s base - && exit 1
	exit 0
'
test_case '--stop-token ends behind it, --ignore-eos passes end tokens' '
	id=$(tw-sample -m "$M" --temperature 0 --max-tokens 3 --ignore-eos "$TMP/in.jsonl" | sed -n "1s/.*\"completion\":{\"tokens\":\[\([0-9]*\),.*/\1/p")
	tw-sample -m "$M" --temperature 0 --max-tokens 3 --ignore-eos --stop-token "$id" "$TMP/in.jsonl" | sed -n 1p >out
	test_text out "\"tokens\":[$id]"
	test_text out "\"stop_reason\":\"stop\""
	cp -r "$M" m && chmod -R u+w m
	sed -i "s/\"eos_token_id\": 2/\"eos_token_id\": [2, $id]/" m/config.json
	tw-sample -m m --temperature 0 --max-tokens 3 "$TMP/in.jsonl" | sed -n 1p >out
	test_text out "\"tokens\":[$id]"
	echo "{\"eos_token_id\": $id}" >m/generation_config.json
	cp "$M/config.json" m/config.json
	tw-sample -m m --temperature 0 --max-tokens 3 "$TMP/in.jsonl" | sed -n 1p >out
	test_text out "\"tokens\":[$id]"
	echo "{\"eos_token_id\": \"two\"}" >m/generation_config.json
	test_exit 1 tw-sample -m m "$TMP/in.jsonl" 2>err
	test_text err "generation_config.json: eos_token_id is not a token id"
	test_exit 2 tw-sample -m "$M" --stop-token x "$TMP/in.jsonl" 2>err
	test_exit 2 tw-sample -m "$M" --stop-token 200 "$TMP/in.jsonl" 2>err
	test_exit 1 tw-sample -m "$M" --stop x "$TMP/in.jsonl" 2>err
	test_text err "use --stop-token"
'
test_case '--logprobs lists the best, the greedy choice first' '
	echo "{\"tokens\":[12,40]}" | tw-sample -m "$M" --temperature 0 --max-tokens 2 --logprobs 3 >out
	a=$(sed "s/.*\"tokens\":\[\([0-9]*\),[0-9]*\],\"logprobs\":\[\([^,]*\),.*/\1,\2/" out)
	test_text out "\"top_logprobs\":[[[$a],["
'
test_case '--score of a rollout gives the log-probabilities that sampling recorded' '
	tw-sample -m "$M" --temperature 0.7 --max-tokens 12 --prompt-logprobs "$TMP/in.jsonl" >roll
	tw-sample -m "$M" --temperature 0.7 --score roll >scored
	i=0
	while [ $i -lt 3 ]; do
	    i=$((i + 1))
	    p=$(sed -n ${i}p roll | sed "s/.*\"prompt_logprobs\":\[\([^]]*\)\].*/\1/")
	    c=$(sed -n ${i}p roll | sed "s/.*\"completion\":{\"tokens\":[^]]*\],\"logprobs\":\[\([^]]*\)\].*/\1/")
	    sed -n ${i}p scored | grep -qF "\"logprobs\":[$p,$c]}"
	done
	tw-sample -m "$M" --temperature 1 --score roll | cmp -s scored - && exit 1
	exit 0
'
test_case 'scores do not depend on what else is scored' '
	sed "s/prompt_tokens/tokens/" "$TMP/in.jsonl" >toks
	tw-sample -m "$M" --score toks >all
	sed -n 3p toks | tw-sample -m "$M" --score >third
	sed -n 3p all | cmp third -
'
test_case 'a prompt too long or out of the vocabulary is an error in its place' '
	printf "%s\n" "{\"tokens\":[1,2]}" "{\"tokens\":[1,2,3,4,5,6,7,8,9]}" "{\"tokens\":[1,200]}" "{\"tokens\":[]}" "{\"tokens\":[1,2,3,4,5,6,7,8]}" >in
	tw-sample -m "$M" --max-model-len 8 --max-tokens 4 in >out 2>err
	test "$(wc -l <out)" = 5
	sed -n 2p out | grep -q "\"stop_reason\":\"error\".*\"error\":\"the prompt has 9 tokens, the model.s window is 8\""
	sed -n 3p out | grep -q "token 200 at position 1 is not in the vocabulary"
	sed -n 4p out | grep -q "the prompt is empty"
	sed -n 5p out | grep -q "\"tokens\":\[\],\"logprobs\":\[\],\"stop_reason\":\"length\""
	sed -n 1p out | grep -q "\"stop_reason\":\"length\""
	test_text err "in:2"
	test_exit 1 tw-sample -m "$M" --max-model-len 513 in 2>err
	test_text err "more than the model"
'
test_case 'two that go on with one file: the second is refused' '
	mkfifo in
	tw-sample -m "$M" --max-tokens 2 --resume -o got in &
	exec 5>in
	head -n 1 "$TMP/in.jsonl" >&5
	while [ ! -s got ]; do sleep 0.05; done
	test_exit 1 tw-sample -m "$M" --max-tokens 2 --resume -o got "$TMP/in.jsonl" 2>err
	test_equal "$(cat err)" "tw-sample: got: another tw-sample is writing it"
	exec 5>&-
	wait $!
	test_equal "$(wc -l <got | tr -d " ")" 1
	tw-sample -m "$M" --max-tokens 2 --resume -o got "$TMP/in.jsonl"
	tw-sample -m "$M" --max-tokens 2 "$TMP/in.jsonl" | sed "s/\"source\":[^}]*}//" >want
	sed "s/\"source\":[^}]*}//" got | cmp - want
'
test_case '--resume goes on where the file ends, whatever it ends with' '
	for i in 1 2 3 4 5 6 7 8; do cat "$TMP/in.jsonl"; done >in
	tw-sample -m "$M" -n 2 --max-tokens 6 in >want
	for cut in 0 1 2 3 100 1000 5000 9000 90000; do
	    head -c $cut want >got
	    tw-sample -m "$M" -n 2 --max-tokens 6 --resume -o got in
	    cmp want got
	done
	test_exit 2 tw-sample -m "$M" --resume in 2>err
	test_text err "needs -o FILE"
	test_exit 2 tw-sample -m "$M" --resume -o got --unordered in 2>err
'
test_case '-o appears whole; a full disk is a failure' '
	tw-sample -m "$M" --max-tokens 2 -o file "$TMP/in.jsonl"
	test "$(wc -l <file)" = 3
	test_exit 1 tw-sample -m "$M" --max-tokens 2 "$TMP/in.jsonl" >/dev/full 2>err
	test_text err "cannot write"
	printf "%s\n" "{\"tokens\":[1]}" "{\"tokens\":" >bad
	test_exit 1 tw-sample -m "$M" --max-tokens 2 -o none bad 2>err
	test_text err "bad:2"
	test ! -e none
'
test_case 'an adapter changes the answer; records choose among several' '
	tw-sample -m "$M" --temperature 0 --max-tokens 6 "$TMP/in.jsonl" >base
	tw-sample -m "$M" --adapter "$M/adapter" --temperature 0 --max-tokens 6 "$TMP/in.jsonl" >lora
	cmp -s base lora && exit 1
	test_text lora "\"adapter\":\"$M/adapter\""
	cp -r "$M/adapter" other
	printf "%s\n" "{\"tokens\":[12,40,77,31],\"adapter\":\"other\"}" "{\"tokens\":[12,40,77,31],\"adapter\":null}" >in
	tw-sample -m "$M" --adapter "$M/adapter" --adapter other --temperature 0 --max-tokens 6 in >out
	c() { sed -n ${2}p $1 | sed "s/.*\"completion\":{\"tokens\":\(\[[^]]*\]\).*/\1/"; }
	test_equal "$(c out 1)" "$(c lora 1)"
	test_equal "$(c out 2)" "$(c base 1)"
	test_exit 1 tw-sample -m "$M" --adapter "$M/adapter" --adapter other "$TMP/in.jsonl" 2>err
	test_text err "must name one in \"adapter\""
	echo "{\"tokens\":[1],\"adapter\":\"who\"}" | test_exit 1 tw-sample -m "$M" --adapter other 2>err
	test_text err "was not given with --adapter"
'
test_case 'bf16 is another arithmetic, a device that is not there is refused' '
	tw-sample -m "$M" --max-tokens 8 "$TMP/in.jsonl" >a
	tw-sample -m "$M" --max-tokens 8 --dtype bf16 "$TMP/in.jsonl" | cmp -s a - && exit 1
	tw-sample -m "$M" --max-tokens 8 --device cpu "$TMP/in.jsonl" | cmp a -
	test_exit 2 tw-sample -m "$M" --device tpu "$TMP/in.jsonl" 2>err
	test_text err "unknown device"
'
test_case 'the prompt: --template, --system, --thinking, --template-arg, --control-tokens' '
	echo "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi<|im_end|>\"}]}" >in
	prompt() { tw-sample -m tiny --max-tokens 1 "$@" in | sed "s/.*\"prompt_tokens\":\[\([^]]*\)\].*/{\"tokens\":[\1]}/" | tw-encode -m tiny --decode | sed "s/^{\"text\":\"\(.*\)\"}$/\1/"; }
	test_equal "$(prompt)" "<|im_start|>user\\nHi<|im_end|><|im_end|>\\n<|im_start|>assistant\\n"
	prompt --system "Be brief." >out
	test_text out "<|im_start|>system\\nBe brief.<|im_end|>\\n<|im_start|>user"
	printf "%s" "{{ messages[0].content }} {{ enable_thinking }} {{ who }}" >t.jinja
	test_equal "$(prompt --template t.jinja)" "Hi<|im_end|>  "
	test_equal "$(prompt --template t.jinja --thinking on)" "Hi<|im_end|> True "
	test_equal "$(prompt --template t.jinja --thinking off --template-arg who=me)" "Hi<|im_end|> False me"
	# the text of a user is text, unless it is asked to be read as the tokens that it spells
	n() { tw-sample -m tiny --max-tokens 1 "$@" in | sed "s/.*\"prompt_tokens\":\[\([^]]*\)\].*/\1/" | tr , "\n" | grep -cx 2; }
	test_equal "$(n)" 1
	test_equal "$(n --control-tokens text)" 1
	test_equal "$(n --control-tokens parse)" 2
	test_exit 2 tw-sample -m tiny --thinking maybe in 2>err
	test_exit 1 tw-sample -m tiny --template none in 2>err
	test_text err none
'
test_case '--stop cuts the text before it, across tokens; of several the first' '
	echo "{\"messages\":[{\"role\":\"user\",\"content\":\"Who are you?\"}]}" >in
	text() { tw-sample -m tiny --temperature 0 --max-tokens 30 "$@" in | sed "s/.*\"completion\":{\"text\":\"\(.*\)\",\"tokens\".*/\1/"; }
	whole=$(text)
	[ ${#whole} -gt 12 ]
	for at in 3 5 8; do
	    stop=$(printf %s "$whole" | cut -c $at-$((at + 3)))
	    test_equal "$(text --stop "$stop")" "${whole%%"$stop"*}"
	    test_equal "$(text --stop "zzz" --stop "$stop")" "${whole%%"$stop"*}"
	done
	tw-sample -m tiny --temperature 0 --stop "$stop" in >out
	test_text out "\"stop_reason\":\"stop\""
'
test_case '--verbose says what ends a reply and what an adapter touches' '
	tw-sample -v -m "$M" --adapter "$M/adapter" --max-tokens 1 "$TMP/in.jsonl" 2>err >out
	test_text err "31,200 parameters, its window of 512 tokens; replies end at 2"
	test_text err "q_proj 2/2, k_proj 2/2"
	tw-sample -v -m "$M" --ignore-eos --max-model-len 100 --max-tokens 1 "$TMP/in.jsonl" 2>err >out
	test_text err "a window of 100 tokens; replies end at 2, which --ignore-eos passes"
'
test_case 'misuse' '
	test_exit 2 tw-sample "$TMP/in.jsonl" 2>err
	test_text err model
	test_exit 2 tw-sample -m "$M" --temperature -1 "$TMP/in.jsonl" 2>err
	test_exit 2 tw-sample -m "$M" --top-p 2 "$TMP/in.jsonl" 2>err
	test_exit 2 tw-sample -m "$M" -n 0 "$TMP/in.jsonl" 2>err
	test_exit 2 tw-sample -m "$M" --chat --score 2>err
	test_exit 1 tw-sample -m nosuchmodel "$TMP/in.jsonl" 2>err
	test_text err nosuchmodel
'
test_done
