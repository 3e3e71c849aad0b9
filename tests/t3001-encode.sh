#!/bin/sh
# tw-encode: every option changes the output or is refused; errors name file, line and field.
. "$(dirname "$0")/lib.sh"
M=$DATA/chat/plain
Q=$DATA/tokenizers/qwen3
mkdir -p "$TMP"
cat >"$TMP/chat" <<'EOF'
{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"id":7}
{"messages":[{"role":"user","content":"c"},{"role":"assistant","content":"d"},{"role":"user","content":"e"},{"role":"assistant","content":"f"}]}
EOF
cat >"$TMP/bare" <<'EOF'
{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}{{ enable_thinking }}{{ x.y if x }}
EOF
cat >"$TMP/text" <<'EOF'
{"text":"abc <|im_end|>","src":"web"}
{"text":"yes"}
EOF
mask() { tw-encode -m "$M" --template "$TMP/bare" --mask "$@" | tr '\n' '~'; }
export M Q TMP

test_case 'a shard, token records and the text of both' '
	tw-encode -m "$M" -o out.tws "$TMP/chat"
	tw-encode -m "$M" --format jsonl "$TMP/chat" >out.jsonl
	head -c 8 out.tws | grep -q TWSHARD1
	test_equal "$(wc -l <out.jsonl)" 2
	grep -q "\"id\":7" out.jsonl
	tw-encode -m "$M" --decode out.tws >a
	tw-encode -m "$M" --decode out.jsonl >b
	tw-encode -m "$M" --render "$TMP/chat" >c
	cmp a b
	cmp a c
	grep -q "\"id\":7" a
'
test_case '--mask shows what is trained' '
	test_equal "$(mask "$TMP/chat")" "u:a;a:[b;]~~u:c;a:[d;]u:e;a:[f;]~~"
'
test_case '--train-on' '
	test_equal "$(mask --train-on last "$TMP/chat")" "u:a;a:[b;]~~u:c;a:d;u:e;a:[f;]~~"
	test_equal "$(mask --train-on all "$TMP/chat" | head -c 12)" "u[:a;a:b;]~~"
	test_equal "$(mask --train-on prompt "$TMP/chat" | head -c 12)" "u[:a;a:]b;~~"
'
test_case '--turns makes a sample of each reply' '
	test_equal "$(mask --turns "$TMP/chat")" "u:a;a:[b;]~~u:c;a:[d;]~~u:c;a:d;u:e;a:[f;]~~"
	test_exit 2 tw-encode -m "$M" --turns --train-on all "$TMP/chat"
	test_exit 2 tw-encode -m "$M" --turns --generation-prompt on "$TMP/chat"
'
test_case '--generation-prompt, --system, --thinking, --template-arg' '
	test_equal "$(mask --generation-prompt on "$TMP/chat" | head -c 12)" "u:a;a:b;a:~~"
	test_equal "$(mask --system S "$TMP/chat" | head -c 15)" "s:S;u:a;a:[b;]~"
	test_equal "$(mask --thinking off "$TMP/chat" | head -c 16)" "u:a;a:[b;]False~"
	test_equal "$(mask --thinking on "$TMP/chat" | head -c 15)" "u:a;a:[b;]True~"
	test_equal "$(mask --template-arg "x={\"y\":5}" "$TMP/chat" | head -c 12)" "u:a;a:[b;]5~"
	test_equal "$(mask --template-arg enable_thinking=T "$TMP/chat" | head -c 12)" "u:a;a:[b;]T~"
	test_exit 2 tw-encode -m "$M" --template-arg nonsense "$TMP/chat"
'
test_case '--max-length and --truncation' '
	test_exit 1 tw-encode -m "$M" --template "$TMP/bare" --max-length 8 --mask "$TMP/chat" 2>err
	test_text err "chat:2: 16 tokens, more than --max-length 8"
	test_equal "$(mask --max-length 8 --truncation right "$TMP/chat")" "u:a;a:[b;]~~u:c;a:[d;]~~"
	test_equal "$(mask --max-length 8 --truncation left "$TMP/chat")" "u:a;a:[b;]~~u:e;a:[f;]~~"
	test_equal "$(mask --max-length 8 --truncation split "$TMP/chat")" "u:a;a:[b;]~~u:c;a:[d;]~~u:e;a:[f;]~~"
	test_equal "$(mask --max-length 8 --truncation drop "$TMP/chat" 2>err)" "u:a;a:[b;]~~"
	test_text err "too long: 1 (first "
	test_exit 2 tw-encode -m "$M" --truncation left "$TMP/chat"
