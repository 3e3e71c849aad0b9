#!/bin/sh
# The page at / and what it shows: the server's state, runs and their curves, each tenant its own.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

test_case 'the page is behind the keys, a browser is asked for one, and nothing comes from elsewhere' '
	serve_start
	ask "
import base64
for p in (\"/\", \"/app.js\", \"/style.css\"):
    r = call(\"GET\", p, key=None)
    assert r.status == 401 and r.headers[\"WWW-Authenticate\"].startswith(\"Basic \"), (p, r.status)
    basic = \"Basic \" + base64.b64encode(b\"me:tml-test\").decode()
    r = call(\"GET\", p, key=None, headers={\"Authorization\": basic})
    assert r.status == 200 and \"default-src \" in r.headers[\"Content-Security-Policy\"]
    assert b\"http://\" not in r.body.replace(b\"http://www.w3.org/2000/svg\", b\"\") and b\"https://\" not in r.body, p
assert call(\"GET\", \"/\", key=None, headers={\"Authorization\": \"Basic !!\"}).status == 401
assert call(\"GET\", \"/api/v1/overview\", key=None).status == 401
assert \"WWW-Authenticate\" not in call(\"GET\", \"/api/v1/overview\", key=None).headers
assert call(\"GET\", \"/../Makefile\").status in (400, 404) and call(\"GET\", \"/%2e%2e/Makefile\").status == 404
"
'
test_case 'a step adds to the curves of its run, clients add their own values, and all outlive the server' '
	serve_start --state st
	ask "
m = create(session())
for i in range(3):
    wait(fb(m, 2 * i + 1))
    wait(step(m, 2 * i + 2, lr=1e-3))
o = get(\"overview\")
run = o[\"runs\"][0]
assert run[\"id\"] == m and run[\"step\"] == 3 and run[\"rank\"] == 4 and run[\"state\"] == \"live\", run
for i in range(100):                    # the engine tells its sums after each turn
    o = o if o[\"server\"][\"steps\"] == 3 else time.sleep(0.05) or get(\"overview\")
assert o[\"server\"][\"steps\"] == 3, o[\"server\"]
assert o[\"server\"][\"model\"] == \"tiny\" and o[\"server\"][\"memory\"] > 0
assert [t[\"adapters\"] for t in o[\"tenants\"]] == [1]
p = get(\"runs/%s/points\" % m)
assert [x[0] for x in p[\"loss\"]] == [1, 2, 3] and p[\"loss\"][2][1] < p[\"loss\"][0][1], p
assert abs(p[\"loss\"][2][1] - run[\"loss\"]) < 1e-12 and all(x[1] > 0 for x in p[\"grad_norm\"])
expect(204, \"POST\", \"/api/v1/runs/%s/points\" % m, {\"step\": 2, \"values\": {\"reward\": 0.5, \"kl\": 1e-3}})
bad = [{}, {\"step\": 1}, {\"step\": -1, \"values\": {\"a\": 1}}, {\"step\": 1, \"values\": {}}, {\"step\": 1, \"values\": {\"a b\": 1}},
       {\"step\": 1, \"values\": {\"a\": \"x\"}}, {\"step\": 1, \"values\": {str(i): 1 for i in range(17)}}]
for b in bad:
    expect(400, \"POST\", \"/api/v1/runs/%s/points\" % m, b)
for who in (\"GET\", \"POST\"):
    expect(404, who, \"/api/v1/runs/%s/points\" % m, {\"step\": 1, \"values\": {\"a\": 1}} if who == \"POST\" else None, key=\"tml-other\")
assert get(\"overview\", key=\"tml-other\")[\"runs\"] == []
open(\"run\", \"w\").write(m)
"
	serve_stop
	serve_start --state st
	ask "
assert get(\"overview\")[\"runs\"][0][\"step\"] == 3 and get(\"overview\")[\"runs\"][0][\"loss\"] > 0
p = get(\"runs/%s/points\" % open(\"run\").read())
assert sorted(p) == [\"grad_norm\", \"kl\", \"loss\", \"reward\"] and p[\"reward\"][0][:2] == [2, 0.5] and len(p[\"loss\"]) == 3, p
"
'
test_case 'the loss that is shown is a mean by weights, however a client scales them, or what it says' '
	serve_start
	ask "
s, seen = session(), []
t = [1, 2, 3, 4, 5, 6]
for i, w in enumerate(([1.0] * 6, [0.25] * 6, [0, 0, 0, 0, 8.0, 8.0], [0, 0, 0, 0, 1.0, 1.0])):
    m = create(s, i)
    sums = [wait(post(\"forward_backward\", {\"forward_backward_input\": {\"data\": [datum(t, w)] * 2, \"loss_fn\": \"cross_entropy\"},
                     \"model_id\": m, \"seq_id\": k})[\"request_id\"])[\"metrics\"][\"loss:sum\"] for k in (1, 2)]
    wait(step(m, 3))
    seen.append(get(\"runs/%s/points\" % m)[\"loss\"][0][1])
    assert abs(seen[-1] - sum(sums) / (4 * sum(w))) < 1e-6 * seen[-1], (seen, sums)
assert abs(seen[0] - seen[1]) < 1e-6 and abs(seen[2] - seen[3]) < 1e-6 and abs(seen[0] - seen[2]) > 1e-3, seen
wait(fb(m, 4))
b = {\"adam_params\": {\"learning_rate\": 1e-4}, \"model_id\": m, \"type\": \"optim_step\"}
wait(post(\"optim_step\", dict(b, seq_id=5, loss=-0.125))[\"request_id\"])
assert get(\"runs/%s/points\" % m)[\"loss\"][1][1] == -0.125
assert [r[\"loss\"] for r in get(\"overview\")[\"runs\"] if r[\"id\"] == m] == [-0.125]
"
'
test_case 'tw-train on the server: the page shows the loss that it prints, whatever its kind and scale' '
	awk -f "$TOP/examples/sums.awk" -v n=12 -v as=chat >t.jsonl
	awk -f "$TOP/examples/sums.awk" -v n=8 -v as=pair >p.jsonl
	awk -f "$TOP/examples/sums.awk" -v n=4 >q.jsonl
	tw-sample -q -m tiny -n 4 --max-tokens 6 q.jsonl | tw-reward -q length,min=9,max=10,span=12 --advantage grpo >r.jsonl
	serve_start
	far() { TW_API_KEY=tml-test TW_SERVER=$URL tw-train -q -m tiny --lora r=2 --lr 1e-3 --batch 4 --steps 3 -o "$@"; }
	far token t.jsonl
	far sequence --loss-scale sequence t.jsonl
	far sum --loss-scale sum t.jsonl
	far dpo --loss dpo,beta=0.5 p.jsonl
	far grpo --loss grpo,beta=0.04 --publish off r.jsonl
	ask "
runs = get(\"overview\")[\"runs\"]
assert len(runs) == 5, runs
for name, r in zip((\"token\", \"sequence\", \"sum\", \"dpo\", \"grpo\"), reversed(runs)):
    own = [(x[\"step\"], x[\"loss\"], x[\"grad_norm\"]) for x in map(json.loads, open(name + \"/metrics.jsonl\")) if x[\"event\"] == \"step\"]
    p = get(\"runs/%s/points\" % r[\"id\"])
    page = [(a[0], a[1], b[1]) for a, b in zip(p[\"loss\"], p[\"grad_norm\"])]
    assert len(own) == 3 and page == own and r[\"loss\"] == own[-1][1], (name, own, page)
"
'
test_case 'an administrator by the keys file sees all tenants; others see themselves' '
	printf "tml-a alice\ntml-b bob rights=train,sample\ntml-root root rights=admin\n" >keys
	chmod 600 keys
	serve_start --keys keys
	ask "
m = create(session(key=\"tml-b\"), key=\"tml-b\")
assert [r[\"id\"] for r in get(\"overview\", key=\"tml-root\")[\"runs\"]] == [m]
assert get(\"overview\", key=\"tml-b\")[\"runs\"][0][\"tenant\"] == \"bob\"
assert {t[\"name\"] for t in get(\"overview\", key=\"tml-b\")[\"tenants\"]} == {\"bob\"}
assert \"bob\" in {t[\"name\"] for t in get(\"overview\", key=\"tml-root\")[\"tenants\"]}
expect(403, \"POST\", \"/api/v1/runs/%s/points\" % m, {\"step\": 1, \"values\": {\"a\": 1}}, key=\"tml-root\")
"
'
test_case 'in a browser: tables, curves and an answer of the model are on the screen, on a phone and in the dark' '
	command -v chromium >/dev/null || test_skip "no chromium"
	serve_start
	ASK_S=900 ask "
from browser import Browser
import os
m = create(session())
for i in range(4):
    wait(fb(m, 2 * i + 1))
    wait(step(m, 2 * i + 2, lr=1e-3))
home = os.environ[\"URL\"].replace(\"http://\", \"http://me:tml-test@\") + \"/\"
shown = \"document.body.innerText.includes(%r)\"
back = {}
for width, height, dark in ((390, 844, False), (1100, 800, True)):
    with Browser(width, height, dark) as b:
        b.open(home)
        for text in (\"Adapters in memory\", \"qwen3, 4.0M parameters\", m):
            b.until(shown % text)
        b.until(\"document.querySelector(\\\"svg[aria-label^=\\\\\\\"grad_norm, 4 points\\\\\\\"] path\\\") !== null\")
        b.until(\"document.getElementById(\\\"with\\\").options.length > 0\")
        b.value(\"say.value = \\\"Who are you?\\\"; temperature.value = 0; tokens.value = 16; ask.requestSubmit()\")
        b.until(\"document.querySelectorAll(\\\"#talk .assistant\\\").length == 1 && !send.disabled\")
        assert b.value(\"document.querySelector(\\\"#talk .assistant\\\").className\") == \"assistant\"
        assert len(b.value(\"document.querySelector(\\\"#talk .assistant\\\").textContent\")) > 3
        assert b.value(\"document.documentElement.scrollWidth\") <= width
        back[dark] = b.value(\"getComputedStyle(document.body).backgroundColor\")
        b.picture(\"%d.png\" % width)
        assert not [x for x in b.log if \"exceptionDetails\" in x], b.log
assert back[True] != back[False], back
"
'
test_done
