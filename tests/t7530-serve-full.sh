#!/bin/sh
# One tenant trains all weights, on a copy of its own; the base that the others train on does not move.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

FULL='
def full(sid, n=0, **kw):
    r = post("create_model", {"session_id": sid, "model_seq_id": n, "base_model": "tiny", "type": "create_model", "lora_config": None}, **kw)
    return wait(r["request_id"], **kw)
def send(m, seq, tokens, weights, **kw):
    d = datum(tokens[:-1], weights[1:])
    d["loss_fn_inputs"]["target_tokens"]["data"] = tokens[1:]
    return d
def optim(m, seq, **kw):
    return post("optim_step", {"adam_params": {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.01, "grad_clip_norm": 0.5}, "model_id": m, "seq_id": seq}, **kw)["request_id"]
rows = [[(i * 31 + k * 7 + k * k) % 1500 + 3 for k in range(5 + i * 3 % 17)] for i in range(12)]
weights = lambda t: [0.0] + [[1.0, 0.5, 0.0, -0.25][k % 4] for k in range(1, len(t))]
def both(m, seq, i, **kw):
    data = [send(m, seq, t, weights(t)) for t in rows[2 * i:2 * i + 2]]
    return post("forward_backward", {"forward_backward_input": {"loss_fn": "cross_entropy", "data": data}, "model_id": m, "seq_id": seq}, **kw)["request_id"]
'
export FULL

test_case 'without --full it is refused, and says by what it would not be' '
	serve_start
	ask "exec(os.environ[\"FULL\"])