'
test_case 'rows without a trained token are dropped, counted, and end a run that keeps none' '
	printf "%s\n" "{\"messages\":[{\"role\":\"user\",\"content\":\"long question\"},{\"role\":\"assistant\",\"content\":\"b\"}]}" >one
	cat one one one one >four
	test_exit 1 tw-encode -m "$M" --max-length 10 --truncation right -o out.tws four 2>err
	test_text err "none of 4 records was kept: four:1: no supervised token after truncation; four:2:"
	test_equal "$(grep -c "skipped: no supervised" err)" 4
	[ ! -e out.tws ]
'
test_case '--add-special, --add-eos and --control-tokens' '
	B=$DATA/chat/bos
	test_equal "$(tw-encode -m "$B" --format jsonl "$TMP/text" | head -n 1)" "{\"tokens\":[262,97,256,32,265],\"src\":\"web\"}"
	test_equal "$(tw-encode -m "$B" --format jsonl --add-special off "$TMP/text" | head -n 1)" "{\"tokens\":[97,256,32,265],\"src\":\"web\"}"
	test_equal "$(tw-encode -m "$B" --format jsonl --add-eos on "$TMP/text" | tail -n 1)" "{\"tokens\":[262,258,263]}"
	tw-encode -m "$B" --format jsonl --control-tokens text "$TMP/text" 2>err | head -n 1 | grep -q "60,124,105,109"
	test_text err "1 control tokens are spelled"
	printf "%s\n" "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x<|im_end|>\"}]}" >c
	tw-encode -m "$B" --format jsonl --control-tokens parse c >a 2>err
	[ ! -s err ]
	tw-encode -m "$B" --format jsonl c >b 2>err
	test_text err "1 control tokens are spelled in the texts of 1 records"
	! cmp -s a b
'
test_case '--pack fills rows and keeps samples apart' '
	awk "BEGIN { for (i = 0; i < 400; i++) { s = \"\"; for (k = 0; k <= (i * 37) % 50; k++) s = s \"ab \"; print \"{\\\"text\\\":\\\"\" s \"\\\"}\" } }" >texts
	tw-encode -v -m "$M" --pack 256 -o rows.tws texts 2>err
	sed -n "s/.*tokens, \([0-9]*\).*full/\1/p" err >full
	[ "$(cat full)" -ge 97 ]
	tw-encode -m "$M" --decode rows.tws | sort >a
	sed "s/\\\\//g" texts | sort >b
	cmp a b
	tw-encode -m "$M" --pack 256 --format jsonl texts | head -n 1 >row
	grep -q "\"start\":\[0," row
	tw-encode -m "$M" --decode row >c
	[ "$(wc -l <c)" -gt 1 ]
	test_exit 1 tw-encode -m "$M" --pack 16 -o x.tws texts 2>err
	test_text err "more than --max-length 16"
	test_exit 2 tw-encode -m "$M" --pack 16 --max-length 32 texts
	test_exit 2 tw-encode -m "$M" --pack 16 --render texts
	printf "%s\n" "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chosen\":\"b\",\"rejected\":\"c\"}" >p
	test_exit 1 tw-encode -m "$M" --pack 64 -o x.tws p
'
test_case 'the first rendering is shown with --verbose' '
	tw-encode -v -m "$M" --template "$TMP/bare" -o out.tws "$TMP/chat" 2>err
	test_text err "the first record: u:a;a:b;"
'
test_case '--stats' '
	tw-encode -m "$M" --template "$TMP/bare" --stats "$TMP/chat" >out
	test_text out "\"records\":2,\"sequences\":2,\"tokens\":24,\"trained\":6,\"length\":{\"min\":8,\"mean\":12.0"
	test_text out "\"histogram\":{\"8\":1,\"16\":1},\"trained_share\":0.25,"
'
test_case '--check shows where a prompt does not go on' '
	printf "%s\n" "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}" >c
	tw-encode -m "$Q" --check c >out 2>err
	test_text out "\"line\":1,\"message\":3,\"position\":"
	test_text out "\"was\":\"<think>\""
	tw-encode -m "$M" --check c >out
	[ ! -s out ]
