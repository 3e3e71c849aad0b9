#!/bin/sh
# The harness itself: a test that dies, hangs or forgets its cases is a failure.
. "$(dirname "$0")/lib.sh"

# harness FILE..: runs the harness on programs, in a build folder of its own.
harness()
{
	TW_BUILD="$PWD/built" TEST_S=2 sh "$TOP/tests/run.sh" "$@"
}
# program NAME TEXT: makes one.
program()
{
	printf '#!/bin/sh\n%s\n' "$2" >"$1"
	chmod +x "$1"
}

test_case 'nothing to run' '
	test_equal "$(harness)" "0 passed, 0 failed, 0 skipped"
'
test_case 'cases are counted' '
	program a "echo ok 1 - x; echo ok 2 - y \# SKIP why; echo 1..2"
	program b "echo ok 1 - x; echo \# note; echo not ok 2 - y; echo 1..2; exit 1"
	test_exit 1 harness "$PWD/a" "$PWD/b" >out
	test_equal "$(tail -n 1 out)" "2 passed, 1 failed, 1 skipped"
	test_text out "not ok 2 - y"
	test_text out "# note"
	test_text out "SKIP why"
	test_exit 0 harness "$PWD/a" >out
'
test_case 'a program that dies, hangs or has no plan is a failure' '
	program dies "echo ok 1 - x; kill -SEGV \$\$"
	program hangs "echo ok 1 - x; echo 1..1; sleep 60"
	program plans "echo ok 1 - x; echo 1..2"
	program lies "echo ok 1 - x; echo 1..1; exit 3"
	for p in dies hangs plans lies; do
	    test_exit 1 harness "$PWD/$p" >out
	    test_equal "$(tail -n 1 out)" "1 passed, 1 failed, 0 skipped"
	done
	test_exit 1 harness "$PWD/missing" >out
	test_equal "$(tail -n 1 out)" "0 passed, 1 failed, 0 skipped"
'
test_case 'what has a limit of its own in a script ends with the script, for which it must stay in its group' '
	program nested "timeout --foreground 60 sh -c \"echo \\\$\\\$ >$PWD/pid; exec sleep 60\"; echo 1..0"
	test_exit 1 harness "$PWD/nested" >out
	test_text out "took more than"
	test -s pid
	for i in $(seq 200); do kill -0 "$(cat pid)" 2>/dev/null || break; sleep 0.05; done
	test $i -lt 200
	! grep -nE "(^|[[:space:](])timeout [\"0-9\$]" "$TOP"/tests/*.sh || exit 1
'
test_case 'the helpers of scripts tell right from wrong' '
	test_exit 3 sh -c "exit 3"
	! (test_exit 0 false) 2>/dev/null
	echo text >f
	test_text f tex
	! (test_text f nothing) >/dev/null
	test_no_text f nothing
	! (test_no_text f tex) >/dev/null
	test_equal a a
	! (test_equal a b) >/dev/null
'
test_case 'a failing case of a script fails, the next one runs' '
	mkdir tests
	cp "$TOP"/tests/lib.sh tests/
	printf "%s\n" ". \"\$(dirname \"\$0\")/lib.sh\"" "test_case one \"false; true\"" \
	    "test_case two \"test_skip why\"" "test_case three true" test_done >tests/t1.sh
	TW_BUILD=$PWD/b sh tests/t1.sh >out || :
	printf "not ok 1 - one\nok 2 - two # SKIP why\nok 3 - three\n1..3\n" | diff - out
'
test_done
