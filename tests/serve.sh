# serve.sh - for scripts that need a server; source it after lib.sh.
#
# serve_start OPTION..: starts tw-serve -m tiny on a free port and waits until it says where; URL is
# then its address, PID its process. It ends with the case. serve_stop [SIGNAL]: ends it (TERM) and
# leaves its status in STATUS. ask 'PYTHON': runs a script that has the functions of serve_client.py.
serve_start()
{
    : >serve.out
    TMPDIR=${SERVE_TMP:-$PWD} tw-serve -m "${SERVE_MODEL:-tiny}" --listen "${SERVE_LISTEN:-127.0.0.1:0}" "$@" >serve.out 2>>serve.err &
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

# tenants A B: Python for ask. Eight tenants, one after the other and then at once, train five steps of a sequence of
# A tokens (more for later ones) and one of B (fewer); their last answers are in alone and merged.
tenants()
{
    cat <<PY
def train(name, out, i):
    kw = {"key": "tml-" + name}
    m = create(session(**kw), rank=1 + i, **kw)
    for s in range(5):
        a = fb(m, 3 * s + 1, [(i * 37 + s * 11 + k * k) % 1500 + 3 for k in range($1 + i)], **kw)
        b = fb(m, 3 * s + 2, [(i * 31 + s * 7 + k) % 1500 + 3 for k in range($2 - i)], **kw)
        c = step(m, 3 * s + 3, 1e-2, **kw)
    out[i] = [wait(r, **kw) for r in (a, b, c)]
alone, merged = [None] * 8, [None] * 8
for i in range(8):
    train("solo%d" % i, alone, i)
t = [threading.Thread(target=train, args=("all%d" % i, merged, i)) for i in range(8)]
[x.start() for x in t]; [x.join() for x in t]
PY
}

# ten_steps NEAR OPTION..: twenty records, two a step, by tw-train into run and by a server, with the same OPTIONs,
# into a checkpoint under st; losses and norms are NEAR of each other (0: the same, losses but for their last digits).
# Clients send all tokens but the last, which tw-train passes too; with last=1 they send it, so that both make products
# of as many rows.
ten_steps()
{
    near_=$1
    shift
    command -v python3 >/dev/null || test_skip 'no python3'
    python3 -c "
import json
for i in range(20):
    t = [(i * 31 + k * 7 + k * k) % 1500 + 3 for k in range(5 + i * 37 % 170)]
    print(json.dumps({\"tokens\": t, \"weights\": [0.0] + [[1.0, 0.5, 0.0, -0.25][k % 4] for k in range(1, len(t))]}))
" >data.jsonl
    tw-train -m tiny -o run --lora r=8,alpha=32 --seed 42 --batch 2 --shuffle off --loss-scale sum \
        --optimizer adamw,beta1=0.9,beta2=0.95,eps=1e-12 --weight-decay 0.01 --clip 0.5 --lr 1e-3 --steps 10 \
        "$@" data.jsonl
    serve_start --state st "$@"
    ask "
m, rows = create(session(), rank=8), [json.loads(l) for l in open(\"data.jsonl\")]
def one(r):
    n, more = len(r[\"tokens\"]) - 1 + ${last:-0}, ${last:-0}
    d = datum(r[\"tokens\"][:n], r[\"weights\"][1:] + more * [0.0])
    d[\"loss_fn_inputs\"][\"target_tokens\"][\"data\"] = r[\"tokens\"][1:] + more * [0]
    return d
losses = []
for s in range(10):
    f = post(\"forward_backward\", {\"forward_backward_input\": {\"loss_fn\": \"cross_entropy\", \"data\": [one(r) for r in rows[2 * s:2 * s + 2]]}, \"model_id\": m, \"seq_id\": 2 * s + 1})
    o = post(\"optim_step\", {\"adam_params\": {\"learning_rate\": 1e-3, \"beta1\": 0.9, \"beta2\": 0.95, \"eps\": 1e-12, \"weight_decay\": 0.01, \"grad_clip_norm\": 0.5}, \"model_id\": m, \"seq_id\": 2 * s + 2})
    losses.append((wait(f[\"request_id\"])[\"metrics\"][\"loss:sum\"], wait(o[\"request_id\"])[\"metrics\"][\"grad_norm\"]))
wait(save(m, 21, \"ck\"))
for l in open(\"run/metrics.jsonl\"):
    r = json.loads(l)
    if r[\"event\"] == \"step\":
        got = losses[r[\"step\"] - 1]
        assert abs(got[0] - r[\"loss\"]) <= $near_ * abs(r[\"loss\"]) + 1e-9 and abs(got[1] - r[\"grad_norm\"]) <= $near_ * r[\"grad_norm\"], (r, got)
"
    serve_stop
}
