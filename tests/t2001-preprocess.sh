#!/bin/sh
# t2001-preprocess.sh - rows of data sets to records
. "$(dirname "$0")/lib.sh"

cat >"$TMP/alpaca.json" <<'X'
[{"instruction": "Add.", "input": "1 2", "output": "3", "id": 7},
 {"instruction": "Hi", "input": "", "output": "Hello", "id": 8.50}]
X
cat >"$TMP/chat.jsonl" <<'X'
{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"n":1}
{"messages":[{"role":"user","content":"c"},{"role":"assistant","content":"d"}],"n":2}
{"messages":[{"role":"user","content":"e"},{"role":"assistant","content":"f"}],"n":3}
X

test_case 'alpaca: input goes behind the instruction, other columns pass with their numbers as written' '
	tw-preprocess "$TMP/alpaca.json" >out 2>err
	test_text out "{\"messages\":[{\"role\":\"user\",\"content\":\"Add.\n1 2\"},{\"role\":\"assistant\",\"content\":\"3\"}],\"id\":7}"
	test_text out "\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Hello\"}],\"id\":8.50}"
	test_text err "alpaca (columns instruction, input, output, id)"
'
test_case 'alpaca: system and history' '
	echo "{\"instruction\":\"q2\",\"output\":\"a2\",\"system\":\"S\",\"history\":[[\"q1\",\"a1\"]]}" >in.jsonl
	tw-preprocess alpaca in.jsonl >out
	printf "%s\n" "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"q1\"},{\"role\":\"assistant\",\"content\":\"a1\"},{\"role\":\"user\",\"content\":\"q2\"},{\"role\":\"assistant\",\"content\":\"a2\"}]}" >want
	cmp out want
'
test_case 'system= is for rows that bring none' '
	printf "%s\n" "{\"instruction\":\"q\",\"output\":\"a\",\"system\":\"row\"}" "{\"instruction\":\"q\",\"output\":\"a\",\"system\":null}" >in.jsonl
	tw-preprocess "alpaca,system=flag" in.jsonl >out
	sed -n 1p out | grep -q "\"content\":\"row\""
	sed -n 2p out | grep -q "\"content\":\"flag\""
'
test_case 'self-cognition fills in name and author, whatever their case' '
	echo "{\"query\":\"{{NAME}}?\",\"response\":\"I am {{name}} by {{Author}}.\",\"tag\":\"en\"}" >in.jsonl
	tw-preprocess self-cognition,name=Ada,author=Me in.jsonl >out
	test_text out "\"content\":\"Ada?\""
	test_text out "\"content\":\"I am Ada by Me.\""
	test_text out "You are a helpful assistant."
	test_text out "\"tag\":\"en\""
	tw-preprocess self-cognition,name=Ada,author=Me,system= in.jsonl >out
	test_no_text out system
	test_exit 2 tw-preprocess self-cognition,name=Ada in.jsonl 2>err
	test_text err "needs name= and author="
'
test_case 'gsm8k: the number behind #### without commas; the answer only when asked for' '
	cat >in.jsonl <<-"X"
	{"question":"q","answer":"so\n#### 1,234."}
	X
	tw-preprocess in.jsonl >out 2>/dev/null
	test_text out "\"ground_truth\":\"1234\""
	test_text out "[[\"ground_truth\",\"1234\"]]"
	test_no_text out assistant
	tw-preprocess gsm8k,assistant=on,system=Think in.jsonl >out
	test_text out "\"role\":\"assistant\""
	test_text out "{\"role\":\"system\",\"content\":\"Think\"}"
	echo "{\"question\":\"q\",\"answer\":\"none\"}" >bad.jsonl
	test_exit 1 tw-preprocess gsm8k bad.jsonl >out 2>err
	test_text err "bad.jsonl:1: \"answer\" has no number behind ####"
