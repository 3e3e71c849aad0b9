#!/bin/sh
# What tw-serve -m tiny itself takes: from its start to the first answer, TW_RUNS (9) times; a snapshot to
# sample from, TW_SNAPSHOTS (400, more than memory keeps) of them; a forward_backward of 5 MB in each form (serve.c). TW_NICE: the
# priority, on a machine that others use.
TOP=$(cd "$(dirname "$0")/../.." && pwd)
TW_BUILD=${TW_BUILD:-$TOP/build}
dir=$(mktemp -d) || exit 1
PID=
trap 'kill $PID 2>/dev/null; wait; rm -rf "$dir"' EXIT
start()
{
	: >"$dir/out"
	nice -n "${TW_NICE:-0}" "$TW_BUILD/bin/tw-serve" -m tiny --listen "unix:$dir/sock" --state "$dir/state" \
	    --gap-timeout 3600 "$@" >"$dir/out" 2>"$dir/err" &
	PID=$!
}
up()
{
	until [ -s "$dir/out" ]; do
		kill -0 $PID 2>/dev/null || { cat "$dir/err"; exit 1; }
		sleep 0.01
	done
}
for i in $(seq "${TW_RUNS:-9}"); do
	rm -rf "$dir/state"
	t=$(date +%s%N)
	start
	until curl -s --unix-socket "$dir/sock" http://x/healthz >/dev/null; do :; done
	echo $(($(date +%s%N) - t))
	kill $PID
	wait $PID
done | sort -n | awk '{ t[NR] = $1 / 1e6 } END { printf "from start to first answer, curl included: %.0f ms (%.0f to %.0f)\n", t[int((NR + 1) / 2)], t[1], t[NR] }'
rm -rf "$dir/state"
start --listen 127.0.0.1:0
up
url=$(sed -n 's/^listening on //p' "$dir/out")
nice -n "${TW_NICE:-0}" "$TW_BUILD/bench/serve" "$url" $PID "${TW_SNAPSHOTS:-400}" "${TW_RUNS:-9}"
