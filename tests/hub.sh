# hub.sh - for scripts that need the hub on loopback, tests/hub_server.py; source it after lib.sh.
#
# hub_start: starts it on the folder hub/ of the case and points both endpoints at it. It ends with
# the case. hub_file PATH SIZE: makes a file. behave JSON: how it misbehaves from now on.
# hub_count TEXT: how many requests so far hold TEXT in their line of the log.
hub_start()
{
    command -v python3 >/dev/null || test_skip 'no python3'
    mkdir -p hub/web
    : >>hub/log
    python3 "$TOP/tests/hub_server.py" hub 2>hub.err &
    until [ -f hub/port ]; do
        kill -0 $! || { cat hub.err; return 1; }
        sleep 0.05
    done
    HUB=$(cat hub/port) CDN=$(cat hub/cdn)
    export HF_ENDPOINT="$HUB" MODELSCOPE_ENDPOINT="$HUB" TW_CACHE="$PWD/cache"
}
hub_file()
{
    mkdir -p "hub/$(dirname "$1")"
    seq 1 10000000 | head -c "$2" >"hub/$1"
}
behave()
{
    echo "$1" >hub/behave.tmp
    mv hub/behave.tmp hub/behave.json
}
hub_count()
{
    grep -cF -e "$1" hub/log || true
}