'
test_case 'sharegpt: both spellings of roles give the same record' '
	echo "{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"},{\"from\":\"gpt\",\"value\":\"y\"}]}" >a.jsonl
	echo "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"}]}" >b.jsonl
	tw-preprocess -q a.jsonl >a
	tw-preprocess -q b.jsonl >b
	cmp a b
'
test_case 'an unknown role is never guessed, a mixed message is refused' '
	echo "{\"messages\":[{\"role\":\"gpt2\",\"content\":\"x\"}]}" >in.jsonl
	test_exit 1 tw-preprocess -q in.jsonl 2>err
	test_text err "in.jsonl:1: message 1: unknown role \"gpt2\": system, user (human), assistant (gpt)"
	echo "{\"messages\":[{\"role\":\"user\",\"value\":\"x\"}]}" >in.jsonl
	test_exit 1 tw-preprocess -q in.jsonl 2>err
	test_text err "mixes role/content and from/value"
'
test_case 'what is wrong in a list is told with its number there' '
	bad() { echo "$2" | test_exit 1 tw-preprocess -q "$1" 2>err >out; test_text err "stdin:1: $3"; [ ! -s out ]; }
	u="{\"role\":\"user\",\"content\":\"a\"}" a="{\"role\":\"assistant\",\"content\":\"b\"}"
	n="{\"role\":\"user\",\"content\":7}" r="{\"role\":\"asistant\",\"content\":\"b\"}"
	bad messages "{\"messages\":[$u,$a,$n]}" "message 3: content must be text or a list of parts, not a number"
	bad messages "{\"messages\":[$u,$r,$u]}" "message 2: unknown role \"asistant\""
	bad messages "{\"messages\":[$u,$a,$u,7]}" "message 4: a message must be an object, not a number"
	bad sharegpt "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\"},{\"value\":\"c\"}]}" "message 3: "
	bad dpo "{\"prompt\":[$u,$a,$r],\"chosen\":\"a\",\"rejected\":\"b\"}" "message 3: unknown role"
	bad dpo "{\"prompt\":\"p\",\"chosen\":[$a],\"rejected\":[$a,$n]}" "rejected: message 2: content must be"
	bad dpo "{\"prompt\":\"p\",\"chosen\":$r,\"rejected\":[$a]}" "chosen: unknown role"
	bad messages "{\"chosen_messages\":[$u,$a],\"rejected_messages\":[$u,$r]}" "rejected_messages: message 2: unknown role"
	bad messages "{\"chosen_messages\":[$u,$r,$u,$a],\"rejected_messages\":[$u,$r,$u,$u]}" "message 2: unknown role"
	bad alpaca "{\"instruction\":\"i\",\"output\":\"o\",\"history\":[[\"a\",\"b\"],[\"c\"]]}" "item 2 of \"history\" is no [question, answer] pair of texts"
	bad messages "{\"messages\":[$u,{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"},7]}]}" "message 2: call 2: a tool call must be an object"
	bad messages "{\"messages\":[$u,{\"role\":\"assistant\",\"content\":[\"a\",{\"type\":\"image\"}]}]}" "message 2: part 2: content part of type \"image\""
'
test_case 'function calls, observations and tools' '
	cat >in.jsonl <<-X
	{"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"b\":1,\"a\":[1,\"y\"]}}"},{"from":"observation","value":"r"},{"from":"gpt","value":"z"}],"tools":"[{\"name\":\"f\"}]"}
	X
	tw-preprocess -q in.jsonl >out
	test_text out "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"b\":1,\"a\":[1,\"y\"]}}}]}"
	test_text out "{\"role\":\"tool\",\"content\":\"r\"}"
	test_text out "\"tools\":[{\"name\":\"f\"}]"
'
test_case 'typed parts: text joins, reasoning is kept apart, loss_weight passes' '
	echo "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"reasoning\",\"value\":\"r\"},{\"type\":\"text\",\"value\":\"t\"},{\"type\":\"text\",\"text\":\"u\"}],\"loss_weight\":1.0}]}" >in.jsonl
	tw-preprocess -q in.jsonl >out
	test_text out "{\"role\":\"assistant\",\"content\":\"tu\",\"reasoning_content\":\"r\",\"loss_weight\":1.0}"
	echo "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"value\":\"x\"}]}]}" >in.jsonl
	test_exit 1 tw-preprocess -q in.jsonl 2>err
	test_text err "content part of type \"image\" is not text"
