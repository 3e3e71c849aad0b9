#!/bin/sh
# What tw-fetch leaves when a write fails or it is killed: whole files under their names, or none,
# and a next run that ends with the same bytes.
. "$(dirname "$0")/lib.sh"
. "$TOP/tests/hub.sh"

# whole DIR: each file in DIR that has a name of the model is the model's.
whole()
{
    for f in config.json sub/notes.txt model.safetensors; do
        [ ! -e "$1/$f" ] || cmp "$1/$f" "hub/hf/models/org/m/$f"
    done
}
model()
{
    hub_file hf/models/org/m/config.json 1000
    hub_file hf/models/org/m/sub/notes.txt 70
    hub_file hf/models/org/m/model.safetensors 1048576
}

test_case 'each failing write, sync and rename: an error, no broken file, the next run is well' '
	[ -f "$TW_BUILD/tests/inject.so" ] || test_skip "no inject.so"
	hub_start
	model
	LD_PRELOAD="$TW_BUILD/tests/inject.so" TW_INJECT_PATH=cache TW_INJECT_COUNT=count tw-fetch hf://org/m >out
	for kind in open write fsync rename; do
		n=$(grep -c "^$kind" count || true)
		[ "$n" -gt 0 ]
		step=$((n > 12 ? n / 6 : 1))
		for at in $(seq 1 $step "$n"); do
			rm -rf cache
			status=0
			env LD_PRELOAD="$TW_BUILD/tests/inject.so" TW_INJECT_PATH=cache TW_INJECT="$kind:$at" \
				tw-fetch hf://org/m >out 2>err || status=$?
			[ $status = 1 ] || [ $status = 0 ] || { echo "$kind:$at: status $status"; cat err; exit 1; }
			[ $status = 0 ] || { test_text err "tw-fetch: "; test_equal "$(cat out)" ""; }
			for d in cache/hub/hf/models/org/m/????????????????????????????????????????; do whole "$d"; done
			diff -r "$(tw-fetch hf://org/m)" hub/hf/models/org/m
		done
	done
'
test_case 'killed at random moments: the last run ends with the same bytes' '
	hub_start
	model
	behave "{\"slow\": 0.6}"
	for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		[ $((i % 5)) != 0 ] || rm -rf cache
		tw-fetch hf://org/m >out 2>err &
		p=$!
		sleep 0.$(printf %02d $((i * 37 % 89)))
		kill -9 $p 2>/dev/null || true
		wait $p 2>/dev/null || true
		for d in cache/hub/hf/models/org/m/????????????????????????????????????????; do whole "$d"; done
	done
	behave "{}"
	diff -r "$(tw-fetch hf://org/m)" hub/hf/models/org/m
	test_equal "$(ls cache/hub/hf/models/org/m/parts)" ""
'
test_case 'killed while unpacking: no half folder, the next run is well' '
	mkdir -p m
	echo "{}" >m/config.json
	seq 1 3000000 >m/big
	tar cf m.tar m
	for i in 05 10 20 30 40; do
		tw-fetch m.tar >out 2>err &
		p=$!
		sleep 0.$i
		kill -9 $p 2>/dev/null || true
		wait $p 2>/dev/null || true
		for d in "$TW_CACHE"/unpacked/*; do
			case $d in *.tmp | *.lock | *\*) ;; *) cmp "$d/m/big" m/big ;; esac
		done
	done
	diff -r "$(tw-fetch m.tar)" m
	test_equal "$(find "$TW_CACHE" -name "*.tmp")" ""
	mkdir new.tmp-999999999 new.tmp-$$ other.tmp-999999999
	diff -r "$(tw-fetch -o new m.tar)" m
	[ ! -e new.tmp-999999999 ] && [ -d new.tmp-$$ ] && [ -d other.tmp-999999999 ]
'
test_case 'a cache that may not be written, a file in its place' '
	hub_start
	model
	echo x >file
	TW_CACHE="$PWD/file" test_exit 1 tw-fetch hf://org/m 2>err
	test_text err "$PWD/file"
	[ "$(id -u)" != 0 ] || test_skip "root may write anywhere"
	mkdir closed
	chmod 555 closed
	TW_CACHE="$PWD/closed" test_exit 1 tw-fetch hf://org/m 2>err
	test_text err "Permission denied"
'
test_case 'a small file system that fills up' '
	hub_start
	model
	mkdir disk
	mount -t tmpfs -o size=600k tmpfs disk 2>/dev/null || test_skip "cannot mount"
	status=0
	TW_CACHE="$PWD/disk" tw-fetch hf://org/m >out 2>err || status=$?
	umount disk
	test_equal "$status" 1
	test_text err "needs 1.0 MiB, and"
'
test_done
