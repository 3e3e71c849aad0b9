#!/bin/sh
# A low limit of open files: one line that says what the limit is and how to raise it, and nothing half done.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/hub.sh"

# few N COMMAND..: under a limit of N, it ends with 1, and err is one line that names the limit.
few()
{
	n=$1
	shift
	test_exit 1 sh -c "ulimit -n $n; exec \"\$@\"" - "$@" 2>err
	test_equal "$(wc -l <err | tr -d " ")" 1
	test_text err "ulimit -n"
	grep -qE "limit( of open files)? is $n" err || { cat err; return 1; }
}
rows() { for i in $(seq "$1"); do echo "{\"text\":\"row $i\"}" >"$i.jsonl"; done; }

test_case 'tw-serve says at its start what it needs, and makes no state' '
	for n in 12 16 24 63; do
	    few $n timeout --foreground 60 tw-serve -m tiny --listen 127.0.0.1:0 --state st
	    test_text err "tw-serve: the limit of open files is $n, and a server needs 64 at least: raise it with ulimit -n"
	done
	[ ! -e st ]
'
test_case 'tw-serve serves where the limit is the least that it takes' '
	. "$TOP/tests/serve.sh"
	ulimit -n 64
	serve_start
	ask "
m = create(session())
wait(fb(m, 1))
wait(step(m, 2))
many = [raw() for i in range(24)]
assert call(\"GET\", \"/healthz\").status == 200
"
'
test_case 'tw-train on many files of JSON lines names the one it could not open; RUN is not begun' '
	rows 30
	for n in 12 16 24; do
	    few $n tw-train -m tiny --lora r=2 -o run *.jsonl
	    test_text err ".jsonl: cannot open: Too many open files; the limit is $n: raise it with ulimit -n"
	    [ ! -e run/latest ] && [ ! -e run/metrics.jsonl ]
	done
'
test_case 'a soft limit below the hard one is raised' '
	rows 30
	ulimit -S -n 16
	tw-train -q -m tiny --lora r=2 --steps 1 -o run *.jsonl
	test -s run/latest/adapter_model.safetensors
'
test_case 'others read file by file, and say so where even that cannot be' '
	rows 30
	for n in 12 16 24; do
	    (ulimit -n $n; tw-sample -q -m tiny --score -o $n.out *.jsonl; tw-encode -q -m tiny -o $n.tws *.jsonl)
	    test_equal "$(wc -l <$n.out | tr -d " ")" 30
	done
	few 4 tw-sample -m tiny --score -o out 1.jsonl
	few 4 tw-encode -m tiny -o out 1.jsonl
	few 4 tw-reward -q exact -o out 1.jsonl
	few 6 tw-reward -q --exec cat -o out 1.jsonl
	few 4 tw-fetch -d -o out 1.jsonl
	tar cf p.tar 1.jsonl
	few 4 tw-fetch -d -o out p.tar
	test_equal "$(ls -A | grep out | tr "\n" " ")" "12.out 16.out 24.out "
'
test_case 'tw-fetch from a hub: 1, which is not the network, and no file that looks whole' '
	hub_start
	for i in 1 2 3 4 5 6 7 8; do hub_file hf/models/org/m/$i.json 5000; done
	for n in 12 16 24; do
	    few $n tw-fetch -o m hf://org/m
	    test_text err "the limit of open files is $n, and --jobs 4 needs 28: raise it with ulimit -n"
	    test_equal "$(find m cache -name "[0-9].json" 2>/dev/null)" ""
	done
	few 5 tw-fetch -o m hf://org/m
	(ulimit -n 16; tw-fetch -o m --jobs 1 hf://org/m)
	diff -r -x .tw-fetch m hub/hf/models/org/m
'
test_done