'
test_case 'preference pairs: from text, from messages, from two whole conversations' '
	echo "{\"q\":\"p\",\"yes\":\"y\",\"no\":\"n\"}" >a.jsonl
	tw-preprocess dpo,prompt=q,chosen=yes,rejected=no a.jsonl >out
	printf "%s\n" "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"chosen\":{\"role\":\"assistant\",\"content\":\"y\"},\"rejected\":{\"role\":\"assistant\",\"content\":\"n\"}}" >want
	cmp out want
	echo "{\"chosen_messages\":[{\"role\":\"user\",\"content\":\"p\"},{\"role\":\"assistant\",\"content\":\"y\"}],\"rejected_messages\":[{\"role\":\"user\",\"content\":\"p\"},{\"role\":\"assistant\",\"content\":\"n\"}]}" >b.jsonl
	tw-preprocess -q b.jsonl >out
	test_text out "\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"chosen\":[{\"role\":\"assistant\",\"content\":\"y\"}]"
	echo "{\"prompt\":\"p\",\"chosen\":\"y\"}" >c.jsonl
	test_exit 1 tw-preprocess dpo c.jsonl 2>err
	test_text err "no \"rejected\""
'
test_case 'competition-math, its prompt form, countdown, text' '
	echo "{\"problem\":\"p\",\"solution\":\"s\"}" >m.jsonl
	tw-preprocess -q m.jsonl >out
	test_text out "{\"role\":\"assistant\",\"content\":\"s\"}"
	tw-preprocess competition-math-grpo m.jsonl >out
	test_no_text out assistant
	test_text out "\"user_data\":[[\"solution\",\"s\"]]"
	test_text out "\"solution\":\"s\""
	echo "{\"nums\":[3,5,2],\"target\":11}" >c.jsonl
	tw-preprocess -q c.jsonl >out
	test_text out "[3, 5, 2]"
	test_text out "equals 11"
	echo "{\"body\":\"words\",\"n\":1}" >t.jsonl
	tw-preprocess text,column=body t.jsonl >out
	printf "%s\n" "{\"text\":\"words\",\"n\":1}" >want
	cmp out want
'
test_case 'processors run one after another' '
	echo "{\"instruction\":\"i\",\"output\":\"o\"}" >in.jsonl
	tw-preprocess alpaca messages,system=S in.jsonl >out
	test_text out "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"i\"}"
'
test_case 'unknown processors, settings, filters and layouts are refused by name' '
	test_exit 2 tw-preprocess alpacca,x=1 "$TMP/alpaca.json" 2>err
	test_text err "alpacca"
	test_exit 2 tw-preprocess alpaca,sytem=x "$TMP/alpaca.json" 2>err
	test_text err sytem
	test_exit 2 tw-preprocess --filter nosuch "$TMP/alpaca.json" 2>err
	test_text err "unknown filter \"nosuch\""
	echo "{\"foo\":1,\"bar\":2}" >in.jsonl
	test_exit 1 tw-preprocess in.jsonl 2>err
	test_text err "in.jsonl:1: columns foo, bar are no layout that is known"
'
test_case '--slice takes rows A to B-1 of each file' '
	tw-preprocess -q --slice 1:2 "$TMP/chat.jsonl" "$TMP/chat.jsonl" >out
	test "$(grep -c "\"n\":2" out)" = 2
	test "$(wc -l <out)" = 2
	tw-preprocess -q --slice :1 "$TMP/chat.jsonl" | grep -q "\"n\":1"
	tw-preprocess -q --slice 2: "$TMP/chat.jsonl" | grep -q "\"n\":3"
	test_exit 2 tw-preprocess --slice 3:1 "$TMP/chat.jsonl" 2>err
	test_text err "is not A:B"
