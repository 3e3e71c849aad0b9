#!/bin/sh
# A file is there whole or not at all, whatever fails. The command is the program of
# tests/unit/io.c, which writes 300 kB in 300 pieces.
. "$(dirname "$0")/lib.sh"

# inject SPEC: runs the command with one call that fails.
inject()
{
	env LD_PRELOAD="$TW_BUILD/tests/inject.so" TW_INJECT_PATH="${2:-file}" TW_INJECT="$1" io file
}

test_case 'the library that injects failures counts calls' '
	export TW_INJECT_NAMED=1
	LD_PRELOAD="$TW_BUILD/tests/inject.so" TW_INJECT_PATH=file TW_INJECT_COUNT=count io file
	test_equal "$(grep -c ^write count)" 301
	test_equal "$(grep -c ^fsync count)" 1
	test_equal "$(grep -c ^rename count)" 1
	test_equal "$(grep -c ^open count)" 1
	test_equal "$(wc -c <file | tr -d " ")" 300000
'
test_case 'each failure leaves the old file and nothing else' '
	export TW_INJECT_NAMED=1
	echo old >file
	for at in open:1 write:1 write:2 write:150 write:300 write:301 write:301:EIO fsync:1 rename:1; do
	    test_exit 1 inject $at 2>err
	    case $at in *EIO) text="Input/output error" ;; *) text="No space left on device" ;; esac
	    test_text err "file: cannot "
	    test_text err "$text"
	    test_equal "$(cat file)" old
	    test_equal "$(ls -A | tr "\n" " ")" "err file "
	done
	inject write:302
	test_equal "$(wc -c <file | tr -d " ")" 300000
'
test_case 'the same of a file that has no name until it is whole' '
	: >file
	LD_PRELOAD="$TW_BUILD/tests/inject.so" TW_INJECT_PATH="#" TW_INJECT_COUNT=count io file
	[ -s count ] || test_skip "no files without a name here"
	test_equal "$(cut -d " " -f 1 count | sort | uniq -c | tr -s " " | tr "\n" ,)" " 1 fsync, 1 link, 301 write,"
	rm count
	echo old >file
	for at in write:1 write:150 write:301 write:301:EIO fsync:1 link:1; do
	    test_exit 1 inject $at "#" 2>err
	    test_text err "file: cannot write: "
	    test_equal "$(cat file)" old
	    test_equal "$(ls -A | tr "\n" " ")" "err file "
	done
	test_exit 1 inject rename:1 2>err
	test_equal "$(cat file)" old
	test_equal "$(ls -A | tr "\n" " ")" "err file "
'
test_case 'a small file system that fills up' '
	mkdir disk
	mount -t tmpfs -o size=100k tmpfs disk 2>/dev/null || test_skip "cannot mount"
	echo old >disk/file
	status=0
	io disk/file 2>err || status=$?
	ls -A disk >names
	cat disk/file >text
	umount disk
	test_equal "$status $(cat names) $(cat text)" "1 file old"
	test_text err "No space left on device"
'
test_case 'a folder that may not be written' '
	as=
	if [ "$(id -u)" = 0 ]; then
	    as="setpriv --reuid=65534 --regid=65534 --clear-groups"
	    $as test -x "$TW_BUILD/tests/io" 2>/dev/null || test_skip "nobody cannot run the program"
	fi
	mkdir closed
	chmod 555 closed
	test_exit 1 $as io closed/file 2>err
	test_text err "closed/file: cannot create: Permission denied"
'
test_case 'a pipe, a device and what is open already are written, never replaced' '
	mkfifo pipe
	cat pipe >got &
	io pipe
	wait
	[ -p pipe ]
	test_equal "$(wc -c <got | tr -d " ")" 300000
	io file
	cmp file got
	io /dev/stdout | cmp file -
	io /dev/stdout >redirected
	cmp file redirected
	io /proc/self/fd/3 3>third
	cmp file third
	[ -L /dev/stdout ]
	test_equal "$(ls -A | tr "\n" " ")" "file got pipe redirected third "
	mknod sink c 1 3 2>/dev/null && mknod full c 1 7 || test_skip "cannot make devices"
	{ : >sink; } 2>/dev/null || test_skip "devices do not work here"
	io sink
	[ -c sink ]
	test_exit 1 io full 2>err
	test_text err "full: cannot write: No space left on device"
	[ -c full ]
'
test_done
