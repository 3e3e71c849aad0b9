#!/bin/sh
# t7535-serve-embed.sh - embeddings through Twinkle's native API: InfonceLoss, task "embedding", EmbeddingMetric
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

native()
{
    ask "import math, threading
from native_client import *
def row(ids, begins=None):
    f = {\"input_ids\": list(ids), \"attention_mask\": [1] * len(ids), \"position_ids\": list(range(len(ids)))}
    return f if begins is None else dict(f, labels=[int(begins)])
def side(n, seed):
    return [(seed * 31 + k * 7 + k * k) % 1500 + 3 for k in range(n)]
def groups(sizes):
    return [row(side(n, 9 * g + i), i == 0) for g, ns in enumerate(sizes) for i, n in enumerate(ns)]
dot = lambda a, b: sum(x * y for x, y in zip(a, b))
$1"
}
test_case 'five steps are those of tw-train: the same bytes, in one pass and in many' '
	command -v python3 >/dev/null || test_skip "no python3"
	python3 -c "
import json
for i in range(10):
    side = lambda k: {\"tokens\": [(i * 31 + k * 17 + j * 7 + j * j) % 1500 + 3 for j in range(3 + (i * 5 + k * 11) % 19 + 500 * (i == 8))]}
    print(json.dumps({\"anchor\": side(0), \"positive\": side(1), \"negatives\": [side(2 + k) for k in range(i % 3 + 3 * (i == 8))]}))
" >data.jsonl
	loss=temperature=0.07,include_qq=on,include_dd=on,mask_fake_negative=on,fake_neg_margin=0.2
	tw-train -m tiny -o run --lora r=8,alpha=32 --seed 42 --batch 2 --shuffle off --loss infonce,$loss --micro-tokens 64 \
	    --optimizer adamw,beta1=0.9,beta2=0.95,eps=1e-12 --weight-decay 0.02 --clip 1 --lr 1e-3 --steps 5 --device cpu \
	    --dtype f32 data.jsonl
	serve_start --state st
	native "
recs = [json.loads(l) for l in open(\"data.jsonl\")]
rows = [[row(s[\"tokens\"], not i) for i, s in enumerate([r[\"anchor\"], r[\"positive\"]] + r[\"negatives\"])] for r in recs]
a = Native().adapter(\"a\", rank=8, alpha=32)
a.adamw(1e-3, betas=[0.9, 0.95], eps=1e-12, weight_decay=0.02)
a.ok(\"set_processor\", processor_cls=\"InputProcessor\")
a.ok(\"set_loss\", loss_cls=\"InfonceLoss\", temperature=0.07, use_batch=True, hard_negatives=None, mask_fake_negative=True,
     fake_neg_margin=0.2, include_qq=True, include_dd=True)
a.ok(\"add_metric\", metric_cls=\"EmbeddingMetric\", is_training=True)
steps = [r for r in map(json.loads, open(\"run/metrics.jsonl\")) if r[\"event\"] == \"step\"]
for s in range(5):
    o = a.fb(rows[2 * s] + rows[2 * s + 1], task=\"embedding\")
    assert o[\"loss\"] == steps[s][\"loss\"] and o[\"num_tokens\"] == 0 and o[\"logits\"] is None and \"logps\" not in o, (s, o[\"loss\"])
    assert a.ok(\"clip_grad_and_step\") is None
    m = a.metric(is_training=True)
    for key, digits in ((\"pos_sim\", 4), (\"pos_sim_min\", 4), (\"pos_sim_max\", 4), (\"neg_sim\", 4), (\"loss\", 4), (\"grad_norm\", 6)):
        assert m[key] == \"%.*f\" % (digits, steps[s][key]), (s, key, m, steps[s])
open(\"dir\", \"w\").write(a.ok(\"save\", name=\"ck\", save_optimizer=True)[\"checkpoint_dir\"])
"
	cmp run/latest/adapter_model.safetensors "$(cat dir)/adapter_model.safetensors"
	cmp run/latest/trainer/optimizer.safetensors "$(cat dir)/trainer/optimizer.safetensors"
'
test_case 'embeddings come out: of length 1, with and without the adapter, from features and from trajectories' '
	serve_start --state st
	native "
a = Native().adapter()
a.ok(\"set_optimizer\", optimizer_cls=\"Adam\", lr=1e-2)
a.ok(\"set_template\", template_cls=\"Template\", max_length=512)
a.ok(\"set_loss\", loss_cls=\"InfonceLoss\")
a.ok(\"add_metric\", metric_cls=\"EmbeddingMetric\")
rows = groups([[4, 7], [5, 3, 6]])
one = a.ok(\"forward_only\", inputs=rows, task=\"embedding\")[\"result\"]
e = one[\"embeddings\"]
assert len(e) == 5 and len(e[0]) == 256 and all(abs(dot(x, x) - 1) < 1e-5 for x in e)
assert \"loss\" not in one and one[\"num_tokens\"] == 0
m = a.metric(is_training=False)
assert abs(float(m[\"pos_sim\"]) - (dot(e[0], e[1]) + dot(e[2], e[3])) / 2) < 1e-4, m
assert abs(float(m[\"neg_sim\"]) - (dot(e[0], e[3]) + dot(e[2], e[1])) / 2) < 1e-4, m
bare = a.ok(\"forward_only\", inputs=[row(r[\"input_ids\"]) for r in rows], task=\"embedding\")[\"result\"][\"embeddings\"]
assert bare == e
assert \"pos_sim\" not in a.metric(is_training=False)
batch = {\"input_ids\": [[0] * (7 - len(r[\"input_ids\"])) + r[\"input_ids\"] for r in rows], \"labels\": [1, 0, 1, 0, 0],
         \"attention_mask\": [[0] * (7 - len(r[\"input_ids\"])) + r[\"attention_mask\"] for r in rows]}
assert a.ok(\"forward_only\", inputs=batch, task=\"embedding\")[\"result\"][\"embeddings\"] == e
packed = {\"input_ids\": sum((r[\"input_ids\"] for r in rows), []), \"position_ids\": sum((r[\"position_ids\"] for r in rows), []),
          \"labels\": [1, 0, 1, 0, 0]}
assert a.ok(\"forward_only\", inputs=[packed], task=\"embedding\")[\"result\"][\"embeddings\"] == e
t = a.ok(\"forward_only\", inputs=[chat(\"Who are you?\"), chat(\"Who are you?\", \"A model.\")], task=\"embedding\")[\"result\"][\"embeddings\"]
assert len(t) == 2 and t[0] != t[1]
said = [dict(chat(\"Who are you?\"), labels=[1]), dict(chat(\"Who are you?\", \"A model.\"), labels=[0])]
out = a.fb(said, task=\"embedding\")
assert out[\"embeddings\"] == t and out[\"loss\"] == 0     # a group alone has no negatives
a.ok(\"zero_grad\")
plain = a.ok(\"forward_only\", inputs=rows, task=\"embedding\", disable_lora=True)[\"result\"][\"embeddings\"]
assert plain == e                                       # B is 0
before = a.fb(batch, task=\"embedding\")[\"loss\"]
for _ in range(4):
    a.ok(\"clip_grad_and_step\")
    after = a.fb([packed], task=\"embedding\")[\"loss\"]
assert after < before / 2, (before, after)
assert a.ok(\"forward_only\", inputs=rows, task=\"embedding\")[\"result\"][\"embeddings\"] != e
assert a.ok(\"forward_only\", inputs=rows, task=\"embedding\", disable_lora=True)[\"result\"][\"embeddings\"] == e
logps = a.ok(\"forward_only\", inputs=[feature([5, 6, 7])])[\"result\"][\"logps\"]       # and without task it is as ever
assert len(logps[0]) == 3
"
'
test_case 'forward, calculate_loss and backward are forward_backward in parts; tenants beside it keep their bits' '
	serve_start --state st
	native "

rows = groups([[4, 7, 3], [5, 3, 6], [2, 2, 9]])
texts = [feature(side(20 + i, i), 2) for i in range(4)]
def setup(key, name, cls, **kw):
    a = Native(key=key).adapter(name)
    a.ok(\"set_optimizer\", optimizer_cls=\"SGD\", lr=0.1, weight_decay=0)
    a.ok(\"set_loss\", loss_cls=cls, **kw)
    return a
def whole(a, n=6):
    for _ in range(n):
        a.fb(rows, task=\"embedding\")
        a.ok(\"clip_grad_and_step\")
    return a.ok(\"get_state_dict\")[\"result\"]
def words(a, n=12):
    for _ in range(n):
        a.fb(texts)
        a.ok(\"clip_grad_and_step\")
    return a.ok(\"get_state_dict\")[\"result\"]
want = whole(setup(\"tml-a\", \"w\", \"InfonceLoss\", hard_negatives=1))
plain = words(setup(\"tml-a\", \"x\", \"CrossEntropyLoss\"))
got = {}
def put(k, f, a):
    got[k] = f(a)
jobs = [threading.Thread(target=put, args=(\"e%d\" % i, whole, setup(\"tml-%d\" % i, \"a\", \"InfonceLoss\", hard_negatives=1))) for i in range(2)]
jobs += [threading.Thread(target=put, args=(\"w%d\" % i, words, setup(\"tml-b%d\" % i, \"a\", \"CrossEntropyLoss\"))) for i in range(2)]
for t in jobs: t.start()
for t in jobs: t.join()
assert got[\"e0\"] == got[\"e1\"] == want and got[\"w0\"] == got[\"w1\"] == plain
a = setup(\"tml-a\", \"p\", \"InfonceLoss\", hard_negatives=1)
for _ in range(6):
    out = a.ok(\"forward\", inputs=rows, task=\"embedding\")[\"result\"]
    loss = a.ok(\"calculate_loss\")[\"result\"]
    assert a.ok(\"backward\") is None
    a.ok(\"clip_grad_norm\")
    for verb in (\"step\", \"zero_grad\", \"lr_step\"):
        a.ok(verb)
    assert len(out[\"embeddings\"]) == 9 and math.isfinite(loss)
d = a.ok(\"get_state_dict\")[\"result\"]
diff = max(abs(x - y) for k in want for p, q in zip(want[k], d[k]) for x, y in zip(p, q))
assert diff < 1e-6, diff
"
'
test_case 'what cannot be is refused by name, and changes nothing' '
	serve_start --state st
	native "
a = Native().adapter()
a.ok(\"set_optimizer\", optimizer_cls=\"SGD\", lr=0.1)
rows = groups([[4, 7], [5, 3]])
has = lambda text, *p: all(x in text for x in p) or sys.exit(text)
has(a.no(\"forward_backward\", inputs=rows, task=\"embedding\"), \"InfonceLoss\")
has(a.no(\"forward_backward\", inputs=rows, task=\"rerank\"), \"causal_lm and embedding\")
has(a.no(\"set_loss\", loss_cls=\"InfonceLoss\", temperature=-1), \"temperature\")
has(a.no(\"set_loss\", loss_cls=\"InfonceLoss\", use_batch=False, include_dd=True), \"include_dd\")
has(a.no(\"set_loss\", loss_cls=\"InfonceLoss\", process_group=\"x\"), \"process_group\")
has(a.no(\"set_loss\", loss_cls=\"InfoLoss\"), \"InfonceLoss\")
has(a.no(\"add_metric\", metric_cls=\"XMetric\"), \"EmbeddingMetric\")
a.ok(\"set_loss\", loss_cls=\"InfonceLoss\", fake_neg_margin=0.1)
has(a.no(\"forward_backward\", inputs=[feature([5, 6, 7])]), \"task\")
bad = lambda rows: a.no(\"forward_backward\", inputs=rows, task=\"embedding\")
has(bad([dict(r, labels=[0]) for r in rows]), \"labels, one for each sequence\")
has(bad([dict(r, labels=[2]) for r in rows]), \"labels, one for each sequence\")
has(bad([row(r[\"input_ids\"]) for r in rows]), \"labels, one for each sequence\")
has(bad([feature([5, 6, 7])]), \"labels, one for each sequence\")
has(bad(rows[:3]), \"inputs[2]\", \"no positive\")
has(bad([rows[0]] + rows), \"inputs[0]\", \"no positive\")
has(bad([row([5, 99999], True), rows[1]]), \"not a token\")
a.ok(\"set_template\", template_cls=\"Template\", use_chat_template=False)
has(bad([dict(chat(\"\"), labels=[1]), dict(chat(\"x y\"), labels=[0])]), \"nothing to embed\")
a.ok(\"set_loss\", loss_cls=\"infonce\", hard_negatives=2)
has(bad(rows), \"inputs[1]\", \"hard_negatives\")
a.ok(\"set_loss\", loss_cls=\"infonce\")
a.ok(\"forward_only\", inputs=rows, task=\"embedding\")
has(a.no(\"backward\"), \"forward\")
w = a.ok(\"get_state_dict\")[\"result\"]
assert max(abs(x) for k in w if \"lora_B\" in k for r in w[k] for x in r) == 0
"
'
test_case 'sums for the metric and the gradient that waits survive a restart' '
	serve_start --state st
	native "
a = Native().adapter()
a.ok(\"set_optimizer\", optimizer_cls=\"SGD\", lr=0.1)
a.ok(\"set_loss\", loss_cls=\"InfonceLoss\")
a.ok(\"add_metric\", metric_cls=\"EmbeddingMetric\")
a.fb(groups([[4, 7], [5, 3]]), task=\"embedding\")
a.ok(\"clip_grad_and_step\")
a.fb(groups([[4, 7], [5, 3]]), task=\"embedding\")
open(\"sid\", \"w\").write(a.c.sid)
"
	serve_stop
	serve_start --state st
	native "
c = Native()
c.sid = open(\"sid\").read()
a = Adapter(c, \"a\")
a.ok(\"clip_grad_and_step\")
m = a.metric()
b = c.adapter(\"b\")
b.ok(\"set_optimizer\", optimizer_cls=\"SGD\", lr=0.1)
b.ok(\"set_loss\", loss_cls=\"InfonceLoss\")
b.ok(\"add_metric\", metric_cls=\"EmbeddingMetric\")
for _ in range(2):
    b.fb(groups([[4, 7], [5, 3]]), task=\"embedding\")
    b.ok(\"clip_grad_and_step\")
n = b.metric()
assert all(m[k] == n[k] for k in (\"pos_sim\", \"pos_sim_min\", \"pos_sim_max\", \"neg_sim\", \"loss\", \"grad_norm\")), (m, n)
assert a.ok(\"get_state_dict\") == b.ok(\"get_state_dict\")
"
'
test_done