'
test_case '--mix: one after another, in turn, by weight; ends are said' '
	sed "s/\"n\":/\"m\":/" "$TMP/chat.jsonl" >b.jsonl
	sed -i 3d b.jsonl
	tw-preprocess -q --mix concat "$TMP/chat.jsonl" b.jsonl | sed "s/.*\"\([nm]\)\":\([0-9]\).*/\1\2/" | tr "\n" " " >out
	test_text out "n1 n2 n3 m1 m2 "
	tw-preprocess --mix interleave "$TMP/chat.jsonl" b.jsonl 2>err | sed "s/.*\"\([nm]\)\":\([0-9]\).*/\1\2/" | tr "\n" " " >out
	test_text out "n1 m1 n2 m2 n3 "
	test_text err "b.jsonl ended"
	for i in $(seq 2000); do echo "{\"text\":\"a\"}"; done >x.jsonl
	sed "s/a/b/" x.jsonl >y.jsonl
	tw-preprocess -q --mix weights=3,1 x.jsonl y.jsonl >out
	test "$(head -n 1000 out | grep -c "\"text\":\"a\"")" -gt 690
	test "$(head -n 1000 out | grep -c "\"text\":\"a\"")" -lt 810
	tw-preprocess -q --mix weights=3,1 --seed 7 x.jsonl y.jsonl | cmp -s - out && exit 1
	tw-preprocess -q --mix weights=3,1 x.jsonl y.jsonl | cmp - out
	test_exit 2 tw-preprocess --mix weights=1 x.jsonl y.jsonl 2>err
	test_text err "one weight for each of the 2 files"
	test_exit 2 tw-preprocess --mix nosuch x.jsonl 2>err
'
test_case '--shuffle is a permutation that the seed names' '
	for i in $(seq 500); do echo "{\"text\":\"$i\"}"; done >x.jsonl
	tw-preprocess -q --shuffle 1 x.jsonl >a
	tw-preprocess -q --shuffle 1 - <x.jsonl >b
	tw-preprocess -q --shuffle 2 x.jsonl >c
	cmp a b
	cmp -s a c && exit 1
	cmp -s a x.jsonl && exit 1
	sort a >as; sort x.jsonl | cmp - as
'
test_case 'filters drop, count and say why' '
	cat >in.jsonl <<-X
	{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"fine answer"}]}
	{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"I am sorry, but I cannot do that."}]}
	{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":""}]}
	{"messages":[{"role":"user","content":"q"}]}
	{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"fine answer"}],"x":1}
	X
	tw-preprocess --filter refuse in.jsonl >out 2>err
	test "$(wc -l <out)" = 4
	test_text err "refuse: the first reply refuses"
	tw-preprocess -q --filter sane in.jsonl >out
	test "$(wc -l <out)" = 3
	tw-preprocess -q --filter turns,min=1 in.jsonl >out
	test "$(wc -l <out)" = 4
	tw-preprocess -q --filter length,min=5,max=15 in.jsonl >out
	test "$(wc -l <out)" = 2
	tw-preprocess -q --filter dedup in.jsonl >out
	test "$(wc -l <out)" = 4
	tw-preprocess -q --filter has,key=x in.jsonl >out
	test "$(wc -l <out)" = 1
	test_exit 2 tw-preprocess --filter has in.jsonl 2>err
	test_exit 2 tw-preprocess --filter length,min=5,max=1 in.jsonl 2>err
'
test_case 'loop and soup' '
	w=; for i in $(seq 40); do w="$w again and again"; done
	printf "%s\n" "{\"text\":\"$w\"}" "{\"text\":\"plain words that do not repeat\"}" >in.jsonl
	cat >>in.jsonl <<-"X"
	{"text":"a\u0001\u0002\ufffd"}
	X
	tw-preprocess -q --filter loop in.jsonl >out
	test "$(wc -l <out)" = 2
	tw-preprocess -q --filter loop,ratio=1 in.jsonl >out
	test "$(wc -l <out)" = 3
	tw-preprocess -q --filter soup in.jsonl >out
	test "$(wc -l <out)" = 2
	tw-preprocess -q --filter soup,ratio=0.9 in.jsonl >out
	test "$(wc -l <out)" = 3
