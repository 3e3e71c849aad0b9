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

equal()
{
	gpu
	ten_steps 1e-3 --device cuda --dtype "$1"
	near run/latest/adapter_model.safetensors st/checkpoints/*/adapter_model.safetensors
}
test_case 'ten steps of as many tokens are those of tw-train, in bf16' 'last=1 equal bf16'
test_case 'ten steps are those of tw-train, in f32' 'equal f32'

test_case 'eight tenants at once, three of them in memory: each gets what it gets alone' '
	gpu
	serve_start --state st --device cuda --max-adapters 3
	ask "$(tenants 40 90)
for x, y in zip(alone, merged):
    for p, q in ((u[\"metrics\"], v[\"metrics\"]) for u, v in zip(x, y)):
        for k in (\"loss:sum\", \"grad_norm\"):
            assert k not in p or abs(p[k] - q[k]) <= 1e-3 * abs(p[k]), (k, p, q)
"
'
test_done
