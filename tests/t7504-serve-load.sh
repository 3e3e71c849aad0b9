#!/bin/sh
# Tenants that train and sample at once, and a server that is killed under them again and again: what
# they get, and the adapters that they save, are those of a server that lives.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

cat >"$TMP/load.py" <<'EOF2'
import hashlib
TENANTS, STEPS = 4, 10
def again(f):
    while True:
        try:
            return f()
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
def tenant(k):
    key, rng, out, seq, ns = {"key": "tml-%d" % k}, random.Random(k), [], 0, 0
    sid = again(lambda: session(headers={"X-Idempotency-Key": "s%d" % k}, **key))
    m = again(lambda: create(sid, **key))
    for i in range(STEPS):
        toks = [rng.randrange(500) for _ in range(rng.randrange(8, 40))]
        a = again(lambda: fb(m, seq + 1, toks, **key))
        b = again(lambda: step(m, seq + 2, 1e-4, **key))
        seq += 2
        if i % 4 == 3:
            seq += 1
            sm = again(lambda: sampler(m, seq, ns, **key))
            ns += 1
            s = [again(lambda: sample(sm, j, toks[:6], 2, 6, **key))["request_id"] for j in range(3)]
            out += [wait(x, **key) for x in s]
        out += [wait(a, **key), wait(b, **key)]
    r = again(lambda: post("save_weights", {"model_id": m, "seq_id": seq + 1, "path": "end"}, **key))
    assert "path" in wait(r["request_id"], **key)
    return out
with concurrent.futures.ThreadPoolExecutor(TENANTS) as ex:
    text = json.dumps(list(ex.map(tenant, range(TENANTS))))
assert '"error"' not in text, text[text.index('"error"') - 200:][:600]
print(hashlib.sha256(text.encode()).hexdigest())
EOF2
adapters()
{
	for f in st/checkpoints/*/adapter_model.safetensors; do cksum <"$f"; done | sort
}
test_case 'killed under load, nothing that was acknowledged is lost' '
	serve_start --state st --snapshot-every 4
	want=$(ask "exec(open(\"$TMP/load.py\").read())")
	files=$(adapters)
	test_equal "$(echo "$files" | wc -l | tr -d " ")" 4
	serve_stop
	rm -rf st
	serve_start --state st --snapshot-every 4
	SERVE_LISTEN=${URL#http://}
	ask "exec(open(\"$TMP/load.py\").read())" >got &
	load=$!
	for i in 4 9 6 12 5 14 8 11 7 10; do
	    sleep $((i / 10)).$((i % 10))
	    serve_stop KILL
	    serve_start --state st --snapshot-every 4
	done
	wait $load
	test_equal "$(cat got)" "$want"
	test_equal "$(adapters)" "$files"
	serve_stop
	test_equal $STATUS 0
'
test_done
