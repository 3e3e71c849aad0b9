#!/bin/sh
# Requests of a model run by their numbers, each once; futures; what a repeat, a gap and a refusal do.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

test_case 'numbers that come as 2, 3, 1 run as 1, 2, 3; a repeat is the same request' '
	serve_start
	ask "
m, s = create(session()), create(session())
tok = lambda i: [i + 1, i + 2, i + 3, i + 4]
def ask(m, i):
    return step(m, i, 1e-3) if i % 2 == 0 else fb(m, i, tok(i))
plain = [wait(ask(m, i)) for i in range(1, 7)]
ids = {i: ask(s, i) for i in (2, 3, 6, 1, 5, 4)}
assert [wait(ids[i]) for i in range(1, 7)] == plain
assert all(ask(s, i) == ids[i] for i in ids)
assert [wait(ids[i]) for i in range(1, 7)] == plain
r = wait(fb(s, 3, [9, 9, 9]))
assert r[\"category\"] == \"user\" and \"another request\" in r[\"error\"], r
both = [None, None]
def send(k):
    both[k] = ask(s, 7)
t = [threading.Thread(target=send, args=(k,)) for k in (0, 1)]
[x.start() for x in t]; [x.join() for x in t]
assert both[0] == both[1]
"
'
test_case 'an optim_step sent three times is one step' '
	serve_start
	ask "
a, b = create(session()), create(session())
for m, n in ((a, 1), (b, 3)):
    fb(m, 1)
    assert len({step(m, 2, 1e-3) for i in range(n)}) == 1
assert wait(fb(a, 3)) == wait(fb(b, 3))
"
'
test_case 'a gap is skipped after a while, a late number fails, a refused one is consumed' '
	serve_start --gap-timeout 1
	ask "
m = create(session())
t = time.time()
late = fb(m, 2)
r = wait(late)
assert \"loss_fn_outputs\" in r and time.time() - t > 0.8, r
r = wait(fb(m, 1))
assert r[\"category\"] == \"user\" and \"past\" in r[\"error\"], r
r = wait(post(\"forward_backward\", {\"forward_backward_input\": {\"data\": [], \"loss_fn\": \"no_such\"}, \"model_id\": m, \"seq_id\": 3})[\"request_id\"])
assert r[\"category\"] == \"user\", r
assert \"metrics\" in wait(step(m, 4)) and metric(\"tw_sequence_skipped_total\") == 1
"
'
test_case 'polls are held, then 408; results are fetched again; unknown ids are 404' '
	serve_start --poll-hold 1 --gap-timeout 3600
	ask "
m = create(session())
rid = fb(m, 2)
t = time.time()
r = call(\"POST\", \"/api/v1/retrieve_future\", {\"request_id\": rid})
assert r.status == 408 and r.json[\"type\"] == \"try_again\" and r.json[\"request_id\"] == rid, r.body
assert time.time() - t > 0.9
fb(m, 1)
assert wait(rid) == wait(rid)
x = expect(404, \"POST\", \"/api/v1/retrieve_future\", {\"request_id\": \"req-\" + \"0\" * 32}).body
assert x == expect(404, \"POST\", \"/api/v1/retrieve_future\", {\"request_id\": rid}, key=\"tml-other\").body
expect(400, \"POST\", \"/api/v1/retrieve_future\", {\"request_id\": 3})
expect(204, \"POST\", \"/api/v1/cancel_future\", {\"request_id\": rid})
expect(404, \"POST\", \"/api/v1/cancel_future\", {\"request_id\": \"x\"})
"
'
test_case 'one poll for all samples of a session; a result that has expired is 410' '
	serve_start --poll-hold 2 --state st
	ask "
m = create(session()); sm = sampler(m, 1, 0)
def poll(cursor, clone=0, got=(), **kw):
    return post(\"retrieve_futures\", dict({\"target\": {\"type\": \"sampling_session\", \"sampling_session_id\": sm, \"cloned_sampler_id\": clone}, \"prev_cursor\": cursor, \"retrieved_request_ids\": list(got)}, **kw))
ids = [sample(sm, i)[\"request_id\"] for i in range(5)]
other = sample(sm, 10 ** 9)[\"request_id\"]
seen, cursor = [], 0
while len(seen) < 5:
    r = poll(cursor, got=seen)
    cursor = r[\"cursor\"]
    assert all(c[\"state\"] == \"finished\" and c[\"response_payload_uncompressed_size\"] > 0 for c in r[\"completions\"])
    seen += [c[\"request_id\"] for c in r[\"completions\"]]
assert sorted(seen) == sorted(ids)
eventually(lambda: [c[\"request_id\"] for c in poll(0, 1)[\"completions\"]] == [other])
t = time.time()
assert poll(cursor)[\"completions\"] == [] and time.time() - t > 1.5
assert poll(cursor, timeout=0)[\"completions\"] == []
expect(404, \"POST\", \"/api/v1/retrieve_futures\", {\"target\": {\"sampling_session_id\": sm}}, key=\"tml-x\")
assert post(\"join_sampling_session\", {\"sampling_session_id\": sm})[\"client_counter\"] == 1
open(\"ids\", \"w\").write(json.dumps([sm, m, cursor, ids]))
"
	serve_stop KILL
	serve_start --poll-hold 2 --state st --alert true
	ask "
sm, m, cursor, ids = json.load(open(\"ids\"))
assert post(\"join_sampling_session\", {\"sampling_session_id\": sm})[\"client_counter\"] == 2
assert len(wait(ids[0])[\"sequences\"]) == 1
"
	serve_stop
	serve_start --result-ttl 1 --state st --alert true
	ask "
sm, m, cursor, ids = json.load(open(\"ids\"))
while call(\"POST\", \"/api/v1/retrieve_future\", {\"request_id\": ids[0]}).status != 410:
    time.sleep(0.1)
expect(404, \"POST\", \"/api/v1/retrieve_future\", {\"request_id\": ids[0]}, key=\"tml-other\")
expect(404, \"POST\", \"/api/v1/retrieve_future\", {\"request_id\": ids[0][:-1] + (\"0\" if ids[0][-1] != \"0\" else \"1\")})
assert sample(sm, 0)[\"request_id\"] != ids[0]
"
'
test_case 'two thousand parked polls and as many posts at once' '
	serve_start --gap-timeout 3600 --snapshot-every 0
	ask "
import resource, selectors
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
m = create(session())
rid = fb(m, 2)
body = json.dumps({\"request_id\": rid}).encode()
text = b\"POST /api/v1/retrieve_future HTTP/1.1\\r\\nHost: x\\r\\nX-API-Key: tml-test\\r\\nContent-Length: %d\\r\\n\\r\\n\" % len(body) + body
polls = [raw() for i in range(2000)]
for s in polls:
    s.sendall(text)
sel, done = selectors.DefaultSelector(), []
for s in polls:
    sel.register(s, selectors.EVENT_READ)
def pump(until):
    while not until():
        for k, _ in sel.select(0.1):
            g = k.fileobj.recv(4096)
            if b\" 408 \" in g: k.fileobj.sendall(text)
            else: done.append(g)
pump(lambda: metric(\"tw_parked_requests\") >= 2000)
worst = 0
for i in range(20):
    t = time.time()
    get(\"healthz\")
    worst = max(worst, time.time() - t)
assert worst < 10, worst
fb(m, 1)
pump(lambda: len(done) >= 2000)
assert all(b\" 200 OK\" in g for g in done)
eventually(lambda: metric(\"tw_parked_requests\") == 0)
sm = sampler(m, 3, 0)
def one(i):
    body = json.dumps(sample_body(sm, i, tokens=1)).encode()
    s = raw()
    s.sendall(b\"POST /api/v1/asample HTTP/1.1\\r\\nHost: x\\r\\nX-API-Key: tml-test\\r\\nContent-Length: %d\\r\\n\\r\\n\" % len(body) + body)
    return s
posts = [one(i) for i in range(2048)]
got = [s.recv(4096) for s in posts]
ids = [json.loads(g.split(b\"\\r\\n\\r\\n\")[1])[\"request_id\"] for g in got]
assert len(set(ids)) == 2048
with concurrent.futures.ThreadPoolExecutor(16) as ex:
    assert all(len(r[\"sequences\"]) == 1 for r in ex.map(wait, ids))
"
'
test_case 'kill -9 at any time: the same results, the same adapter' '
	cat >run.py <<-X
	import pickle, random
	N, sid = 24, session()
	m, ids = create(sid), []
	def go(i):
	    ids.append((fb(m, 2 * i + 1, [random.Random(i).randrange(100) for k in range(24)]), step(m, 2 * i + 2, 1e-3)))
	X
	again="exec(open(\"run.py\").read())"
	serve_start --state st
	ask "$again
[go(i) for i in range(N)]
out = [(wait(a), wait(b)) for a, b in ids]
assert \"path\" in wait(save(m, 2 * N + 1, \"end\"))
pickle.dump(out, open(\"out\", \"wb\"))
"
	serve_stop
	test_equal $STATUS 0
	want=$(cat st/checkpoints/*/adapter_model.safetensors | cksum)
	for cut in 1 9 17 23; do
	    rm -rf st
	    serve_start --state st --snapshot-every 4
	    ask "$again
[go(i) for i in range($cut)]
pickle.dump((m, ids), open(\"ids\", \"wb\"))
"
	    serve_stop KILL
	    serve_start --state st --snapshot-every 4
	    ask "
import pickle
exec(open(\"run.py\").read().replace(\"session()\", \"None\").replace(\"create(sid)\", \"None\"))
m, ids = pickle.load(open(\"ids\", \"rb\"))
old = list(ids)
ids.pop()
go($cut - 1)
assert ids == old
[go(i) for i in range($cut, N)]
assert [(wait(a), wait(b)) for a, b in ids] == pickle.load(open(\"out\", \"rb\"))
assert \"path\" in wait(save(m, 2 * N + 1, \"end\"))
"
	    test_equal "$(cat st/checkpoints/*/adapter_model.safetensors | cksum)" "$want"
	    serve_stop KILL
	done
'
test_case 'bodies of many kilobytes are files of the journal: there after kill -9, gone when nobody needs them' '
	cat >run.py <<-X
	import random
	def big(m, seq, n):
	    x = fb_body(m, seq)
	    r = random.Random(seq)
	    x["forward_backward_input"]["data"] = [datum([r.randrange(100) for _ in range(64)]) for _ in range(n)]
	    return post("forward_backward", x)["request_id"]
	files = lambda: sorted(os.listdir("st/journal"))
	X
	serve_start --state st --snapshot-every 2 --gap-timeout 3600
	ask "exec(open(\"run.py\").read())
m = create(session())
assert files() == []
a = [wait(big(m, 1, 40)), wait(step(m, 2, 1e-3))]
assert len(files()) == 1, files()
late = big(m, 5, 40)
assert len(files()) == 2 and os.stat(\"st/journal/\" + files()[0]).st_size > 32768, files()
json.dump([m, late], open(\"ids\", \"w\"))
open(\"st/journal/99999\", \"w\").write(\"of a request that was never accepted\")
"
	serve_stop KILL
	serve_start --state st --snapshot-every 2 --gap-timeout 3600
	ask "exec(open(\"run.py\").read())
m, late = json.load(open(\"ids\"))
assert len(files()) == 2 and \"99999\" not in files(), files()
wait(fb(m, 3)); wait(step(m, 4, 1e-3))
assert \"metrics\" in wait(late)
b = wait(fb(create(session()), 1))
eventually(lambda: len(files()) == 1)       # the first went with the snapshot of step 4
wait(step(m, 6, 1e-3)); wait(fb(m, 7)); wait(step(m, 8, 1e-3))
eventually(lambda: files() == [])
"
'
test_case 'weights frozen to sample from outlive want of memory, kill -9 and an unload, and end with their session' '
	cat >run.py <<-X
	def tokens(sm, n):
	    s = wait(sample(sm, n, tokens=8)["request_id"])["sequences"][0]
	    return [s["tokens"], s["logprobs"]]
	folders = lambda: os.listdir("st/samplers") if os.path.isdir("st/samplers") else []
	X
	serve_start --state st --max-adapters 2 --snapshot-every 3 --session-timeout 3600
	ask "exec(open(\"run.py\").read())
sid = session()
m, sm, want = create(sid), [], []
for i in range(14):
    wait(fb(m, 3 * i + 1, range(i + 1, i + 20))); wait(step(m, 3 * i + 2, 3e-2))
    sm.append(sampler(m, 3 * i + 3, i))
    want.append(tokens(sm[-1], 1))
assert len({str(w[1]) for w in want}) == 14
assert [tokens(s, 2) for s in sm] == want
json.dump([sid, m, sm, want], open(\"ids\", \"w\"))
"
	serve_stop KILL
	for d in st/samplers st/checkpoints st/runs/*; do       # as if it had been writing there
	    mkdir -p $d/.ckpt-7.new-1/trainer $d/.ckpt-8.old-1
	    echo >$d/.ckpt-7.new-1/adapter_model.safetensors
	done
	mkdir -p st/saved/0123456789abcdef/sub
	echo >st/saved/0123456789abcdef/sub/.rows.jsonl.tmp-1
	serve_start --state st --max-adapters 2 --snapshot-every 3 --session-timeout 3600
	ask "exec(open(\"run.py\").read())
sid, m, sm, want = json.load(open(\"ids\"))
assert [tokens(s, 3) for s in sm] == want
hidden = [f for w, d, fs in os.walk(\"st\") for f in d + fs if re.match(\"[.].*-1\", f)]
assert not hidden, hidden
n = sampler(m, 43, 14)
last = tokens(n, 1)
post(\"unload_model\", {\"model_id\": m, \"type\": \"unload_model\"})
eventually(lambda: len(folders()) == 15)
json.dump([sid, m, sm + [n], want + [last]], open(\"ids\", \"w\"))
"
	serve_stop KILL
	serve_start --state st --max-adapters 2 --snapshot-every 3 --session-timeout 3600
	ask "exec(open(\"run.py\").read())
sid, m, sm, want = json.load(open(\"ids\"))
assert [tokens(s, 4) for s in sm] == want
expect(204, \"POST\", \"/api/v1/sessions/%s/finish\" % sid, {\"reason\": {\"type\": \"success\"}})
eventually(lambda: folders() == [] and metric(\"tw_snapshots\") == 0)
assert \"metrics\" in wait(fb(create(session()), 1))
"
'
test_case 'weights saved under a name for sampling are there when the answer is, whatever befalls the server then' '
	cat >run.py <<-X
	def tokens(path, n):
	    sm = post("create_sampling_session", {"session_id": sid, "sampling_session_seq_id": n, "model_path": path})["sampling_session_id"]
	    s = wait(sample(sm, 1, tokens=8)["request_id"])["sequences"][0]
	    return [s["tokens"], s["logprobs"]]
	def save(m, seq):
	    return wait(post("save_weights_for_sampler", {"model_id": m, "seq_id": seq, "path": "s%d" % seq})["request_id"])["path"]
	X
	for round in 0 1 2; do
	    rm -rf st
	    serve_start --state st --snapshot-every 0
	    ask "exec(open(\"run.py\").read())
import signal
sid = session()
m, paths, want = create(sid), [], []
for i in range(3 + $round):
    wait(fb(m, 3 * i + 1, range(i + 1, i + 20))); wait(step(m, 3 * i + 2, 3e-2))
    if i: want.append(tokens(paths[-1], i))
    paths.append(save(m, 3 * i + 3))
    if i == 2 + $round: os.kill(int(os.environ[\"PID\"]), signal.SIGKILL)
json.dump([sid, m, paths, want], open(\"ids\", \"w\"))
"
	    serve_stop KILL 2>/dev/null || :
	    serve_start --state st --snapshot-every 0
	    ask "exec(open(\"run.py\").read())
import hashlib
sid, m, paths, want = json.load(open(\"ids\"))
assert len(want) + 1 == len(paths) == 3 + $round
got = [tokens(p, 20 + i) for i, p in enumerate(paths)]
assert got[:-1] == want and len({str(g[1]) for g in got}) == len(paths)
assert sorted(c[\"tinker_path\"] for c in get(\"checkpoints\")[\"checkpoints\"]) == sorted(paths)
for d in os.listdir(\"st/checkpoints\"):
    files = json.load(open(\"st/checkpoints/%s/trainer/manifest.json\" % d))[\"files\"]
    assert len(files) == 2, files
    for name, f in files.items():
        b = open(\"st/checkpoints/%s/%s\" % (d, name), \"rb\").read()
        assert len(b) == f[\"size\"] and hashlib.sha256(b).hexdigest() == f[\"sha256\"], (d, name)
"
	    serve_stop
	done
'
test_done
