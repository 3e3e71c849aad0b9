#!/bin/sh
# stable_reinforce: what the sampler recorded is the old policy, whatever the client says.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

HELP='
def var(v):
    out = b""
    while v > 127:
        out += bytes([v & 127 | 128]); v >>= 7
    return out + bytes([v])
def field(no, v):
    if isinstance(v, int):
        return var(no << 3) + var(v)
    v = v.encode() if isinstance(v, str) else v
    return var(no << 3 | 2) + var(len(v)) + v
def tensor(v, dtype):
    return field(1, struct.pack("<%d%s" % (len(v), "f" if dtype == 1 else "q"), *v)) + field(3, dtype) + field(4, var(len(v)))
def span(what, seq, offset, n):
    return field(what, field(1, seq) + field(2, offset) + field(3, n))
# PARTS: of the targets, (1 prompt | 2 sampled, sequence, offset, length).
def proto_datum(tokens, old, adv, parts):
    d = field(1, field(1, field(1, struct.pack("<%di" % (len(tokens) - 1), *tokens[:-1]))))
    for name, v, t in (("target_tokens", tokens[1:], 2), ("logprobs", old, 1), ("advantages", adv, 1)):
        d += field(2, field(1, name) + field(2, tensor(v, t)))
    for p in parts:
        d += field(3, span(*p)) + field(4, span(*p))
    return d
def reinforce(m, seq, data, loss="stable_reinforce", config={}, forward=False):
    body = field(1, m) + field(2, seq) + b"".join(field(3, d) for d in data) + field(4, loss)
    for k, v in config.items():
        body += field(5, field(1, k) + var(2 << 3 | 1) + struct.pack("<d", v))
    if forward:
        body += field(6, 1)
    return expect(200, "POST", "/api/v1/forward_backward", body, headers={"Content-Type": "application/x-protobuf"}).json["request_id"]
def drawn(sm, n, temp, record=True, **kw):
    b = sample_body(sm, n, prompt=PROMPT, n=2, tokens=6)
    b["sampling_params"].update(temperature=temp, **kw)
    r = post("asample", dict(b, record_stability_info=record))
    return list(zip(r["sample_sequence_ids"], wait(r["request_id"])["sequences"]))
PROMPT = [5, 9, 3, 77]
ADV = [1.5, -0.75]
def data(got, old=None):
    out = []
    for (sid, q), a in zip(got, ADV):
        n = len(q["tokens"])
        lp = [0.0] * 3 + (old or q["logprobs"])
        out.append(proto_datum(PROMPT + q["tokens"], lp, [0.0] * 3 + [a] * n, [(1, sid, 1, 3), (2, sid, 0, n)]))
    return out
def by_hand(r, got, lo=0, hi=2, kl=0.01):
    import math
    total = 0
    for o, (sid, q), a in zip(r["loss_fn_outputs"], got, ADV):
        for p, old in zip(o["logprobs"]["data"][3:], q["logprobs"]):
            total += -min(max(math.exp(p - old), lo), hi) * a * p + kl / 2 * (p - old) ** 2
    return total
def near(a, b):
    assert abs(a - b) <= 1e-5 * max(1, abs(b)), (a, b)
'
export HELP

test_case 'on the policy that was sampled the ratio is 1 at any temperature; off it, the formula' '
	serve_start --state st
	ask "exec(os.environ[\"HELP\"])
