#!/bin/sh
# The server's arithmetic is that of tw-train, to the last bit on a CPU, whoever else is served.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

test_case 'ten steps are those of tw-train: the same bytes' '
	ten_steps 0 --device cpu --dtype f32
	cmp run/latest/adapter_model.safetensors st/checkpoints/*/adapter_model.safetensors
	cmp run/latest/trainer/optimizer.safetensors st/checkpoints/*/trainer/optimizer.safetensors
'
test_case 'eight tenants at once, three of them in memory: each gets what it gets alone' '
	serve_start --state st --max-adapters 3
	ask "$(tenants 4 9)
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
