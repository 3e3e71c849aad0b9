"""A client of Twinkle's native API for tests of the server; Python's standard library only.

    c = Native("tml-a"); m = c.model("tiny"); m.ok("forward_backward", inputs=[feature([1, 2, 3])])
"""
from serve_client import *


class Native:
    def __init__(self, key="tml-test", base="tiny"):
        self.key, self.base, self.sid = key, base, None
        self.sid = self.ok("POST", "twinkle/create_session", {"metadata": None})["session_id"]

    def headers(self):
        h = {"x-request-id": "20260101_000000-abcdef01", "serve_multiplexed_model_id": "x",
             "Authorization": "Bearer " + self.key, "Twinkle-Authorization": "Bearer " + self.key}
        if self.sid:
            h["X-Twinkle-Session-Id"] = self.sid
        return h

    def call(self, method, path, body=None, timeout=300):
        return call(method, "/api/v1/" + path, body, key=None, headers=self.headers(), timeout=timeout)

    def ok(self, method, path, body=None):
        r = self.call(method, path, body)
        assert r.status == 200, (path, r.status, r.body[:500])
        return r.json

    def no(self, status, method, path, body=None):
        r = self.call(method, path, body)
        assert r.status == status, (path, r.status, r.body[:500])
        assert "Traceback" not in r.json["detail"], r.body
        return r.json["detail"]

    def sample(self, inputs, **kw):
        return self.ok("POST", "sampler/%s/twinkle/sample" % self.base, dict({"inputs": inputs}, **kw))["samples"]

    def adapter(self, name="a", rank=4, alpha=16, every=1, **kw):
        a = Adapter(self, name)
        conf = dict({"r": rank, "lora_alpha": alpha, "target_modules": "all-linear", "bias": "none",
                     "_TWINKLE_TYPE_": "LoraConfig"}, **kw)
        got = a.ok("add_adapter_to_model", config=json.dumps(conf), gradient_accumulation_steps=every)
        assert got == {"status": "ok", "adapter_name": self.sid + "-" + name}, got
        a.run = got["adapter_name"]
        return a


class Adapter:
    def __init__(self, client, name):
        self.c, self.name = client, name

    def body(self, kw):
        return dict({"adapter_name": self.name}, **kw)

    def ok(self, verb, **kw):
        return self.c.ok("POST", "model/%s/twinkle/%s" % (self.c.base, verb), self.body(kw))

    def no(self, verb, status=400, **kw):
        return self.c.no(status, "POST", "model/%s/twinkle/%s" % (self.c.base, verb), self.body(kw))

    def adamw(self, lr=1e-3, **kw):
        assert self.ok("set_optimizer", optimizer_cls="AdamW", lr=lr, **kw) is None

    def fb(self, inputs, **kw):
        return self.ok("forward_backward", inputs=inputs, **kw)["result"]

    def metric(self, **kw):
        return self.ok("calculate_metric", **kw)["result"]


def feature(ids, prompt=0):
    """Labels are shifted: label t is token t + 1; none within the prompt, none at the end."""
    labels = [ids[t + 1] if t + 1 >= max(prompt, 1) else -100 for t in range(len(ids) - 1)] + [-100]
    return {"input_ids": list(ids), "labels": labels, "attention_mask": [1] * len(ids),
            "position_ids": list(range(len(ids))), "length": len(ids)}


def chat(q, a=None):
    return {"messages": [{"role": "user", "content": q}] + ([{"role": "assistant", "content": a}] if a else [])}
