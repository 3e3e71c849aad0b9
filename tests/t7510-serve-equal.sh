#!/bin/sh
# The server's arithmetic is that of tw-train, to the last bit on a CPU, whoever else is served.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

test_case 'ten steps are those of tw-train: the same bytes' '
	command -v python3 >/dev/null || test_skip "no python3"
	python3 -c "
import json
for i in range(20):
    t = [(i * 31 + k * 7 + k * k) % 1500 + 3 for k in range(5 + i * 3 % 17)]
    print(json.dumps({\"tokens\": t, \"weights\": [0.0] + [[1.0, 0.5, 0.0, -0.25][k % 4] for k in range(1, len(t))]}))
" >data.jsonl
	tw-train -m tiny -o run --lora r=8,alpha=32 --seed 42 --batch 2 --shuffle off --loss-scale sum \
	    --optimizer adamw,beta1=0.9,beta2=0.95,eps=1e-12 --weight-decay 0.01 --clip 0.5 --lr 1e-3 --steps 10 \
	    --device cpu --dtype f32 data.jsonl
	serve_start --state st
	ask "
m, rows = create(session(), rank=8), [json.loads(l) for l in open(\"data.jsonl\")]
def one(r):
    d = datum(r[\"tokens\"][:-1], r[\"weights\"][1:])
    d[\"loss_fn_inputs\"][\"target_tokens\"][\"data\"] = r[\"tokens\"][1:]
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
        assert abs(got[0] - r[\"loss\"]) < 1e-9 and got[1] == r[\"grad_norm\"], (r, got)
"
	serve_stop
	cmp run/latest/adapter_model.safetensors st/checkpoints/*/adapter_model.safetensors
	cmp run/latest/trainer/optimizer.safetensors st/checkpoints/*/trainer/optimizer.safetensors
'
test_case 'eight tenants at once, three of them in memory: each gets what it gets alone' '
	serve_start --state st --max-adapters 3
	ask "
def train(name, out, i):
    key = \"tml-\" + name
    kw = {\"key\": key}
    m = create(session(**kw), rank=1 + i, **kw)
    for s in range(5):
        a = fb(m, 3 * s + 1, [(i * 37 + s * 11 + k * k) % 1500 + 3 for k in range(4 + i)], **kw)
        b = fb(m, 3 * s + 2, [(i * 31 + s * 7 + k) % 1500 + 3 for k in range(9 - i)], **kw)
        c = step(m, 3 * s + 3, 1e-2, **kw)
    out[i] = [wait(r, **kw) for r in (a, b, c)]
alone, merged = [None] * 8, [None] * 8
for i in range(8):
    train(\"solo%d\" % i, alone, i)
t = [threading.Thread(target=train, args=(\"all%d\" % i, merged, i)) for i in range(8)]
[x.start() for x in t]; [x.join() for x in t]
assert alone == merged and all(\"loss_fn_outputs\" in a[0] for a in alone), (alone, merged)
"
'
test_case 'a custom loss in the client, as forward_backward_custom does it, is the loss of the server to the last bit' '
	serve_start --state st
	ask "
f32 = lambda x: struct.unpack(\"<f\", struct.pack(\"<f\", x))[0]
T = [[(i * 31 + k * 7 + k * k) % 1500 + 3 for k in range(6 + 5 * i)] for i in range(3)]
vec = lambda v, t: {\"data\": v, \"dtype\": t, \"shape\": [len(v)]}
def data(**kw):
    return [{\"model_input\": {\"chunks\": [{\"tokens\": t[:-1], \"type\": \"encoded_text\"}]}, \"loss_fn_inputs\": dict(
        {\"target_tokens\": vec(t[1:], \"int64\")}, **{k: vec(v[i], \"float32\") for k, v in kw.items()})} for i, t in enumerate(T)]
def run(m, seq, loss, d, only=None):
    # 0.25 and later say forward_only, older ones have a route of their own
    body = {\"loss_fn\": loss, \"data\": d}
    if only == \"route\":
        return wait(post(\"forward\", {\"forward_input\": body, \"model_id\": m, \"seq_id\": seq})[\"request_id\"])
    return wait(post(\"forward_backward\", {\"forward_backward_input\": body, \"model_id\": m, \"seq_id\": seq, \"forward_only\": bool(only)})[\"request_id\"])
lps = lambda r: [[f32(x) for x in o[\"logprobs\"][\"data\"]] for o in r[\"loss_fn_outputs\"]]
old = [[f32(-5 - k % 3 * 0.3) for k in range(len(t) - 1)] for t in T]
adv = [[f32([0.5, -1.25, 0.0][k % 3]) for k in range(len(t) - 1)] for t in T]
zero = [[0.0] * len(a) for a in adv]
a, b = create(session()), create(session())
for s in range(3):
    lp = lps(run(a, 4 * s + 1, \"cross_entropy\", data(weights=adv), \"flag\"))   # no gradient comes of it
    assert lps(run(a, 4 * s + 2, \"cross_entropy\", data(weights=zero), \"route\")) == lp
    # L = -(p A - beta / 2 (p - q)^2): dL/dp = -(A - beta (p - q)), and the weights are -dL/dp
    w = [[f32(A - 0.05 * (p - q)) for p, q, A in zip(*x)] for x in zip(lp, old, adv)]
    r = run(a, 4 * s + 3, \"cross_entropy\", data(weights=w))
    assert lps(r) == lp and \"loss:sum\" in r[\"metrics\"]
    assert lps(run(b, 2 * s + 1, \"dro\", data(logprobs=old, advantages=adv))) == lp
    assert wait(step(a, 4 * s + 4, 1e-2)) == wait(step(b, 2 * s + 2, 1e-2))
wait(save(a, 13, \"ck\")); wait(save(b, 7, \"ck\"))
"
	cmp st/checkpoints/*/adapter_model.safetensors
'
test_done