'
test_case 'reasoning that the template drops is told; --turns keeps it' '
	printf "%s\n" "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"<think>\\nw1\\n</think>\\n\\nb\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"<think>\\nw2\\n</think>\\n\\nd\"},{\"role\":\"user\",\"content\":\"e\"},{\"role\":\"assistant\",\"content\":\"<think>\\nw3\\n</think>\\n\\nf\"}]}" >c
	tw-encode -m "$Q" --mask c >out 2>err
	test_text err "2 texts of messages in 1 records are not in the rendering"
	tw-encode -m "$Q" --turns --mask c >out 2>err
	test_equal "$(grep -c "^w[123]$" out)" 3
'
test_case 'a record that the template refuses is skipped and told, the good one kept' '
	printf "%s" "{% for m in messages %}{% if (m.role == \"user\") != (loop.index0 % 2 == 0) %}{{ raise_exception(\"roles must alternate\") }}{% endif %}{{ m.content }}{% endfor %}" >t
	printf "%s\n" "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}" >in
	cat "$TMP/chat" >>in
	tw-encode -m "$M" --template t --format jsonl in >out 2>err
	test_equal "$(wc -l <out)" 2
	test_text err "in:1: skipped: chat template, line 1: roles must alternate"
	tw-encode -m "$M" --template t --render in >out 2>err
	test_equal "$(wc -l <out)" 2
'
test_case 'a template that cannot be read is an error with its place, and nothing is written' '
	printf "a\n{{ x | nofilter }}" >t1
	printf "{%% if x %%}" >t2
	test_exit 1 tw-encode -m "$M" --template t1 -o out.tws "$TMP/chat" 2>err
	test_text err "t1:2: template, column 8: no filter named"
	test_exit 1 tw-encode -m "$M" --template t2 -o out.tws "$TMP/chat" 2>err
	test_text err "t2:1:"
	[ ! -e out.tws ]
'
test_case 'bad records are named by file, line and field' '
	printf "{\"text\":\"a\"}\n{\"text\":\n" >in
	test_exit 1 tw-encode -m "$M" --format jsonl in >out 2>err
	test_text err "tw-encode: in:2: "
	printf "{\"text\":5}\n" >in
	test_exit 1 tw-encode -m "$M" --format jsonl in 2>err
	test_text err "in:1: text: expected a text, got a number"
	printf "{\"x\":5}\n" >in
	test_exit 1 tw-encode -m "$M" --format jsonl <in 2>err
	test_text err "stdin:1: no record that can be encoded"
	test_exit 1 tw-encode -m "$M" --format jsonl nowhere 2>err
	test_text err "nowhere: cannot open"
	test_exit 1 tw-encode -m nowhere "$TMP/chat"
	test_exit 2 tw-encode -m "$M" --mask --stats "$TMP/chat"
	test_exit 2 tw-encode -m "$M" --truncation middle "$TMP/chat"
'
test_case 'what a template may pass over has its type all the same' '
	bad() { echo "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",$1}]}" |
	    test_exit 1 tw-encode -m tiny --format jsonl 2>err >out; test_text err "stdin:1: messages[1].$2"; [ ! -s out ]; }
	bad "\"tool_calls\":7" "tool_calls: expected a list, got a number"
	bad "\"tool_calls\":[\"x\"]" "tool_calls[0]: expected an object, got a string"
	bad "\"name\":{}" "name: expected a text, got an object"
	bad "\"tool_call_id\":7" "tool_call_id: expected a text, got a number"
'
test_case 'pairs, prompts and rollouts' '
	printf "%s\n" "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"chosen\":\"yes\",\"rejected\":\"no\",\"k\":1}" >p
	tw-encode -m "$M" --format jsonl p >out
	test_text out "{\"chosen\":{\"tokens\":["
	test_text out "\"k\":1}"
	tw-encode -m "$M" --decode out >text
	test_text text "\"rejected\":\"<|im_start|>user\\nq<|im_end|>\\n<|im_start|>assistant\\nno<|im_end|>\\n\""
	printf "%s\n" "{\"prompt\":\"ab\",\"group\":3}" "{\"prompt_tokens\":[65],\"completion\":{\"tokens\":[66],\"logprobs\":[-1]},\"reward\":2}" >r
	tw-encode -m "$M" --format jsonl r >out
	test_text out "{\"tokens\":[97,98],\"weights\":[0,0],\"group\":3}"
	test_text out "{\"prompt_tokens\":[65],\"completion\":{\"tokens\":[66],\"logprobs\":[-1]},\"reward\":2}"
	tw-encode -m "$M" -o r.tws r
	tw-encode -m "$M" --decode r.tws >text
	test_text text "\"reward\":2"
