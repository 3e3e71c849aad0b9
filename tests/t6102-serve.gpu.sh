#!/bin/sh
# The server on a GPU: ten steps through it are those of tw-train there, and of tenants in one batch each gets
# what it gets alone, within 1e-3 of the norm of each tensor.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

gpu()
{
	command -v python3 >/dev/null || test_skip 'no python3'
	awk -f "$TOP/examples/sums.awk" -v n=4 -v as=chat >sums.jsonl
	tw-train -m tiny --lora r=2 --device cuda --plan sums.jsonl >/dev/null 2>err || test_skip "$(cat err)"
}

# near A B: adapters of the same tensors, near each other.
near()
{
	python3 - "$1" "$2" <<-'PY'
	import array, json, math, struct, sys
	def read(path):
	    raw = open(path, "rb").read()
	    n = struct.unpack("<Q", raw[:8])[0]
	    head = {k: v for k, v in json.loads(raw[8:8 + n]).items() if k != "__metadata__"}
	    assert all(v["dtype"] == "F32" for v in head.values())
	    return {k: array.array("f", raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}
	a, b = read(sys.argv[1]), read(sys.argv[2])
	assert a.keys() == b.keys() and a
	worst = max((math.dist(a[k], b[k]) / (math.hypot(*b[k]) or 1), k) for k in b)
	print("apart by", *worst)
	assert worst[0] <= 1e-3 and any(map(any, a.values()))
	PY
}

# equal DTYPE: twenty records, two a step.
equal()
{
	gpu
	python3 -c "
import json
for i in range(20):
    t = [(i * 31 + k * 7 + k * k) % 1500 + 3 for k in range(40 + i * 37 % 170)]
    print(json.dumps({\"tokens\": t, \"weights\": [0.0] + [[1.0, 0.5, 0.0, -0.25][k % 4] for k in range(1, len(t))]}))
" >data.jsonl
	tw-train -m tiny -o run --lora r=8,alpha=32 --seed 42 --batch 2 --shuffle off --loss-scale sum \
	    --optimizer adamw,beta1=0.9,beta2=0.95,eps=1e-12 --weight-decay 0.01 --clip 0.5 --lr 1e-3 --steps 10 \
	    --device cuda --dtype "$1" data.jsonl
	serve_start --state st --device cuda --dtype "$1"
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
        assert abs(got[0] - r[\"loss\"]) <= 1e-3 * abs(r[\"loss\"]) and abs(got[1] - r[\"grad_norm\"]) <= 1e-3 * r[\"grad_norm\"], (r, got)
"
	serve_stop
	near run/latest/adapter_model.safetensors st/checkpoints/*/adapter_model.safetensors
}
test_case 'ten steps are those of tw-train, in bf16' 'equal bf16'
test_case 'ten steps are those of tw-train, in f32' 'equal f32'

test_case 'eight tenants at once, three of them in memory: each gets what it gets alone' '
	gpu
	serve_start --state st --device cuda --max-adapters 3
	ask "
def train(name, out, i):
    key = \"tml-\" + name
    kw = {\"key\": key}
    m = create(session(**kw), rank=1 + i, **kw)
    for s in range(5):
        a = fb(m, 3 * s + 1, [(i * 37 + s * 11 + k * k) % 1500 + 3 for k in range(40 + i)], **kw)
        b = fb(m, 3 * s + 2, [(i * 31 + s * 7 + k) % 1500 + 3 for k in range(90 - i)], **kw)
        c = step(m, 3 * s + 3, 1e-2, **kw)
    out[i] = [wait(r, **kw)[\"metrics\"] for r in (a, b, c)]
alone, merged = [None] * 8, [None] * 8
for i in range(8):
    train(\"solo%d\" % i, alone, i)
t = [threading.Thread(target=train, args=(\"all%d\" % i, merged, i)) for i in range(8)]
[x.start() for x in t]; [x.join() for x in t]
for x, y in zip(alone, merged):
    for p, q in zip(x, y):
        for k in (\"loss:sum\", \"grad_norm\"):
            assert k not in p or abs(p[k] - q[k]) <= 1e-3 * abs(p[k]), (k, p, q)
"
'
test_done
