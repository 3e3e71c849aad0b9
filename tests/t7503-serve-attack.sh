#!/bin/sh
# What hostile and broken clients do: slow ones, floods, malformed and absurd bodies, forged keys.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

test_case 'no route but health does anything without a key' '
	printf "tml-a alice rights=train,sample,admin\n" >keys
	chmod 600 keys
	serve_start --keys keys
	ask "
src = \"\".join(open(os.path.join(os.environ[\"TOP\"], \"lib/serve\", f)).read() for f in os.listdir(os.path.join(os.environ[\"TOP\"], \"lib/serve\")) if f.endswith(\".c\"))
routes = re.findall(r\"\{ \\\"(GET|POST|PUT|DELETE)\\\", \\\"([^\\\"]+)\\\", (\w+),\", src)
assert len(routes) > 45, len(routes)
for method, pattern, right in routes:
    path = \"/\" + pattern.replace(\"*\", \"x\")
    if pattern.endswith(\"healthz\"):
        expect(200, method, path, key=None)
        continue
    for key in (None, \"\", \"tml-b\", \"tml-a \\t\", \"Tml-a\", \"tml-\", \"a\" * 4000):
        r = call(method, path, b\"{}\", key=key)
        assert r.status == 401, (method, path, key, r.status)
    assert call(method, path, b\"{}\", key=\"tml-a\").status != 401 or right == \"0\", path
assert expect(200, \"GET\", \"/api/v1/sessions\", key=\"tml-a\").json[\"sessions\"] != None
"
'
test_case 'numbers, shapes and names out of their ranges are refused; others go on' '
	serve_start --max-model-len 64
	ask "
sid = session(); m = create(sid)
sm = sampler(m, 1, 0)
seq = [1]
good = threading.Event(); bad = []
def neighbour():
    n, k = create(session(key=\"tml-n\"), key=\"tml-n\"), 0
    while not good.is_set():
        k += 2
        fb(n, k - 1, key=\"tml-n\")
        r = wait(step(n, k, key=\"tml-n\"), key=\"tml-n\")
        if \"metrics\" not in r: bad.append(r)
t = threading.Thread(target=neighbour); t.start()
for rank in (0, -1, 10 ** 6, 2 ** 63, 1.5, \"8\", [], None):
    r = call(\"POST\", \"/api/v1/create_model\", {\"session_id\": sid, \"model_seq_id\": 50, \"base_model\": \"tiny\", \"lora_config\": {\"rank\": rank}})
    assert r.status == 400 or (rank is None and r.status == 200), (rank, r.status, r.body)
for n in (-1, \"x\", 2 ** 64, None, 1.5):
    expect(400, \"POST\", \"/api/v1/create_model\", {\"session_id\": sid, \"model_seq_id\": n, \"base_model\": \"tiny\", \"lora_config\": {\"rank\": 2}})
expect(400, \"POST\", \"/api/v1/create_model\", {\"session_id\": sid, \"model_seq_id\": 60, \"base_model\": \"other\", \"lora_config\": {\"rank\": 2}})
def train(change):
    seq[0] += 1
    b = fb_body(m, seq[0])
    change(b[\"forward_backward_input\"][\"data\"][0], b[\"forward_backward_input\"])
    r = call(\"POST\", \"/api/v1/forward_backward\", json.dumps(b))
    if r.status == 200:
        r = wait(r.json[\"request_id\"])
        assert r.get(\"category\") == \"user\", r
    else:
        assert r.status == 400, r.body
        seq[0] -= 1
tok = lambda v: lambda d, f: d[\"model_input\"][\"chunks\"][0].update(tokens=v)
inp = lambda n, **kw: lambda d, f: d[\"loss_fn_inputs\"][n].update(kw)
for change in (tok([10 ** 9] * 5), tok([-1] * 5), tok([2 ** 31] * 5), tok([1.5] * 5), tok([]), tok(\"abc\"), tok([1] * 4), tok([1] * 5000), tok([1, 2, 3, 4, 2 ** 70]),
        inp(\"target_tokens\", data=[10 ** 9] * 5), inp(\"target_tokens\", data=[1] * 4), inp(\"target_tokens\", shape=[4]), inp(\"target_tokens\", shape=[2 ** 62, 4]),
        inp(\"target_tokens\", shape=[-5]), inp(\"target_tokens\", shape=[5, 0]), inp(\"target_tokens\", dtype=\"float64\"), inp(\"weights\", data=[float(\"nan\")] * 5),
        inp(\"weights\", data=[1e999] * 5), inp(\"weights\", data=[\"1\"] * 5), lambda d, f: d[\"loss_fn_inputs\"].pop(\"target_tokens\"), lambda d, f: d[\"loss_fn_inputs\"].update(mask={\"data\": [1] * 5, \"dtype\": \"int64\"}),
        lambda d, f: f.update(loss_fn=\"ppo\"), lambda d, f: f.update(loss_fn=5), lambda d, f: f.update(data=3), lambda d, f: d.update(model_input=None),
        lambda d, f: f.update(loss_fn_config={\"x\": 1}), lambda d, f: d[\"model_input\"].update(chunks=[{\"type\": \"image\", \"data\": \"AA==\", \"format\": \"png\"}])):
    train(change)
for p in ({\"learning_rate\": 1e400}, {\"beta1\": 2}, {\"eps\": -1}, {\"grad_clip_norm\": -1}, {\"learning_rate\": \"x\"}):
    seq[0] += 1
    r = call(\"POST\", \"/api/v1/optim_step\", {\"model_id\": m, \"seq_id\": seq[0], \"adam_params\": p})
    assert r.status == 400 or wait(r.json[\"request_id\"])[\"category\"] == \"user\", p
    if r.status == 400: seq[0] -= 1
for i, (kw, p) in enumerate([({\"num_samples\": 0}, {}), ({\"num_samples\": 5000}, {}), ({\"num_samples\": 2 ** 63}, {}), ({\"prompt\": {\"chunks\": []}}, {}), ({\"prompt\": None}, {}), ({}, {\"temperature\": -1}),
        ({}, {\"top_p\": -1}), ({}, {\"top_p\": 2}), ({}, {\"top_k\": -5}), ({}, {\"max_tokens\": -1}), ({}, {\"max_tokens\": 64}), ({}, {\"stop\": [\"x\"] * 65}), ({}, {\"stop\": [1, \"x\"]}), ({}, {\"stop\": [10 ** 9]}),
        ({\"topk_prompt_logprobs\": -1}, {}), ({\"topk_sample_logprobs\": 10 ** 9}, {}), ({\"prompt\": {\"chunks\": [{\"type\": \"image\", \"data\": \"AA==\", \"format\": \"png\"}]}}, {})]):
    b = sample_body(sm, i)
    b.update(kw)
    b[\"sampling_params\"].update(p)
    r = call(\"POST\", \"/api/v1/asample\", b)
    assert r.status == 400, (kw, p, r.status, r.body)
r = call(\"POST\", \"/api/v1/asample\", sample_body(sm, 99, prompt=[1] * 60, tokens=10))
assert r.status == 400 and \"60 prompt tokens + 10 max_tokens > 64\" in r.json[\"detail\"], r.body
assert \"loss_fn_outputs\" in wait(fb(m, seq[0] + 1))
good.set(); t.join()
assert not bad, bad
"
'
test_case 'malformed JSON and protobuf of every kind: an answer each time, the server lives' '
	serve_start --gap-timeout 0.2
	ask "
m = create(session()); sm = sampler(m, 1, 0)
rng = random.Random(1)
paths = [\"create_session\", \"session_heartbeat\", \"create_model\", \"get_info\", \"forward_backward\", \"forward\", \"optim_step\", \"save_weights\", \"save_weights_for_sampler\", \"load_weights\",
    \"asample\", \"create_sampling_session\", \"retrieve_future\", \"cancel_future\", \"weights_info\", \"copy_weights\", \"sessions/search\", \"unload_model\", \"join_sampling_session\"]
vector = bytes.fromhex(\"0a09733a747261696e3a301001\") + b\"\\x1a\\x64\" + bytes(100)
good = [json.dumps(fb_body(m, 2)).encode(), json.dumps(sample_body(sm, 1)).encode(), b\"{\\\"model_id\\\": \\\"%s\\\", \\\"seq_id\\\": 3, \\\"path\\\": \\\"x\\\"}\" % m.encode(), vector]
c = connect()
for i in range(1500):
    b = bytearray(rng.choice(good))
    for k in range(rng.randrange(1, 6)):
        j = rng.randrange(len(b) + 1)
        what = rng.randrange(5)
        if what == 0: b[j:j] = bytes([rng.randrange(256)])
        elif what == 1: del b[j:j + rng.randrange(20)]
        elif what == 2: b[j:j] = rng.choice([b\"[\" * 200, b\"{\\\"a\\\":\" * 50, b\"9\" * 30, b\"-\", b\"1e9999\", b\"\\\\ud800\", b\"\\x00\", b\"null\", b\"\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x7f\"])
        elif what == 3: b = b[:j]
        elif j < len(b): b[j] ^= 1 << rng.randrange(8)
    proto = rng.random() < 0.3
    p = rng.choice(paths)
    r = call(\"POST\", \"/api/v1/\" + p, bytes(b), con=c, headers={\"Content-Type\": \"application/x-protobuf\" if proto else \"application/json\"}) if p != \"retrieve_future\" or b[:1] != b\"{\" else None
    assert r is None or r.status in (200, 400, 403, 404, 410), (p, r.status, bytes(b))
get(\"healthz\")
assert create(session())
"
'
test_case 'slow clients: hundreds that send a byte a second do not matter to others' '
	serve_start
	ask "
slow = [raw() for i in range(500)]
for s in slow: s.sendall(b\"POST /api/v1/telemetry HTTP/1.1\\r\\nHost: x\\r\\nX-API-Key: tml-x\\r\\nX-Long: \")
times = []
end = time.time() + 4
def drip():
    while time.time() < end:
        for s in slow: s.sendall(b\"a\")
        time.sleep(1)
t = threading.Thread(target=drip); t.start()
while time.time() < end:
    t0 = time.time()
    post(\"telemetry\", {})
    times.append(time.time() - t0)
    time.sleep(0.02)
t.join()
times.sort()
assert times[len(times) // 2] < 5, times[len(times) // 2]
assert metric(\"tw_connections\") >= 500
[s.close() for s in slow]
eventually(lambda: metric(\"tw_connections\") < 20)
"
'
test_case 'few descriptors: connections wait, none is lost, the server stays' '
	(ulimit -n 512; serve_start; echo "$URL $PID" >run; trap - EXIT)
	read -r URL PID <run
	export URL PID
	trap "kill -9 $PID 2>/dev/null || :" EXIT
	ask "
first = [raw(20) for i in range(400)]
for s in first: s.sendall(b\"GET /healthz HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n\")
time.sleep(0.3)
for s in first: s.close()
for i in range(20): get(\"healthz\")
"
'
test_case 'quotas: adapters, concurrency, tokens a minute, disk' '
	cat >keys <<-X
	tml-a a adapters=2 disk=100K
	tml-c c concurrency=2
	tml-t t tokens-per-minute=60
	X
	chmod 600 keys
	serve_start --keys keys --poll-hold 1
	ask "
a, c, t = ({\"key\": k} for k in (\"tml-a\", \"tml-c\", \"tml-t\"))
sid = session(**a)
m = create(sid, 0, **a); create(sid, 1, **a)
r = post(\"create_model\", {\"session_id\": sid, \"model_seq_id\": 2, \"base_model\": \"tiny\", \"lora_config\": {\"rank\": 2}}, **a)
r = wait(r[\"request_id\"], **a)
assert r[\"category\"] == \"user\" and \"2 adapters\" in r[\"error\"], r
r = wait(post(\"save_weights\", {\"model_id\": m, \"seq_id\": 1, \"path\": \"x\"}, **a)[\"request_id\"], **a)
assert r[\"category\"] == \"user\" and \"disk\" in r[\"error\"], r
assert get(\"checkpoints\", **a)[\"checkpoints\"] == []
wait(post(\"unload_model\", {\"model_id\": m}, **a)[\"request_id\"], **a)
create(sid, 3, **a)
sid = session(**c); m = create(sid, **c); sm = sampler(m, 1, 0, **c)
codes, seq = [], iter(range(10 ** 9))
def one():
    codes.append(call(\"POST\", \"/api/v1/asample\", sample_body(sm, next(seq), tokens=200, n=8), **c).status)
def burst():
    ts = [threading.Thread(target=one) for i in range(8)]
    [x.start() for x in ts]; [x.join() for x in ts]
    return 429 in codes and 200 in codes
eventually(burst)               # a busy machine may send one when another has ended
assert set(codes) == {200, 429}, codes
ids = [fb(m, 2 + i, **c) for i in range(6)]
assert all(\"loss_fn_outputs\" in wait(i, **c) for i in ids)
sid = session(**t); m = create(sid, **t); sm = sampler(m, 1, 0, **t)
assert call(\"POST\", \"/api/v1/asample\", sample_body(sm, 0, prompt=[1] * 30, tokens=25), **t).status == 200
r = call(\"POST\", \"/api/v1/asample\", sample_body(sm, 1, prompt=[1] * 30, tokens=25), **t)
assert r.status == 429 and float(r.headers[\"Retry-After\"]) >= 1, r.status
rid = fb(m, 2, tokens=[1] * 50, **t)
r = call(\"POST\", \"/api/v1/retrieve_future\", {\"request_id\": rid}, **t)
assert r.status == 408 and r.json[\"queue_state\"] == \"paused_rate_limit\", r.body
"
'
test_case 'SIGTERM: parked polls are answered, the end comes within seconds, work goes on after a restart' '
	SERVE_LISTEN=unix:sock serve_start --state st --gap-timeout 60 --alert "echo >>alerts"
	ask "
m = create(session())
out = []
rid = fb(m, 2)
def poll():
    out.append(call(\"POST\", \"/api/v1/retrieve_future\", {\"request_id\": rid}))
ts = [threading.Thread(target=poll) for i in range(20)]
[x.start() for x in ts]
eventually(lambda: metric(\"tw_parked_requests\") >= 20)
t = time.time()
os.kill(int(os.environ[\"PID\"]), signal.SIGTERM)
[x.join() for x in ts]
assert [r.status for r in out] == [408] * 20 and time.time() - t < 120
open(\"ids\", \"w\").write(\"%s %s\" % (m, rid))
"
	STATUS=0
	wait $PID || STATUS=$?
	test_equal $STATUS 0
	SERVE_LISTEN=unix:sock serve_start --state st
	ask "
m, rid = open(\"ids\").read().split()
fb(m, 1)
assert \"loss_fn_outputs\" in wait(rid)
"
'
test_done