'
test_case 'a shard of another tokenizer is refused; no shard to a full disk' '
	tw-encode -m "$M" -o out.tws "$TMP/chat"
	test_exit 1 tw-encode -m "$Q" --decode out.tws 2>err
	test_text err "another tokenizer"
	test_exit 1 tw-encode -m "$M" --format jsonl "$TMP/chat" >/dev/full
'
test_case 'a run that is ended leaves no file, and the old one as it was' '
	mkdir d
	echo old >d/out.tws
	mkfifo pipe
	for s in INT TERM HUP KILL; do
	    # a background job of sh has INT ignored: env sets it back
	    env --default-signal=INT tw-encode -m "$M" -q -o d/out.tws pipe &
	    exec 3>pipe
	    cat "$TMP/chat" >&3
	    kill -$s $!
	    ! wait $!
	    exec 3>&-
	    test_equal "$(ls -A d)" out.tws
	    test_equal "$(cat d/out.tws)" old
	done
'
test_case 'the same bytes with any number of threads, from a file or a pipe' '
	for i in 1 2 3 4 5 6 7 8 9 10; do cat "$TMP/chat" "$TMP/text"; done >in
	tw-encode -m "$M" --threads 1 --format jsonl in >a
	tw-encode -m "$M" --threads 3 --format jsonl in >b
	cat in | tw-encode -m "$M" --format jsonl >c
	cmp a b
	cmp a c
'
test_case 'a folder without a tokenizer takes token records' '
	mkdir m
	echo "{\"model_type\":\"llama\"}" >m/config.json
	printf "{\"tokens\":[1,2,3]}\n" >t
	test_equal "$(tw-encode -m m --format jsonl t)" "{\"tokens\":[1,2,3]}"
	test_exit 1 tw-encode -m m --format jsonl "$TMP/text" 2>err
	test_text err "text:1: a text needs a tokenizer"
	test_exit 1 tw-encode -m m --decode t
'
test_case 'NUL is a byte like others, through every command' '
	printf "%s\n" "{\"messages\":[{\"role\":\"user\",\"content\":\"A\\u0000B\"},{\"role\":\"assistant\",\"content\":\"\\u0000C\"}]}" >in
	printf "{\"text\":\"A\\\\u0000B\"}\n" >t
	test_equal "$(tw-encode -m tiny --format jsonl t)" "{\"tokens\":[35,191,36]}"
	tw-encode -m tiny --format jsonl <t | tw-encode -m tiny --decode | cmp t -
	tw-preprocess -q in | cmp in -
	tw-fetch -d in | cmp in -
	test_equal "$(tw-encode -m tiny in | tw-encode -m tiny --decode)" \
	    "{\"text\":\"<|im_start|>user\\nA\\u0000B<|im_end|>\\n<|im_start|>assistant\\n\\u0000C<|im_end|>\\n\"}"
	echo "{\"prompt_tokens\":[35],\"completion\":{\"text\":\"A\\u0000B\"},\"answer\":\"A\\u0000B\",\"group\":0,\"group_size\":1}" |
	    tw-reward exact >out 2>err
	test_text out "\"rewards\":{\"exact\":1.0}"
'
test_case 'of several templates, tool_use is for records with tools' '
	cp -r "$DATA/chat/plain" m
	printf "%s" "{\"chat_template\":[{\"name\":\"default\",\"template\":\"D{{ messages[0].content }}\"},{\"name\":\"tool_use\",\"template\":\"T{{ tools|length }}{{ messages[0].content }}\"}]}" >m/chat_template.json
	printf "%s\n" "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}" "{\"messages\":[{\"role\":\"user\",\"content\":\"b\"}],\"tools\":[{\"name\":\"f\"}]}" >c
	tw-encode -m m --render c >out
	test_text out "{\"text\":\"Da\"}"
	test_text out "{\"text\":\"T1b\"}"
'
test_done
