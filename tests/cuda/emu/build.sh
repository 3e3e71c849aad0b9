#!/bin/sh
# build.sh TEST..: builds TEST.cc of this folder (all: every one) over the kernels' sources, as build/emu/TEST,
# which is to be run there. A block's threads are fibers that change at each barrier in an order drawn anew, and
# copies come late, over poison.
set -e
cd "$(dirname "$0")"
mkdir -p ../../../build/emu
B=$(cd ../../../build/emu && pwd)
[ "$*" != all ] || set -- $(ls *.cc | sed -n '/^emu\.cc$/d; s/\.cc$//p')
python3 prep.py ../../../kernels "$B/src"
F="-O2 -g -std=c++17 -Ifake -I. -I../../../lib -I$B/src -w -fno-strict-aliasing -ffp-contract=off"
CXX=${CXX:-g++}
$CXX $F -c emu.cc -o "$B/emu.o"
for t; do
	set --
	# Kernels that a test calls over their headers; others are part of it.
	for k in $(sed -n 's/^ \* over: \(.*\) \*\/$/\1/p' "$t.cc"); do
		$CXX $F -x c++ -c "$B/src/$k.cu" -o "$B/$k.o"
		set -- "$@" "$B/$k.o"
	done
	$CXX $F -o "$B/$t" "$t.cc" "$@" "$B/emu.o"
done