'
test_case 'the first bad row ends the run; --rejects and --max-rejects go on and name it' '
	for i in 1 2 3 4 5 6 7; do sed -n 1p "$TMP/chat.jsonl"; done >in.jsonl
	printf "%s\n" "{\"messages\":[]}" "{\"messages\":[{\"role\":\"who\",\"content\":\"\"}]}" "{\"messages\":" >>in.jsonl
	test_exit 1 tw-preprocess -q in.jsonl >out 2>err
	test_text err "in.jsonl:8: an empty list of messages"
	tw-preprocess -q --rejects bad in.jsonl >out
	test "$(wc -l <out)" = 7
	test "$(wc -l <bad)" = 3
	grep -q "\"line\":8.*an empty list of messages" bad
	grep -q "\"line\":9.*unknown role" bad
	grep -q "\"line\":10,\"column\":[0-9]" bad
	tw-preprocess --max-rejects 3 in.jsonl >out 2>err
	test "$(wc -l <out)" = 7
	test_text err "in.jsonl:9"
	test_exit 1 tw-preprocess -q --max-rejects 2 in.jsonl >out 2>err
	test_text err "in.jsonl:10"
'
test_case 'no row kept is a failure that says why' '
	echo "{\"messages\":[]}" >in.jsonl
	test_exit 1 tw-preprocess -q --max-rejects 5 in.jsonl 2>err
	test_text err "none of 1 rows was kept; the first: "
	test_text err "in.jsonl:1"
'
test_case '--exec maps a line to a line, null drops, other answers are errors' '
	tw-preprocess -q --exec "sed s/user/tool/" "$TMP/chat.jsonl" >out
	test "$(grep -c "\"role\":\"tool\"" out)" = 3
	tw-preprocess --exec "sed 2s/.*/null/" "$TMP/chat.jsonl" >out 2>err
	test "$(wc -l <out)" = 2
	test_text err "dropped by the command"
	test_exit 1 tw-preprocess -q --exec "head -n 1" "$TMP/chat.jsonl" 2>err
	test_text err "answered 1 of 3 records"
	test_exit 1 tw-preprocess -q --exec "sed p" "$TMP/chat.jsonl" 2>err
	test_text err "more lines than it was given"
	test_exit 1 tw-preprocess -q --exec "sed s/.*/3/" "$TMP/chat.jsonl" 2>err
	test_text err "answered a number"
	test_exit 1 tw-preprocess -q --exec "cat; exit 3" "$TMP/chat.jsonl" 2>err
	test_text err "failed with status 3"
'
test_case '--exec never blocks, whatever the command buffers' '
	for i in $(seq 3000); do printf "{\"text\":\"%0500d\"}\n" $i; done >in.jsonl
	timeout --foreground 600 tw-preprocess -q --exec "tac | tac" in.jsonl >out
	cmp in.jsonl out
	timeout --foreground 600 tw-preprocess -q --exec cat in.jsonl | cmp in.jsonl -
'
test_case 'threads do not change the output' '
	for i in $(seq 3000); do sed "s/\"n\":/\"k\":$i,\"n\":/" "$TMP/chat.jsonl"; done >in.jsonl
	tw-preprocess -q --threads 1 in.jsonl >a
	tw-preprocess -q --threads 2 in.jsonl >b
	cmp a b
	test "$(wc -l <a)" = 9000
'
test_case '--utf8 replace turns bad bytes into U+FFFD' '
	printf "{\"text\":\"a\\303(b\"}\n" >in.jsonl
	test_exit 1 tw-preprocess -q in.jsonl 2>err
	test_text err "in.jsonl:1: not UTF-8"
	tw-preprocess -q --utf8 replace in.jsonl >out
	printf "{\"text\":\"a\\357\\277\\275(b\"}\n" | cmp - out
