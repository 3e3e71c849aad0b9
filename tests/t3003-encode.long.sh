#!/bin/sh
# A gigabyte of chat records through tw-encode: memory stays below 300 MB, packed or not.
. "$(dirname "$0")/lib.sh"

# $1 bytes of records on stdout
records()
{
	awk -v want="$1" 'BEGIN {
	    for (n = i = 0; n < want; i++) {
	        text = ""
	        for (k = 0; k < 20 + (i * 7919) % 90; k++)
	            text = text "word" (i * 31 + k * 17) % 977 " "
	        line = "{\"messages\":[{\"role\":\"user\",\"content\":\"Question " i "?\"}," \
	            "{\"role\":\"assistant\",\"content\":\"" text "\"}]}"
	        print line
	        n += length(line) + 1
	    } }'
}
# The most memory a command took, in kB, read once a second; its output goes nowhere.
peak_of()
{
	"$@" >/dev/null &
	pid=$!
	peak=0
	while at=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' /proc/$pid/status 2>/dev/null) &&
	    [ -n "$at" ]; do
		peak=$at
		sleep 1
	done
	wait $pid
}

test_case 'a gigabyte in less than 300 MB' '
	mkfifo in
	records 1000000000 >in &
	peak_of tw-encode -q -m "$DATA/tokenizers/qwen3" in
	echo "$peak kB"
	[ "$peak" -gt 1000 ] && [ "$peak" -lt 300000 ]
'
test_case 'packed rows of 2,048, too' '
	mkfifo in
	records 300000000 >in &
	peak_of tw-encode -q -m "$DATA/tokenizers/qwen3" --pack 2048 in
	echo "$peak kB"
	[ "$peak" -gt 1000 ] && [ "$peak" -lt 300000 ]
'
test_done
