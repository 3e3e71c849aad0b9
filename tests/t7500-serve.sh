#!/bin/sh
# The server as a program: start, addresses, keys, sessions, end.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

test_case 'it says where it listens, answers at once, and SIGTERM ends it with 0' '
	serve_start
	ask "
assert get(\"healthz\") == {\"status\": \"ok\"}
caps = get(\"get_server_capabilities\")[\"supported_models\"]
assert [m[\"model_name\"] for m in caps] == [\"tiny\"] and caps[0][\"trainable\"], caps
expect(404, \"GET\", \"/api/v1/nosuch\")
expect(405, \"GET\", \"/api/v1/create_session\")
"
	test_equal "$(wc -l <serve.out | tr -d " ")" 1
	serve_stop
	test_equal $STATUS 0
'
test_case 'sessions: made once for an idempotency key, kept by heartbeats, finished for good' '
	serve_start --session-timeout 2
	ask "
a = session(headers={\"X-Idempotency-Key\": \"k1\"})
assert a == session(headers={\"X-Idempotency-Key\": \"k1\"})
assert a != session(headers={\"X-Idempotency-Key\": \"k2\"})
assert a != session(headers={\"X-Idempotency-Key\": \"k1\"}, key=\"tml-other\")
beat = lambda sid, status, **kw: expect(status, \"POST\", \"/api/v1/session_heartbeat\", {\"session_id\": sid}, **kw)
beat(a, 200)
x = beat(a, 403, key=\"tml-other\").body
assert x == beat(\"0\" * 36, 403).body
done = {\"reason\": {\"type\": \"errored\"}, \"detail\": None}
expect(403, \"POST\", \"/api/v1/sessions/%s/finish\" % a, done, key=\"tml-other\")
expect(204, \"POST\", \"/api/v1/sessions/%s/finish\" % a, done)
expect(204, \"POST\", \"/api/v1/sessions/%s/finish\" % a, {\"reason\": {\"type\": \"success\"}})
assert \"errored\" in beat(a, 410).json[\"detail\"]
def beats(b):
    for i in range(8):
        t = time.time()
        time.sleep(0.4)
        status = call(\"POST\", \"/api/v1/session_heartbeat\", {\"session_id\": b}).status
        if status != 200:
            assert time.time() - t > 1, status      # else the machine was too slow for this
            return False
    return True
eventually(lambda: beats(session()))
b, pause = session(), 3.2
while call(\"POST\", \"/api/v1/session_heartbeat\", {\"session_id\": b}).status == 200:
    time.sleep(pause)
    pause *= 2
assert \"expired\" in beat(b, 410).json[\"detail\"]
assert post(\"telemetry\", {\"events\": []}) == {\"status\": \"accepted\"}
assert post(\"client/config\", {\"sdk_version\": \"0.38.0\"})[\"use_pyqwest_transport\"] is False
assert post(\"client/dynamic_config\", {\"sdk_version\": \"0.38.0\"})[\"sample_cancel_enabled\"] is True
"
'
test_case 'state outlives kill -9; a second server on it is refused' '
	serve_start --state st
	sid=$(ask "print(session())")
	test_exit 1 tw-serve -m tiny --listen 127.0.0.1:0 --state st >out 2>err
	test_text err "another server uses this state"
	serve_stop KILL
	serve_start --state st
	ask "post(\"session_heartbeat\", {\"session_id\": \"$sid\"})"
	serve_stop
	printf "PRAGMA user_version = 99" | sqlite3 st/state.db || exit 0
	test_exit 1 tw-serve -m tiny --state st --listen 127.0.0.1:0 2>err
	test_text err "newer tw-serve"
'
test_case 'more devices than one are refused, not forgotten' '
	test_exit 2 tw-serve -m tiny --nproc 2 2>err
	test_text err "--nproc: this build serves from one device"
	test_exit 2 tw-serve -m tiny --mesh dp=1,tp=2 2>err
	test_text err "--mesh: this build serves from one device"
	test_exit 2 tw-serve -m tiny --mesh zp=1 2>err
	test_text err "unknown key"
	serve_start --nproc 1 --mesh dp=1,fsdp=1
'
test_case 'a keys file: rights, revocation without a restart, bad lines' '
	printf "# keys\ntml-a alice rights=train,sample\ntml-b bob rights=admin adapters=3 tokens-per-minute=100\n" >keys
	test_exit 1 tw-serve -m tiny --listen 127.0.0.1:0 --keys keys 2>err
	test_text err "0600"
	chmod 600 keys
	serve_start --keys keys
	ask "
ok = lambda key, status=200, path=\"/api/v1/client/config\": expect(status, \"POST\", path, {}, key=key)
ok(\"tml-a\"); ok(\"tml-b\")
for bad in (None, \"\", \"tml-c\", \"tml-a \" * 2, \"alice\", \"TML-A\"):
    ok(bad, 401)
expect(200, \"POST\", \"/api/v1/client/config\", {}, key=None, headers={\"Authorization\": \"Bearer tml-a\"})
expect(401, \"GET\", \"/metrics\", key=None)
expect(403, \"GET\", \"/metrics\", key=\"tml-a\")
expect(200, \"GET\", \"/metrics\", key=\"tml-b\")
expect(200, \"GET\", \"/healthz\", key=None)
def wait(key, status):
    end = time.time() + 300
    while call(\"POST\", \"/api/v1/client/config\", {}, key=key).status != status:
        assert time.time() < end
        time.sleep(0.1)
open(\"keys\", \"w\").write(\"tml-b bob rights=admin\n\")
wait(\"tml-a\", 401)
open(\"keys\", \"w\").write(\"tml-c carol\nwrong\n\")
eventually(lambda: \"keys:2: \" in open(\"serve.err\").read())
ok(\"tml-b\"); ok(\"tml-c\", 401)
"
	test_text serve.err "keys:2: "
	test_no_text serve.err "tml-"
	serve_stop
	for line in "tml-x ../y" "tml-x y rights=all" "tml-x y disk=1Z" "tml-x y adapters=-1" "tml-x"; do
	    echo "$line" >keys
	    test_exit 1 tw-serve -m tiny --listen 127.0.0.1:0 --keys keys 2>err
	    test_text err "keys:1: "
	done
	printf "tml-x y\ntml-x z\n" >keys
	test_exit 1 tw-serve -m tiny --listen 127.0.0.1:0 --keys keys 2>err
	test_text err "twice"
'
test_case 'without keys it listens on loopback addresses and sockets only' '
	test_exit 2 tw-serve -m tiny --listen 0.0.0.0:0 2>err
	test_text err "needs --keys"
	for l in nonsense 127.0.0.1 127.0.0.1: 127.0.0.1:99999 127.0.0.1:-1 localhost:x :8000; do
	    test_exit 2 tw-serve -m tiny --listen $l 2>err
	    test_equal "$(cat err)" "tw-serve: --listen: $l is not HOST:PORT or unix:PATH"
	done
	test_exit 1 tw-serve -m tiny --listen no.such.host.invalid:8000 2>err
	test_text err "tw-serve: --listen: no.such.host.invalid: "
	test_exit 2 tw-serve -m tiny --listen nonsense 2>err
	test_exit 2 tw-serve -m tiny --tls-cert x 2>err
	(
	    SERVE_LISTEN=unix:sock serve_start
	    ask "get(\"healthz\"); session()"
	    test_exit 1 tw-serve -m tiny --listen unix:sock 2>err
	    serve_stop KILL
	)
	SERVE_LISTEN=unix:sock serve_start
	ask "get(\"healthz\")"
	serve_stop
	[ ! -e sock ]
'
test_case 'TLS by files' '
	command -v openssl >/dev/null || test_skip "no openssl"
	openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost 2>/dev/null
	serve_start --tls-cert cert.pem --tls-key key.pem
	case $URL in https://*) ;; *) exit 1 ;; esac
	ask "session(); get(\"healthz\")"
	test_exit 1 tw-serve -m tiny --listen 127.0.0.1:0 --tls-cert key.pem --tls-key cert.pem 2>err
'
test_case 'an access log in JSON lines, without keys; HUP makes it anew' '
	serve_start --access-log log --name Org/Model --name other
	ask "
session()
expect(404, \"GET\", \"/api/v1/x?token=secret\")
assert [m[\"model_name\"] for m in get(\"get_server_capabilities\")[\"supported_models\"]] == [\"Org/Model\", \"other\"]
eventually(lambda: len(open(\"log\").readlines()) == 3)
rows = [json.loads(l) for l in open(\"log\")]
assert [(r[\"path\"], r[\"status\"]) for r in rows] == [(\"/api/v1/create_session\", 200), (\"/api/v1/x\", 404), (\"/api/v1/get_server_capabilities\", 200)], rows
os.rename(\"log\", \"old\")
os.kill(int(os.environ[\"PID\"]), signal.SIGHUP)
eventually(lambda: os.path.exists(\"log\"))
session()
eventually(lambda: len(open(\"log\").readlines()) == 1)
"
	test_no_text old "tml-"
	test_no_text old "secret"
'
test_case 'an access log that cannot be written is told once; the server goes on' '
	[ -e /dev/full ] || test_skip "no /dev/full"
	serve_start --access-log /dev/full --alert "printf \"%s %s\\n\" >>alerts"
	ask "
for i in range(3):
    session()
eventually(lambda: os.path.exists(\"alerts\") and os.path.getsize(\"alerts\") > 0)
"
	test_equal "$(cat alerts)" "log /dev/full: cannot write: No space left on device; requests are missing in it"
	test_equal "$(grep -c "log: /dev/full" serve.err)" 1
'
test_case 'bodies: a limit, whole, truncated, compressed, and how many' '
	serve_start --max-body 1 --max-adapters 2 --max-rank 8 --max-model-len 64 --poll-hold 1 --gap-timeout 1 \
	    --result-ttl 5 --snapshot-every 2 --dtype f32 --device cpu --threads 1 --alert true
	ask "
path, pad = \"/api/v1/telemetry\", lambda n: b\"{}\" + b\" \" * (n - 2)
for n, status in ((0, 200), (2, 200), ((1 << 20) - 1, 200), (1 << 20, 200), ((1 << 20) + 1, 413), (3 << 20, 413)):
    expect(status, \"POST\", path, pad(n))
def chunked(n):
    c = connect()
    c.request(\"POST\", path, (b\" \" * 65536 for i in range(n // 65536)), {\"X-API-Key\": KEY}, encode_chunked=True)
    return c.getresponse().status
assert chunked(1 << 20) == 200 and chunked(2 << 20) == 413
def say(text, wait=300):
    s = raw(wait)
    s.sendall(text)
    return s.recv(4096)
head = b\"POST %s HTTP/1.1\\r\\nHost: x\\r\\nX-API-Key: tml-x\\r\\n\" % path.encode()
assert b\" 413 \" in say(head + b\"Content-Length: 1000000000000\\r\\n\\r\\n\")
assert b\" 415 \" in say(head + b\"Content-Encoding: gzip\\r\\nContent-Length: 3\\r\\n\\r\\nabc\")
s = raw(); s.sendall(head + b\"Content-Length: 100\\r\\n\\r\\nabc\"); s.close()
expect(400, \"POST\", path, b\"not zstd\", headers={\"Content-Encoding\": \"zstd\"})
for junk in (b\"\\x16\\x03\\x01\" * 50, b\"GET\", b\"\\r\\n\" * 99, b\"GET / HTTP/9.9\\r\\n\\r\\n\", b\"A\" * 100000):
    s = raw(); s.sendall(junk); s.close()
for p in (\"/%\", \"/%zz\", \"/%00\", \"//\", \"/\" * 300, \"/api/v1/../v1/healthz\", \"/api/v1/%2e%2e/x\", \"/%ff%fe\", \"/\" + \"a\" * 9000):
    expect(404, \"GET\", p)
expect(400, \"POST\", \"/api/v1/create_session\", b\"{\")
expect(400, \"POST\", \"/api/v1/create_session\", b\"[1]\")
expect(400, \"POST\", \"/api/v1/create_session\", b\"{\\\"project_id\\\": 3}\")
get(\"healthz\")
"
'
test_case '64 MiB, plain and as a zstd frame of a few bytes, are taken, kept, and read again after kill -9' '
	serve_start --state st --gap-timeout 3600
	ask "
def frame(b, n):
    out = b\"\\x28\\xb5\\x2f\\xfd\\xa0\" + struct.pack(\"<I\", n) + struct.pack(\"<I\", len(b) << 3)[:3] + b
    n -= len(b)
    while n:
        k = min(n, 1 << 17)
        n -= k
        out += struct.pack(\"<I\", k << 3 | 2 | (not n))[:3] + b\" \"
    return out
m, path, most = create(session()), \"/api/v1/forward_backward\", 64 << 20
def send(seq, n, status, coded):
    b = json.dumps(fb_body(m, seq)).encode()
    r = expect(status, \"POST\", path, frame(b, n) if coded else b + b\" \" * (n - len(b)), headers={\"Content-Encoding\": \"zstd\"} if coded else {})
    return r.json.get(\"request_id\")
ids = [send(2, most, 200, False), send(3, most, 200, True)]
for coded in (False, True):
    send(4, most + 1, 413, coded)
open(\"ids\", \"w\").write(json.dumps([m, ids]))
"
	serve_stop KILL
	serve_start --state st --gap-timeout 3600
	ask "
m, ids = json.load(open(\"ids\"))
ids.append(fb(m, 1))
got = [wait(i)[\"loss_fn_outputs\"] for i in ids]
assert got[0] == got[1] == got[2]
"
'
test_done
