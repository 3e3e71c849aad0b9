def oai(path, status=200, **body):
    return expect_oai(status, path, {"model": "tiny", **body})
def expect_oai(status, path, body, key=KEY):
    r = call("POST", "/v1/" + path, body, key=None, headers={"Authorization": "Bearer " + key})
    assert r.status == status, (r.status, r.body[:400])
    if status >= 400:
        assert r.json["error"]["message"]
    return r.json
def stream(path, **body):
    r = call("POST", "/v1/" + path, {"model": "tiny", "stream": True, **body})
    assert r.status == 200 and r.headers["Content-Type"] == "text/event-stream", r.body
    lines = [x for x in r.body.decode().split("\n\n") if x]
    assert all(x.startswith("data: ") for x in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(x[6:]) for x in lines[:-1]]
def user(text):
    return [{"role": "user", "content": text}]
