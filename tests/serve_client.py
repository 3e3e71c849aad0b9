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


def connect(timeout=60):
    if URL.startswith("unix:"):
        return Unix(URL[5:], timeout)
    if URL.startswith("https:"):
        import ssl
        return http.client.HTTPSConnection(*where(), timeout=timeout, context=ssl._create_unverified_context())
    return http.client.HTTPConnection(*where(), timeout=timeout)


def raw(timeout=60):
    return socket.create_connection(where(), timeout)


class Reply:
    def __init__(self, r):
        self.status, self.body, self.headers = r.status, r.read(), r.headers

    @property
    def json(self):
        return json.loads(self.body)


def call(method, path, body=None, key=KEY, con=None, headers={}, timeout=60):
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