r = full(session())
assert r[\"category\"] == \"user\" and \"--full\" in r[\"error\"], r
"
'
test_case 'six steps are those of tw-train, through kill -9, beside a tenant with an adapter' '
	command -v python3 >/dev/null || test_skip "no python3"
	python3 -c "
import json, os
exec(os.environ[\"FULL\"])
for t in rows:
    print(json.dumps({\"tokens\": t, \"weights\": weights(t)}))
" >data.jsonl
	tw-train -m tiny -o run --seed 42 --batch 2 --shuffle off --loss-scale sum --optimizer adamw,beta1=0.9,beta2=0.95,eps=1e-12 \
	    --weight-decay 0.01 --clip 0.5 --lr 1e-3 --steps 6 --device cpu --dtype f32 data.jsonl
	serve_start --state alone
	ask "
m = create(session())
ids = [(fb(m, 2 * i + 1, [i + 1, 2, 3, 4]), step(m, 2 * i + 2, 1e-2)) for i in range(4)]
[wait(r) for p in ids for r in p]
assert \"path\" in wait(save(m, 9, \"ck\"))
"
	serve_stop
	serve_start --state st --full --snapshot-every 2
	ask "exec(os.environ[\"FULL\"])
import pickle
sid = session(); r = full(sid); m = r[\"model_id\"]
assert post(\"get_info\", {\"model_id\": m, \"type\": \"get_info\"})[\"is_lora\"] is False
r = full(session(key=\"tml-b\"), key=\"tml-b\")
assert r[\"category\"] == \"user\" and \"one model at a time\" in r[\"error\"], r
l = create(session())
for i in range(4):
    fb(l, 2 * i + 1, [i + 1, 2, 3, 4]); a = both(m, 2 * i + 1, i)
    step(l, 2 * i + 2, 1e-2); b = optim(m, 2 * i + 2)
wait(a); wait(b)
pickle.dump((m, l), open(\"ids\", \"wb\"))
"
	serve_stop KILL
	serve_start --state st --full --snapshot-every 2
	ask "exec(os.environ[\"FULL\"])
import pickle
m, l = pickle.load(open(\"ids\", \"rb\"))
for i in (4, 5):
    both(m, 2 * i + 1, i); optim(m, 2 * i + 2)
assert \"path\" in wait(save(m, 13, \"ck\"))
assert \"path\" in wait(save(l, 9, \"ck\"))
"
	serve_stop
	full=$(dirname st/checkpoints/*/config.json) lora=$(dirname st/checkpoints/*/adapter_model.safetensors)
	cmp run/latest/model.safetensors $full/model.safetensors
	cmp run/latest/trainer/optimizer.safetensors $full/trainer/optimizer.safetensors
	cmp alone/checkpoints/*/adapter_model.safetensors $lora/adapter_model.safetensors
	echo "{\"prompt\": \"Who are you?\"}" | tw-sample -m $full --temperature 0 --max-tokens 4 >out
	test_text out completion
'
test_case 'it is sampled from, loaded, gone on with, and let go for another' '
	serve_start --state st --full
	ask "exec(os.environ[\"FULL\"])
def seqs(sm, n, **kw):
    return [q[\"tokens\"] + q[\"logprobs\"] for q in wait(sample(sm, n, tokens=8, n=3, **kw)[\"request_id\"])[\"sequences\"]]
sid = session(); m = full(sid)[\"model_id\"]
base = post(\"create_sampling_session\", {\"session_id\": sid, \"sampling_session_seq_id\": 50, \"base_model\": \"tiny\"})[\"sampling_session_id\"]
first = seqs(base, 0)
s0 = sampler(m, 1, 0)
assert seqs(s0, 0) == first             # not trained yet: the base
both(m, 2, 0); optim(m, 3)
s1 = sampler(m, 4, 1)
assert \"path\" in wait(save(m, 5, \"a\"))
one = seqs(s1, 0)
assert one != first and seqs(s0, 1) == first and seqs(base, 1) == first
both(m, 6, 1); optim(m, 7)
assert seqs(s1, 1) == one
at = wait(both(m, 8, 2))[\"metrics\"][\"loss:sum\"]
# at once: two whole models and the base
ids = [sample(s, 10 + i, tokens=8, n=3)[\"request_id\"] for i in range(4) for s in (s0, s1, base)]
got = [[q[\"tokens\"] + q[\"logprobs\"] for q in wait(r)[\"sequences\"]] for r in ids]
assert got == [first, one, first] * 4
r = wait(post(\"load_weights\", {\"model_id\": m, \"path\": \"tinker://%s/weights/a\" % m, \"optimizer\": True, \"seq_id\": 9})[\"request_id\"])
assert r[\"type\"] == \"load_weights\", r
both(m, 10, 1); optim(m, 11)
assert wait(both(m, 12, 2))[\"metrics\"][\"loss:sum\"] == at
l = create(sid, 1)
assert \"path\" in wait(save(l, 1, \"lora\"))
r = wait(post(\"load_weights\", {\"model_id\": m, \"path\": \"tinker://%s/weights/lora\" % l, \"optimizer\": False, \"seq_id\": 13})[\"request_id\"])
assert r[\"category\"] == \"user\" and \"adapter\" in r[\"error\"], r
r = wait(post(\"load_weights\", {\"model_id\": l, \"path\": \"tinker://%s/weights/a\" % m, \"optimizer\": False, \"seq_id\": 2})[\"request_id\"])
assert r[\"category\"] == \"user\" and \"whole model\" in r[\"error\"], r
wait(post(\"unload_model\", {\"model_id\": m, \"type\": \"unload_model\"})[\"request_id\"])
# from its checkpoint, by another model
r = wait(post(\"load_weights\", {\"session_id\": sid, \"model_seq_id\": 2, \"path\": \"tinker://%s/weights/a\" % m, \"optimizer\": True})[\"request_id\"])
n = \"%s:train:2\" % sid
assert r == {\"model_id\": n, \"type\": \"load_weights\"}, r
both(n, 1, 1); optim(n, 2)
assert wait(both(n, 3, 2))[\"metrics\"][\"loss:sum\"] == at
assert seqs(s1, 2) == one
"
'
test_done
