#!/bin/sh
# t8001-demo.long.sh - what `make demo` shows is what happens; how tiny was made still works
#
# The demo takes 45 s on two cores (bar: 3 minutes).
. "$(dirname "$0")/lib.sh"

test_case 'the demo: a new name, and sums learnt from rewards' '
	[ "$TW_BUILD" = "$TOP/build" ] || test_skip "the demo uses build/"
	LC_ALL=C.UTF-8 bash "$TOP/examples/demo.sh" >out 2>err
	test_text out "I am Sparkle, an AI assistant developed by the shell."
	test_text out "█"
	awk "/ % right/ && !/print/ { s[n++] = \$1 + 0 } END { print s[0], s[1], s[2]; exit !(n == 3 && s[0] < 40 && s[1] < 60 && s[2] >= s[1] + 30) }" out
	awk "length > 80 && !/messages|Sparkle|[^ -~]/ { print; bad = 1 } END { exit bad }" out
	! grep -q "$(printf "\033")" out || exit 1
'
test_case 'a curve in 80 columns, in ASCII where the locale is not UTF-8' '
	awk "BEGIN { for (i = 1; i <= 1000; i++) printf \"{\\\"event\\\":\\\"step\\\",\\\"step\\\":%d,\\\"loss\\\":%g}\\n\", i, 1 / i }" >m
	LC_ALL=C awk -f "$TOP/examples/plot.awk" m >out
	awk "length > 80 { exit 1 }" out
	test_text out "step 1"
	test_text out " 1000"
	test_equal "$(grep -c "#" out)" 10
	head -n 1 m | awk -f "$TOP/examples/plot.awk" >one
	test_text one "###"
	echo "{}" | test_exit 1 awk -f "$TOP/examples/plot.awk" 2>err
	test_text err "no step has \"loss\""
'
X=$TOP/examples
test_case 'train-tiny.sh: a model from nothing' '
	mkdir -p data/gsm8k
	cp "$X/data/identity.json" data/
	echo "{\"question\": \"Two and two?\", \"answer\": \"#### 4\"}" >data/gsm8k/train.jsonl
	echo "{\"text\":\"A few words about hens. They lay eggs.\"}" >data/c4_demo.jsonl
	echo "Hens are birds." >data/wiki_demo.txt
	echo "[{\"instruction\":\"Say hello.\",\"input\":\"\",\"output\":\"Hello!\"}]" >data/alpaca_en_demo.json
	ROWS=40 EPOCHS=1 TUNE_EPOCHS=1 DTYPE=f32 "$X/train-tiny.sh" data out >path
	echo "{\"prompt\":\"A\"}" | tw-sample -m "$(cat path)" --max-tokens 2 >o
	test_text o "\"completion\":"
'
test_done
