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
