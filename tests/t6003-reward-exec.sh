#!/bin/sh
# t6003-reward-exec.sh - commands that score, and those that do not do as they should; code in isolation
. "$(dirname "$0")/lib.sh"

seq 1 4 | sed 's/.*/{"text":"t","v":&}/' >"$TMP/in.jsonl"
cat >"$TMP/echo.sh" <<'X'
while read -r l; do l=${l##*\"v\":}; echo "${l%%[,\}]*}"; done
X
fails()	# COMMAND TEXT: the run fails and says TEXT
{
	test_exit 1 timeout --foreground 600 tw-reward -q --exec "$1" --exec-timeout 5 "$TMP/in.jsonl" >out 2>err
	test_text err "$2"
}

test_case 'a number or null a line; the weight of it' '
	tw-reward --exec "sh $TMP/echo.sh" --exec-weight 0.5 "$TMP/in.jsonl" >out
	test_text out "{\"text\":\"t\",\"v\":3,\"rewards\":{\"exec\":3.0},\"reward\":1.5,\"advantage\":1.5}"
	tw-reward --exec "sh $TMP/echo.sh" length "$TMP/in.jsonl" >out
	test_text out "\"rewards\":{\"length\":1.0,\"exec\":4.0},\"reward\":5.0"
	tw-reward -q --exec "while read l; do echo null; done" "$TMP/in.jsonl" >out
	test_equal "$(grep -c "\"exec\":null},\"reward\":null" out)" 4
	tw-reward --exec "while read l; do echo \" -2.5e-1 \"; done" "$TMP/in.jsonl" >out
	test_equal "$(grep -c "\"reward\":-0.25," out)" 4
'
test_case 'too few and too many answers are errors with counts' '
	fails "read l; echo 1" "ended after 1 answers to 2 records"
	fails "read l; read l; read l; echo 1; echo 2; echo 3" "more than one line"  || fails "read l; echo 1; read l; echo 1; read l; echo 1" "ended after 3 answers to 4"
	fails "while read l; do echo 1; done; echo 2" "answered more lines than the 4 records"
	fails "echo 1; echo 2; cat >/dev/null" "answered"
	fails "exit 0" "ended after 0 answers to 1 records"
'
test_case 'what is no number is an error that names the record' '
	for v in nan inf 1e999 "" x 0x10 "1 2" true "[1]"; do
		test_exit 1 tw-reward -q --exec "while read l; do echo \"$v\"; done" "$TMP/in.jsonl" >out 2>err
		test_text err "in.jsonl:1: --exec: "
		test_text err "answered \"$v\", which is neither a finite number nor null"
	done
	fails "while read l; do head -c 100000 /dev/zero | tr \"\\\\0\" 1; echo; done" "a line of more than 65536 bytes"
'
test_case 'a command that dies is run again; its record is unscored' '
	cat >s.sh <<-"X"
	while read -r l; do case $l in *:3}*) kill -9 $$ ;; *) echo 1 ;; esac; done
	X
	tw-reward --exec "exec sh s.sh" "$TMP/in.jsonl" >out 2>err
	test_equal "$(sed "s/.*\"reward\":\([^,]*\),.*/\1/" out | tr "\n" " ")" "1.0 1.0 null 1.0 "
	test_text err "unscored: exec: the command died (signal 9): 1 (first $TMP/in.jsonl:3)"
	test_text err "started again 1 times"
	sed "s/kill -9 ../exit 3/" s.sh >s2.sh
	tw-reward --exec "sh s2.sh" "$TMP/in.jsonl" >out 2>err
	test_text err "the command died (status 3)"
'
test_case 'a command that hangs is killed, deaf to SIGTERM or not' '
	cat >s.sh <<-"X"
	trap "" TERM INT HUP
	while read -r l; do case $l in *:2}*) sleep 100 ;; *) echo 1 ;; esac; done
	X
	tw-reward --exec "sh s.sh" --exec-timeout 3 "$TMP/in.jsonl" >out 2>err
	test_equal "$(sed "s/.*\"reward\":\([^,]*\),.*/\1/" out | tr "\n" " ")" "1.0 null 1.0 1.0 "
	test_text err "no answer of the command in 3 s"
	while ps ax | grep -q "[s]leep 100$"; do sleep 0.05; done
'
test_case 'a command that never answers ends the run' '
	seq 1 9 | sed "s/.*/{\"text\":\"t\",\"v\":&}/" >in.jsonl
	test_exit 1 tw-reward -q --exec "exit 7" in.jsonl >out 2>err
	test_text err "gave no answer 5 times in a row; the last time: the command died (status 7)"
	test_exit 1 tw-reward -q --exec "no-such-command-here" in.jsonl >out 2>err
	test_text err "status 127"
'
test_case '--exec-memory is a limit' '
	command -v python3 >/dev/null || test_skip "no python3"
	cat >s.py <<-X
	import sys
	for l in sys.stdin:
	    if ":2}" in l: x = bytearray(600 << 20)
	    print(1, flush=True)
	X
	tw-reward --exec "python3 s.py" --exec-memory 256 "$TMP/in.jsonl" >out 2>err
	test_equal "$(sed "s/.*\"reward\":\([^,]*\),.*/\1/" out | tr "\n" " ")" "1.0 null 1.0 1.0 "