m = create(session()); s = sampler(m, 1, 0)
got = drawn(s, 0, 0.7)
on = wait(reinforce(m, 2, data(got), forward=True))
assert on[\"loss_fn_output_type\"] == \"TwinkleStableReinforce\" and on[\"metrics\"][\"twinkle_stable_reinforce:unique\"] == 1
assert [o[\"logprobs\"][\"data\"][3:] for o in on[\"loss_fn_outputs\"]] == [q[\"logprobs\"] for i, q in got]
near(on[\"metrics\"][\"loss:sum\"], by_hand(on, got))
assert on[\"metrics\"][\"sampler_kl:sum\"] == 0
wait(fb(m, 3)); wait(step(m, 4, 2e-2))
off = wait(reinforce(m, 5, data(got), forward=True))
near(off[\"metrics\"][\"loss:sum\"], by_hand(off, got))
assert abs(off[\"metrics\"][\"loss:sum\"] - on[\"metrics\"][\"loss:sum\"]) > 1e-3
lie = wait(reinforce(m, 6, data(got, [-1.0] * 6), forward=True))
assert lie[\"metrics\"] == off[\"metrics\"] and lie[\"loss_fn_outputs\"] == off[\"loss_fn_outputs\"]
set = wait(reinforce(m, 7, data(got), config={\"kl_coeff\": 0.5, \"clip_high_threshold\": 1.01, \"clip_low_threshold\": 0.99}, forward=True))
near(set[\"metrics\"][\"loss:sum\"], by_hand(set, got, 0.99, 1.01, 0.5))
assert set[\"metrics\"][\"loss:sum\"] != off[\"metrics\"][\"loss:sum\"]
# it trains: what had an advantage is likelier than before, what had none less so
gain = lambda r: sum(a * sum(o[\"logprobs\"][\"data\"][3:]) for o, a in zip(r[\"loss_fn_outputs\"], ADV))
wait(reinforce(m, 8, data(got))); wait(step(m, 9, 1e-3))
assert gain(wait(reinforce(m, 10, data(got), forward=True))) > gain(off)
"
'
test_case 'what is not recorded, not there, or not this is refused' '
	serve_start --state st
	ask "exec(os.environ[\"HELP\"])
def no(text, seq, data, mod=None):
    r = wait(reinforce(mod or m, seq, data))
    assert r[\"category\"] == \"user\" and text in r[\"error\"], r
sid = session(); m = create(sid); s = sampler(m, 1, 0)
got = drawn(s, 0, 1.0)
plain = drawn(s, 1, 1.0, False)
no(\"record_stability_info\", 2, data(plain))
no(\"record_stability_info\", 3, data([(i + \"9\", q) for i, q in got]))
i, q = got[0]
n = len(q[\"tokens\"])
no(\"has %d tokens\" % n, 4, [proto_datum(PROMPT + q[\"tokens\"], [0.0] * (n + 3), [0.0] * (n + 3), [(1, i, 1, 2), (2, i, 0, n + 1)])])
no(\"had\", 5, [proto_datum(PROMPT + [4] + q[\"tokens\"][1:], [0.0] * (n + 3), [0.0] * (n + 3), [(1, i, 1, 3), (2, i, 0, n)])])
no(\"was not sampled\", 6, [proto_datum(PROMPT + q[\"tokens\"], [0.0] * (n + 3), [1.0] * (n + 3), [(1, i, 1, 3), (2, i, 0, n)])])
no(\"provenance\", 7, [proto_datum(PROMPT + q[\"tokens\"], [0.0] * (n + 3), [0.0] * (n + 3), [(1, i, 1, 3)])])
no(\"record_stability_info\", 1, data(got), create(session()))    # another session
assert \"loss_fn_outputs\" in wait(reinforce(m, 8, data(got)))
# a turn of two: parts of both sequences in one datum
(a, x), (b, y) = got
t = PROMPT + x[\"tokens\"][:3] + [9, 9] + y[\"tokens\"][2:5]
d = proto_datum(t, [0.0] * 11, [0.0] * 3 + [1.0] * 3 + [0.0] * 2 + [1.0] * 3, [(1, a, 1, 3), (2, a, 0, 3), (1, b, 0, 2), (2, b, 2, 3)])
assert \"loss_fn_outputs\" in wait(reinforce(m, 9, [d]))
"
'
test_case 'records outlive the server, and a replay finds them' '
	serve_start --state st --snapshot-every 0
	ask "exec(os.environ[\"HELP\"])
import pickle
m = create(session()); s = sampler(m, 1, 0)
got = drawn(s, 0, 0.5)
wait(fb(m, 2)); wait(step(m, 3, 1e-2))
a = wait(reinforce(m, 4, data(got)))
wait(step(m, 5, 1e-2))
b = wait(reinforce(m, 6, data(got), forward=True))
pickle.dump((m, got, b), open(\"x\", \"wb\"))
"
	serve_stop KILL
	serve_start --state st --snapshot-every 0
	ask "exec(os.environ[\"HELP\"])
import pickle
m, got, b = pickle.load(open(\"x\", \"rb\"))
assert wait(reinforce(m, 7, data(got), forward=True)) == b
"
'
test_done
