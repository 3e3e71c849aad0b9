#!/bin/sh
# Runs, checkpoints and sessions: listed, published, copied, downloaded, expired; whose is what.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

prepare='
sid = session()
m = create(sid)
fb(m, 1); step(m, 2, 1e-3)
ck = wait(save(m, 3, "ck", user_metadata={"k": "v"}))["path"]
s1 = wait(save(m, 4, "s1", "save_weights_for_sampler"))["path"]
e1 = wait(save(m, 5, "e1", "save_weights_external"))["path"]
run = "/api/v1/training_runs/" + m
at = lambda path, what="": "/api/v1/training_runs/%s/checkpoints/%s/%s%s" % (*path[9:].split("/"), what)
'
export prepare
test_case 'runs and checkpoints are listed, newest first, in pages' '
	serve_start --state st
	ask "$prepare
m2 = post(\"create_model\", {\"session_id\": sid, \"model_seq_id\": 1, \"base_model\": \"tiny\", \"lora_config\": {\"rank\": 2}, \"user_metadata\": {\"n\": 1, \"s\": \"x\", \"o\": {\"a\": [1]}}})[\"model_id\"]
r = get(\"training_runs\")
assert [x[\"training_run_id\"] for x in r[\"training_runs\"]] == [m2, m] and r[\"cursor\"] == {\"offset\": 0, \"limit\": 20, \"total_count\": 2}, r
assert r[\"training_runs\"][0][\"user_metadata\"] == {\"n\": \"1\", \"s\": \"x\", \"o\": \"{\\\"a\\\": [1]}\"}, r
assert r[\"training_runs\"][1][\"last_checkpoint\"][\"tinker_path\"] == ck
assert [x[\"training_run_id\"] for x in get(\"training_runs?limit=1&offset=1\")[\"training_runs\"]] == [m]
assert get(\"training_runs/\" + m)[\"lora_rank\"] == 4
c = get(\"training_runs/%s/checkpoints\" % m)[\"checkpoints\"]
assert [x[\"checkpoint_type\"] for x in c] == [\"training\", \"sampler\", \"external\"], c
assert c[0][\"user_metadata\"] == {\"k\": \"v\"} and c[0][\"time\"].endswith(\"Z\") and c[0][\"size_bytes\"] > 1000
old = get(\"checkpoints\", headers={\"User-Agent\": \"AsyncTinker/Python 0.25.0\"})[\"checkpoints\"]
assert \"external\" not in [x[\"checkpoint_type\"] for x in old] and len(old) == 2
assert get(\"checkpoints?limit=2\")[\"cursor\"][\"total_count\"] == 3
assert post(\"weights_info\", {\"tinker_path\": ck}) == {\"base_model\": \"tiny\", \"is_lora\": True, \"lora_rank\": 4, \"train_unembed\": True, \"train_mlp\": True, \"train_attn\": True}
for q in (\"limit=-1\", \"limit=x\", \"offset=99999999999999999999\", \"limit=\"):
    expect(400, \"GET\", \"/api/v1/training_runs?\" + q)
s = get(\"sessions/\" + sid)
assert s[\"training_run_ids\"] == [m, m2]
assert get(\"sessions\")[\"sessions\"] == [sid]
assert post(\"sessions/search\", {\"limit\": 5})[\"sessions\"][0][\"checkpoints_count\"] == 3
expect(204, \"PUT\", \"/api/v1/sessions/%s/project\" % sid, {\"project_id\": \"p\"})
assert post(\"sessions/search\", {\"project_ids\": [\"q\"]})[\"sessions\"] == []
assert get(\"sessions/%s/trace_export\" % sid)[\"status\"] == \"failed\"
assert any(e[\"event\"] == \"save\" for e in get(\"audit?event_type=all\")[\"entries\"])
assert get(\"auth/apikey/me\")[\"details\"][\"org_details\"]
assert get(\"billing/usage/events?starting_on=2026-01-01\")[\"data\"] == []
"
'
test_case 'names that lead out of the folder, or nowhere, are refused; nothing is written' '
	serve_start --state st
	ask "
m = create(session())
bad = [\"../x\", \"/x\", \"a/../../x\", \"a%2f..%2fx\", \".\", \"..\", \"\", \"x\" * 129, \"a\\nb\", \".hid\", \"a b\", \"é\", \"a\\u0000b\"]
for i, name in enumerate(bad):
    for k, what in enumerate((\"save_weights\", \"save_weights_for_sampler\", \"save_weights_external\")):
        r = call(\"POST\", \"/api/v1/\" + what, {\"model_id\": m, \"path\": name, \"seq_id\": 3 * i + k + 1})
        assert r.status == 200, (name, r.status)
        r = wait(r.json[\"request_id\"])
        assert r[\"category\"] == \"user\", (name, r)
assert get(\"checkpoints\")[\"checkpoints\"] == []
assert not os.path.exists(\"st/checkpoints\") or os.listdir(\"st/checkpoints\") == []
assert wait(save(m, 3 * len(bad) + 1, \"a.b_c-D\"))[\"path\"].endswith(\"weights/a.b_c-D\")
"
'
test_case 'publish, ttl, delete, overwrite; files go with their checkpoint' '
	serve_start --state st
	ask "$prepare
other = {\"key\": \"tml-other\"}
expect(404, \"GET\", run, **other)
expect(404, \"POST\", at(ck, \"/publish\"), **other)
for i in (1, 2):
    expect(204, \"POST\", at(ck, \"/publish\"))
assert [c[\"tinker_path\"] for c in expect(200, \"GET\", run + \"/checkpoints\", **other).json[\"checkpoints\"]] == [ck]
o = session(**other)
r = post(\"load_weights\", {\"session_id\": o, \"model_seq_id\": 0, \"path\": ck, \"optimizer\": False}, **other)
assert \"error\" not in wait(r[\"request_id\"], **other)
expect(204, \"DELETE\", at(ck, \"/publish\"))
expect(404, \"GET\", run, **other)
for ttl, status in ((0, 400), (-1, 400), (\"x\", 400), (3600, 204), (None, 204)):
    expect(status, \"PUT\", at(ck, \"/ttl\"), {\"ttl_seconds\": ttl})
    assert bool(get(\"checkpoints\")[\"checkpoints\"][-1][\"expires_at\"]) == (ttl == 3600)
expect(204, \"PUT\", at(s1, \"/ttl\"), {\"ttl_seconds\": 1})
n = len(os.listdir(\"st/checkpoints\"))
eventually(lambda: len(os.listdir(\"st/checkpoints\")) == n - 1)
expect(404, \"DELETE\", at(s1))
r = wait(save(m, 6, \"ck\"))
assert r[\"category\"] == \"user\" and \"overwrite\" in r[\"error\"], r
assert wait(save(m, 7, \"ck\", overwrite=True))[\"path\"] == ck
eventually(lambda: len(os.listdir(\"st/checkpoints\")) == n - 1)
assert \"user_metadata\" in get(\"checkpoints\")[\"checkpoints\"][0] and get(\"checkpoints\")[\"checkpoints\"][0][\"user_metadata\"] is None
expect(404, \"DELETE\", at(ck), **other)
expect(204, \"DELETE\", at(ck))
expect(404, \"DELETE\", at(ck))
assert [c[\"tinker_path\"] for c in get(\"checkpoints\")[\"checkpoints\"]] == [e1]
r = wait(post(\"load_weights\", {\"session_id\": sid, \"model_seq_id\": 5, \"path\": ck, \"optimizer\": True})[\"request_id\"])
assert r[\"category\"] == \"user\", r
"
'
test_case 'what was saved to train on may be sampled from; a wrong kind says what there is' '
	serve_start
	ask "$prepare
path = lambda p: call(\"POST\", \"/api/v1/create_sampling_session\", {\"session_id\": sid, \"sampling_session_seq_id\": random.randrange(10 ** 6), \"model_path\": p})
def probe(p):
    return wait(sample(path(p).json[\"sampling_session_id\"], 0, prompt_logprobs=True)[\"request_id\"])
assert probe(ck) == probe(s1) and probe(ck)[\"prompt_logprobs\"][1] < 0
r = path(ck.replace(\"/weights/\", \"/sampler_weights/\"))
assert r.status == 404 and \"there is weights/ck\" in r.json[\"detail\"], r.body
assert path(\"tinker://nonsense\").status == 404 and path(\"/etc/passwd\").status == 404
"
'
test_case 'downloads by signed links, an archive, a copy made once' '
	serve_start --state st
	ask "$prepare
import io, tarfile
u = expect(200, \"GET\", at(e1, \"/external_weights_urls\")).json
assert set(u[\"urls\"]) == {\"adapter_config.json\", \"adapter_model.safetensors\"} and u[\"expires\"].endswith(\"Z\"), u
url = {k: v[len(URL):] for k, v in u[\"urls\"].items()}
cfg = expect(200, \"GET\", url[\"adapter_config.json\"], key=None)
assert cfg.json[\"r\"] == 4 and cfg.json[\"lora_alpha\"] == 32 and cfg.json[\"base_model_name_or_path\"] == \"tiny\" and int(cfg.headers[\"Content-Length\"]) == len(cfg.body)
good = url[\"adapter_model.safetensors\"]
assert len(expect(200, \"GET\", good, key=None).body) > 1000
for bad in (good[:-1], good[:-1] + (\"0\" if good[-1] != \"0\" else \"1\"), good.split(\"?\")[0], good.replace(\"until=1\", \"until=2\"),
            good.replace(\"adapter_model\", \"other\"), good.replace(\"/adapter_model\", \"/..%2f..%2fstate.db\"), re.sub(r\"load/[0-9]+\", \"load/1\", good)):
    assert call(\"GET\", bad, key=None).status in (401, 404), bad
r = expect(302, \"GET\", at(s1, \"/archive\"))
tar = tarfile.open(fileobj=io.BytesIO(expect(200, \"GET\", r.headers[\"Location\"][len(URL):], key=None).body))
assert sorted(tar.getnames()) == [\"adapter_config.json\", \"adapter_model.safetensors\", \"checkpoint_complete\"] and all(t.isfile() for t in tar)
expect(404, \"GET\", at(e1, \"/external_weights_urls\"), key=\"tml-other\")
copy = lambda k: post(\"copy_weights\", {\"source_path\": ck, \"destination_project_id\": \"p\"}, headers={\"X-Idempotency-Key\": k})[\"tinker_path\"]
a = copy(\"1\")
assert a == copy(\"1\") and a != copy(\"2\") and a != ck and a.endswith(\"/weights/ck\")
r = wait(post(\"load_weights\", {\"session_id\": sid, \"model_seq_id\": 3, \"path\": a, \"optimizer\": True})[\"request_id\"])
assert \"error\" not in r, r
expect(404, \"POST\", \"/api/v1/copy_weights\", {\"source_path\": ck}, key=\"tml-other\")
open(\"a\", \"w\").write(a)
"
	serve_stop KILL
	mv st moved
	serve_start --state moved
	ask "
a = open(\"a\").read()
assert post(\"copy_weights\", {\"source_path\": a, \"destination_project_id\": \"p\"}, headers={\"X-Idempotency-Key\": \"1\"})[\"tinker_path\"] == a
r = wait(post(\"load_weights\", {\"session_id\": session(), \"model_seq_id\": 0, \"path\": a, \"optimizer\": True})[\"request_id\"])
assert \"error\" not in r, r
"
'
test_case 'whatever takes an id says of another tenant what it says of nothing' '
	serve_start
	ask "$prepare
sm = sampler(m, 6, 0)
rid = step(m, 7)
fin = {\"reason\": {\"type\": \"success\"}}
tries = [
    (\"POST\", \"/api/v1/get_info\", lambda i: {\"model_id\": i}, m), (\"POST\", \"/api/v1/forward_backward\", lambda i: fb_body(i, 9), m),
    (\"POST\", \"/api/v1/optim_step\", lambda i: {\"model_id\": i, \"seq_id\": 9, \"adam_params\": {}}, m), (\"POST\", \"/api/v1/unload_model\", lambda i: {\"model_id\": i}, m),
    (\"POST\", \"/api/v1/save_weights\", lambda i: {\"model_id\": i, \"seq_id\": 9, \"path\": \"x\"}, m), (\"POST\", \"/api/v1/retrieve_future\", lambda i: {\"request_id\": i}, rid),
    (\"POST\", \"/api/v1/cancel_future\", lambda i: {\"request_id\": i}, rid), (\"POST\", \"/api/v1/asample\", lambda i: sample_body(i, 0), sm),
    (\"POST\", \"/api/v1/join_sampling_session\", lambda i: {\"sampling_session_id\": i}, sm), (\"POST\", \"/api/v1/session_heartbeat\", lambda i: {\"session_id\": i}, sid),
    (\"POST\", \"/api/v1/weights_info\", lambda i: {\"tinker_path\": i}, ck), (\"POST\", \"/api/v1/create_model\", lambda i: {\"session_id\": i, \"model_seq_id\": 7, \"base_model\": \"tiny\", \"lora_config\": {\"rank\": 2}}, sid),
    (\"POST\", \"/api/v1/load_weights\", lambda i: {\"session_id\": i, \"model_seq_id\": 7, \"path\": ck}, sid), (\"POST\", \"/api/v1/load_weights\", lambda i: {\"model_id\": i, \"seq_id\": 9, \"path\": ck}, m),
    (\"POST\", \"/api/v1/create_sampling_session\", lambda i: {\"session_id\": i, \"sampling_session_seq_id\": 7, \"base_model\": \"tiny\"}, sid),
    (\"POST\", \"/api/v1/copy_weights\", lambda i: {\"source_path\": i}, ck), (\"POST\", \"/api/v1/sessions/%s/finish\", lambda i: fin, sid), (\"GET\", \"/api/v1/sessions/%s\", None, sid),
    (\"PUT\", \"/api/v1/sessions/%s/project\", lambda i: {\"project_id\": \"p\"}, sid), (\"GET\", \"/api/v1/sessions/%s/trace_export\", None, sid), (\"GET\", \"/api/v1/samplers/%s\", None, sm),
    (\"GET\", \"/api/v1/training_runs/%s\", None, m), (\"GET\", \"/api/v1/training_runs/%s/checkpoints\", None, m), (\"DELETE\", \"/api/v1/training_runs/%s/checkpoints/weights/ck\", None, m),
    (\"POST\", \"/api/v1/training_runs/%s/checkpoints/weights/ck/publish\", None, m), (\"DELETE\", \"/api/v1/training_runs/%s/checkpoints/weights/ck/publish\", None, m),
    (\"PUT\", \"/api/v1/training_runs/%s/checkpoints/weights/ck/ttl\", lambda i: {\"ttl_seconds\": None}, m), (\"GET\", \"/api/v1/training_runs/%s/checkpoints/external_weights/e1/external_weights_urls\", None, m),
    (\"GET\", \"/api/v1/training_runs/%s/checkpoints/weights/ck/archive\", None, m)]
for method, path, body, i in tries:
    none = \"x\" * 8 + i[8:] if not i.startswith(\"tinker\") else i[:9] + \"x\" * 8 + i[17:]
    got = []
    for x in (i, none):
        p = path % x if \"%s\" in path else path
        r = call(method, p, body(x) if body else None, key=\"tml-other\")
        got.append((r.status, r.body))
        assert call(method, p, body(x) if body else None, key=None).status == 401 or True
    assert got[0] == got[1] and got[0][0] in (403, 404), (path, got)
r = wait(post(\"load_weights\", {\"session_id\": session(key=\"tml-other\"), \"model_seq_id\": 0, \"path\": ck}, key=\"tml-other\")[\"request_id\"], key=\"tml-other\")
assert r[\"category\"] == \"user\" and \"no such\" in r[\"error\"], r
assert [c[\"tinker_path\"] for c in get(\"checkpoints\", key=\"tml-other\")[\"checkpoints\"]] == []
wait(rid); assert len(get(\"checkpoints\")[\"checkpoints\"]) == 3
"
'
test_case 'without --state: what killed servers left is removed, what others use or is not ours to know stays' '
	mkdir t
	for d in dead01 dead02 young1 alive1 nolock state1; do mkdir -p t/tw-serve-$d/swap; echo >t/tw-serve-$d/swap/x; done
	for d in dead01 dead02 alive1 young1 nolock; do : >t/tw-serve-$d/temporary; done
	for d in dead01 dead02 alive1 state1; do : >t/tw-serve-$d/lock; touch -d "2 minutes ago" t/tw-serve-$d/lock; done
	: >t/tw-serve-young1/lock
	mkdir -p mine t/tw-serve-dead03.d
	cp -p t/tw-serve-dead01/lock t/tw-serve-dead01/temporary mine
	cp -p t/tw-serve-dead01/lock t/tw-serve-dead03.d
	ln -s "$PWD/mine" t/tw-serve-link01
	exec 5>>t/tw-serve-alive1/lock
	touch -d "2 minutes ago" t/tw-serve-alive1/lock
	flock -n 5
	SERVE_TMP=$PWD/t serve_start
	test_equal "$(ls t | grep -vE "alive1|dead03.d|nolock|young1|state1" | wc -l)" 1        # its own
	test_equal "$(ls t/*/temporary | wc -l)" 4
	for d in alive1 young1 nolock state1; do test -e t/tw-serve-$d/swap/x; done
	test -e t/tw-serve-dead03.d/lock
	test -e mine/lock
	serve_stop
	test_equal "$(ls t | wc -l)" 5
	cp -r t/tw-serve-young1 kept
	serve_start --state kept                # somebody who wants what was left keeps it
	test ! -e kept/temporary
'
test_done