'
test_case 'a large record and a command that does not read it' '
	awk "BEGIN { printf \"{\\\"v\\\":1,\\\"x\\\":\\\"\"; for (i = 0; i < 300000; i++) printf \"0123456789\"; print \"\\\"}\" }" >in.jsonl
	tw-reward --exec "while read -r l; do echo 1; done" in.jsonl | tail -c 60 >out
	test_text out "\"reward\":1.0"
	fails "exec sleep 0" "ended after 0 answers"
'
# code TEXT KEY=JSON..: a reply with TEXT in a fenced block
code()
{
	rec_="{\"completion\":{\"text\":\"so:\\n\`\`\`python\\n$1\\n\`\`\`\"}"
	shift
	for kv_; do rec_="$rec_,\"${kv_%%=*}\":${kv_#*=}"; done
	printf "%s}\n" "$rec_"
}
value()
{
	sed 's/.*"reward":\([^,]*\),.*/\1/'
}
isolated()
{
	command -v python3 >/dev/null || test_skip "no python3"
	echo '{}' | tw-reward -q code >/dev/null 2>err || test_skip "$(cat err)"
}
test_case 'code: tests behind it, a list of them, input and output' '
	isolated
	code "def f(a):\\n    return a + 1" "tests=\"assert f(1) == 2\"" >in.jsonl
	code "def f(a):\\n    return a + 1" "tests=[\"assert f(1) == 2\",\"assert f(1) == 3\"]" >>in.jsonl
	code "print(int(input()) * 2)" "tests=[{\"input\":\"4\",\"output\":\"8 \\n\"},{\"input\":\"5\\n\",\"output\":\"10\"}]" >>in.jsonl
	code "def f(a):\\n    return a" "test=\"def check(c):\\n    assert c(1) == 1\"" "entry_point=\"f\"" >>in.jsonl
	code "def f(a):\\n    return a" "test=\"def check(c):\\n    assert c(1) == 2\"" "entry_point=\"f\"" >>in.jsonl
	code "syntax error" "tests=\"1\"" >>in.jsonl
	code "x = 1" >>in.jsonl
	echo "{\"text\":\"no block\",\"tests\":\"1\"}" >>in.jsonl
	test_equal "$(tw-reward -q code in.jsonl | value | tr "\n" " ")" "1.0 0.0 1.0 1.0 0.0 0.0 null 0.0 "
	test_equal "$(sed -n 2p in.jsonl | tw-reward -q code,share=on | value)" 0.5
'
test_case 'code: leaving early, reaching out, writing elsewhere do not pass' '
	isolated
	code "import sys; sys.exit(0)" "tests=\"assert False\"" >in.jsonl
	code "import os; os._exit(0)" "tests=\"assert False\"" >>in.jsonl
	code "import socket; socket.create_connection((\\u0027127.0.0.1\\u0027, 80), timeout=2)" "tests=\"1\"" >>in.jsonl
	code "open(\\u0027$PWD/hole\\u0027, \\u0027w\\u0027)" "tests=\"1\"" >>in.jsonl
	code "import os; os.kill(1, 0); assert os.getuid() == 0" "tests=\"1\"" >>in.jsonl
	code "open(\\u0027big\\u0027, \\u0027w\\u0027).write(\\u0027x\\u0027 * (100 << 20))" "tests=\"1\"" >>in.jsonl
	code "x = bytearray(900 << 20)" "tests=\"1\"" >>in.jsonl
	code "while True: print(\\u0027x\\u0027 * 1000)" "tests=\"1\"" >>in.jsonl
	code "import os; p = [os.fork() for i in range(10)]" "tests=\"1\"" >>in.jsonl
	tw-reward -q code,memory=512 in.jsonl | value | tr "\n" " " >out
	test_text out "0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 "
	[ ! -e hole ]
	ls "${TMPDIR:-/tmp}" | { ! grep tw-reward-; }
'
test_case 'code: a timeout is unscored, or a failure when asked' '
	isolated
	code "while True: pass" "tests=\"1\"" >in.jsonl
	code "import os, time; os.setsid() if os.fork() == 0 else 0; [os.close(i) for i in range(4)]; time.sleep(60)" "tests=\"1\"" >>in.jsonl
	timeout --foreground 300 tw-reward code,timeout=1 in.jsonl 2>err | value | tr "\n" " " >out
	test_text out "null null "
	test_text err "unscored: code: timed out after 1 s: 2"
	test_equal "$(tw-reward -q code,timeout=1,on-timeout=fail in.jsonl | value | tr "\n" " ")" "0.0 0.0 "
'
test_case 'code: another interpreter, and one that is not there' '
	isolated
	code "read x; echo \$x" "tests=[{\"input\":\"a\\n\",\"output\":\"a\"}]" | tw-reward -q code,interpreter=sh | value >out
	test_equal "$(cat out)" 1.0
	echo "{}" | test_exit 1 tw-reward code,interpreter=no-such 2>err
	test_text err "in isolation or not at all"
	test_text err "no-such: "
'
test_done
