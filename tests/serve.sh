# serve.sh - for scripts that need a server; source it after lib.sh.
#
# serve_start OPTION..: starts tw-serve -m tiny on a free port and waits until it says where; URL is
# then its address, PID its process. It ends with the case. serve_stop [SIGNAL]: ends it (TERM) and
# leaves its status in STATUS. ask 'PYTHON': runs a script that has the functions of serve_client.py.
serve_start()
{
    : >serve.out
    tw-serve -m "${SERVE_MODEL:-tiny}" --listen "${SERVE_LISTEN:-127.0.0.1:0}" "$@" >serve.out 2>>serve.err &
    PID=$!
    trap 'kill -9 $PID 2>/dev/null || :' EXIT
    for i_ in $(seq 2400); do
        [ ! -s serve.out ] || break
        kill -0 $PID 2>/dev/null || break
        sleep 0.05
    done
    URL=$(sed -n 's/^listening on //p' serve.out)
    export URL PID
    [ -n "$URL" ] || { cat serve.err; return 1; }
}
serve_stop()
{
    kill "-${1:-TERM}" $PID
    STATUS=0
    wait $PID || STATUS=$?
}
ask()
{
    command -v python3 >/dev/null || test_skip 'no python3'
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$TOP/tests" timeout --foreground "${ASK_S:-600}" python3 -c "from serve_client import *
$1"
}
