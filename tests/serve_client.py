"""A client of tw-serve for its tests; Python's standard library only.

    post("create_session", {"tags": []})["session_id"]
    expect(404, "GET", "/api/v1/nosuch")
"""
import concurrent.futures, http.client, json, os, random, re, signal, socket, struct, sys, threading, time

URL = os.environ["URL"]
KEY = os.environ.get("TW_KEY", "tml-test")


class Unix(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def where():
    host, port = URL.split("://")[1].rsplit(":", 1)
    return host.strip("[]"), int(port)


def eventually(true, seconds=300):
    """Until it is so: machines that run tests may be slow, or busy."""
    end = time.time() + seconds
    while not true():
        assert time.time() < end, "it never came true"
        time.sleep(0.05)


def connect(timeout=300):
    if URL.startswith("unix:"):
        return Unix(URL[5:], timeout)
    if URL.startswith("https:"):
        import ssl
        return http.client.HTTPSConnection(*where(), timeout=timeout, context=ssl._create_unverified_context())
    return http.client.HTTPConnection(*where(), timeout=timeout)


def raw(timeout=300):
    return socket.create_connection(where(), timeout)


class Reply:
    def __init__(self, r):
        self.status, self.body, self.headers = r.status, r.read(), r.headers

    @property
    def json(self):
        return json.loads(self.body)


def call(method, path, body=None, key=KEY, con=None, headers={}, timeout=300):
    c = con or connect(timeout)
    h = dict(headers)
    if key is not None:
        h["X-API-Key"] = key
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
        h.setdefault("Content-Type", "application/json")
    c.request(method, path, body, h)
    r = Reply(c.getresponse())
    if con is None:
        c.close()
    return r


def expect(status, method, path, body=None, **kw):
    r = call(method, path, body, **kw)
    assert r.status == status, (method, path, r.status, r.body[:300], "not", status)
    if r.status >= 400:
        assert int(r.headers["Content-Length"]) > 0 and r.json["detail"], r.body
    return r


def post(what, body, **kw):
    return expect(200, "POST", "/api/v1/" + what, body, **kw).json


def get(what, **kw):
    return expect(200, "GET", "/api/v1/" + what, **kw).json


def session(**kw):
    return post("create_session", {"tags": [], "sdk_version": "0", "type": "create_session"}, **kw)["session_id"]


def metric(name, key=KEY):
    for line in expect(200, "GET", "/metrics", key=key).body.decode().split("\n"):
        if line.startswith(name + " "):
            return float(line.split()[-1])
    raise KeyError(name)


def wait(rid, accept="application/json", **kw):
    """Polls until the result is there, through restarts of the server."""
    while True:
        try:
            r = call("POST", "/api/v1/retrieve_future", {"request_id": rid, "allow_metadata_only": True},
                     headers={"Accept": accept}, **kw)
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
            continue
        if r.status != 408:
            assert r.status == 200, (r.status, r.body)
            return r.json if r.headers["Content-Type"] == "application/json" else r.body


def create(sid, n=0, rank=4, **kw):
    r = post("create_model", {"session_id": sid, "model_seq_id": n, "base_model": "tiny", "type": "create_model",
             "lora_config": {"rank": rank, "train_unembed": True, "train_mlp": True, "train_attn": True}}, **kw)
    got = wait(r["request_id"], **({"key": kw["key"]} if "key" in kw else {}))
    assert got.get("model_id") == "%s:train:%d" % (sid, n), got
    return got["model_id"]


def datum(tokens, weights=None):
    n = len(tokens)
    vec = lambda v, t: {"data": v, "dtype": t, "shape": [n]}
    return {"model_input": {"chunks": [{"tokens": tokens, "type": "encoded_text"}]}, "loss_fn_inputs": {
        "target_tokens": vec(tokens[1:] + [7], "int64"), "weights": vec(weights or [1.0] * n, "float32")}}


def fb_body(model, seq, tokens=(1, 2, 3, 4, 5), key="forward_backward_input"):
    return {key: {"data": [datum(list(tokens))], "loss_fn": "cross_entropy", "loss_fn_config": {}},
            "model_id": model, "seq_id": seq}


def fb(model, seq, tokens=(1, 2, 3, 4, 5), **kw):
    return post("forward_backward", fb_body(model, seq, tokens), **kw)["request_id"]


def step(model, seq, lr=1e-4, **kw):
    return post("optim_step", {"adam_params": {"learning_rate": lr}, "model_id": model, "seq_id": seq,
                "type": "optim_step"}, **kw)["request_id"]


def save(model, seq, name, what="save_weights", **kw):
    return post(what, dict({"model_id": model, "path": name, "seq_id": seq, "type": what}, **kw))["request_id"]


def sampler(model, seq, n, **kw):
    r = wait(post("save_weights_for_sampler", {"model_id": model, "sampling_session_seq_id": n, "kind": "snapshot",
                  "seq_id": seq, "type": "save_weights_for_sampler"}, **kw)["request_id"], **kw)
    return r["sampling_session_id"]


def sample_body(session, seq, prompt=(1, 2, 3), n=1, tokens=4, **kw):
    return dict({"num_samples": n, "prompt": {"chunks": [{"tokens": list(prompt), "type": "encoded_text"}]},
                 "sampling_params": {"max_tokens": tokens, "seed": 1, "temperature": 1.0, "stop": []},
                 "sampling_session_id": session, "seq_id": seq, "type": "sample"}, **kw)


def sample(session, seq, *a, **kw):
    key = {"key": kw.pop("key")} if "key" in kw else {}
    return post("asample", sample_body(session, seq, *a, **kw), **key)
