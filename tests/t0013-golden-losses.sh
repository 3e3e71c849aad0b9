#!/bin/sh
# t0013-golden-losses.sh - every loss against its reference values
. "$(dirname "$0")/lib.sh"

test_case 'values and gradients of both forms' '
	golden-losses "$DATA/losses/losses.json" "$DATA/losses/tinker.json" >out || { cat out; exit 1; }
	test_text out "67 of 67 losses within 1e-06"
'
test_case 'a wrong value is found' '
	sed "s/\"loss\": 0.34410368/\"loss\": 0.34420368/" "$DATA/losses/losses.json" >bad.json
	test_exit 1 golden-losses bad.json >out
	test_text out OVER
'
test_done
