#!/bin/sh
# tw-serve -m tiny under load (load.c): TW_TENANTS (64) train and sample while TW_PARKED (1000) polls wait,
# for TW_SECONDS (300). TW_NICE: the priority of the server and the load, on a machine that others use.
TOP=$(cd "$(dirname "$0")/../.." && pwd)
TW_BUILD=${TW_BUILD:-$TOP/build}
dir=$(mktemp -d) || exit 1
PID=
trap 'kill $PID 2>/dev/null; wait; rm -rf "$dir"' EXIT
ulimit -n "$(ulimit -Hn)"
nice -n "${TW_NICE:-0}" "$TW_BUILD/bin/tw-serve" -m tiny --listen 127.0.0.1:0 --state "$dir/state" \
    --gap-timeout 3600 >"$dir/out" 2>"$dir/err" &
PID=$!
until [ -s "$dir/out" ]; do
	kill -0 $PID 2>/dev/null || { cat "$dir/err"; exit 1; }
	sleep 0.05
done
nice -n "${TW_NICE:-0}" "$TW_BUILD/bench/load" "$(sed -n 's/^listening on //p' "$dir/out")" $PID "${TW_TENANTS:-64}" \
    "${TW_PARKED:-1000}" "${TW_SECONDS:-300}"