'
test_case 'a system column that is null for long and then text' '
	i=0; while [ $i -lt 2000 ]; do echo "{\"instruction\":\"q\",\"output\":\"a\",\"system\":null}"; i=$((i+1)); done >in.jsonl
	echo "{\"instruction\":\"q\",\"output\":\"a\",\"system\":\"x\"}" >>in.jsonl
	tw-preprocess -q in.jsonl >out
	test "$(wc -l <out)" = 2001
	tail -n 1 out | grep -q "\"role\":\"system\",\"content\":\"x\""
'
test_case 'text that looks like something else stays text' '
	printf "%s\n" "{\"text\":\"action: string, datetime: timestamp[s]\"}" "{\"text\":\"007\"}" >in.jsonl
	tw-preprocess -q in.jsonl | cmp - in.jsonl
'
test_case 'CSV is read, every value as text' '
	printf "instruction,output\n\"say \"\"hi\"\"\",007\n" >in.csv
	tw-preprocess -q in.csv >out
	test_text out "\"content\":\"say \\\"hi\\\"\""
	test_text out "\"content\":\"007\""
'
test_case 'a field that is used up and no text is an error: nothing of a row is lost' '
	bad() { echo "$2" | test_exit 1 tw-preprocess "$1" 2>err >out; test_text err "stdin:1: $3"; [ ! -s out ]; }
	m="\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
	bad messages "{$m,\"system\":7}" "'\''system'\'' must be a string, not a number"
	bad alpaca "{\"instruction\":\"i\",\"input\":7,\"output\":\"o\"}" "'\''input'\'' must be a string, not a number"
	bad alpaca "{\"instruction\":\"i\",\"output\":\"o\",\"system\":[]}" "'\''system'\'' must be a string, not an array"
	bad self-cognition,name=a,author=b "{\"instruction\":\"i\",\"input\":{},\"output\":\"o\"}" "'\''input'\'' must be a string"
	bad sharegpt "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"}],\"system\":true}" "'\''system'\'' must be a string"
	bad dpo "{\"prompt\":\"p\",\"chosen\":\"a\",\"rejected\":\"b\",\"system\":1}" "'\''system'\'' must be a string"
	bad messages "{$m,\"tools\":\"x\"}" "the text in \"tools\" is no JSON: bad value"
	bad messages "{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}" "message 1: part 1: a part of content must be text or an object, not a number"
	bad messages "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":\"x\"}]}" "message 1: the text of a tool call is no JSON: bad value"
	bad messages "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":7,\"name\":\"f\"}]}]}" "message 1: call 1: '\''id'\'' must be a string"
	# null is not there
	echo "{\"instruction\":\"i\",\"input\":null,\"output\":\"o\",\"system\":null}" | tw-preprocess alpaca >out
	test_text out "\"content\":\"i\""
'
test_case '-o appears whole; a full disk is a failure' '
	tw-preprocess -q -o out "$TMP/chat.jsonl"
	test "$(wc -l <out)" = 3
	test_exit 1 tw-preprocess -q "$TMP/chat.jsonl" >/dev/full 2>err
	test_text err "cannot write"
	echo "{\"messages\":[]}" >bad.jsonl
	test_exit 1 tw-preprocess -q -o nothing bad.jsonl 2>err
	test ! -e nothing
'
test_case '--list names processors and filters' '
	tw-preprocess --list >out
	test_text out self-cognition
	test_text out dedup
'
test_case 'arguments of a tool call that are the text of an object become it' '
	cat >in.jsonl <<-\EOF
	{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"function":{"name":"g","arguments":"words"}}]}]}
	EOF
	tw-preprocess messages in.jsonl >out
	grep -q "\"name\":\"f\",\"arguments\":{\"a\": *1}}" out
	grep -q "\"name\":\"g\",\"arguments\":\"words\"}" out
'
test_done
