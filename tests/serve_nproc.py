"""Raw requests to the processor routes of tw-serve; one function a case of t7532."""
import subprocess
import serve_client
from serve_client import *

BASE = "/api/v1/processor/twinkle/"


def call(method, path, body=None, headers={}, **kw):
    return serve_client.call(method, path, body, headers={"x-request-id": "r1", **headers}, **kw)


def expect(status, method, path, body=None, headers={}, **kw):
    return serve_client.expect(status, method, path, body, headers={"x-request-id": "r1", **headers}, **kw)


def create(kind, cls, status=200, key=KEY, headers={}, **args):
    r = expect(status, "POST", BASE + "create", dict(args, processor_type=kind, class_type=cls), key=key,
               headers=headers)
    return r.json["processor_id"] if status == 200 else r.json["detail"]


def do(pid, function, status=200, key=KEY, **args):
    r = expect(status, "POST", BASE + "call", dict(args, processor_id=pid, function=function), key=key, timeout=600)
    return r.json["result"] if status == 200 else r.json["detail"]


def meta(dataset_id="", **kw):
    """As twinkle_client sends it: JSON in a text."""
    m = {"dataset_id": dataset_id, "subset_name": "default", "split": "train", "data_slice": None, "data": None}
    m.update(kw)
    s = m["data_slice"]
    if isinstance(s, range):
        m["data_slice"] = {"_slice_type_": "range", "start": s.start, "stop": s.stop, "step": s.step}
    elif s is not None:
        m["data_slice"] = {"_slice_type_": "list", "values": list(s)}
    return json.dumps(dict(m, _TWINKLE_TYPE_="DatasetMeta"))


def rows(n, **more):
    return [dict(more, query="q%d {{NAME}}" % i, response="I am {{NAME}} by {{AUTHOR}}, %d." % i) for i in range(n)]


def dataset(n=5, cls="Dataset", **kw):
    return create("dataset", cls, dataset_meta=meta(data=rows(n)), **kw)


def items(pid):
    return [do(pid, "__getitem__", idx=i) for i in range(do(pid, "__len__"))]


def drain(pid):
    assert do(pid, "__iter__") == "ok"
    out = []
    while True:
        r = call("POST", BASE + "call", {"processor_id": pid, "function": "__next__"})
        if r.status == 410:
            assert r.json["detail"] == "Iterator exhausted"
            return out
        assert r.status == 200, r.body
        out.append(r.json["result"])


def encoded(n=5, cls="Dataset", **kw):
    d = dataset(n, cls)
    assert do(d, "map", preprocess_func="SelfCognitionProcessor",
              init_args={"model_name": "Tw,in\"kle", "model_author": "Me"}) is None
    assert do(d, "set_template", **{"template_func": "Template", "model_id": "ms://tiny", "max_length": 256, **kw}) is None
    assert do(d, "encode", add_generation_prompt=False, num_proc=4) is None
    return d


def check_feature(f):
    n = f["length"]
    assert n == len(f["input_ids"]) == len(f["labels"]) and f["attention_mask"] == [1] * n
    assert f["position_ids"] == list(range(n))
    assert all(l in (-100, t) for l, t in zip(f["labels"], f["input_ids"][1:] + [-100])), f
    return f


def basics():
    d = dataset()
    assert re.fullmatch("pid:[0-9a-f]{32}", d)
    assert do(d, "__len__") == 5 and items(d) == rows(5)
    assert do(d, "__getitem__", idx=-1) == rows(5)[4]
    assert "row 5" in do(d, "__getitem__", 410, idx=5)
    assert drain(d) == rows(5)
    do(d, "map", preprocess_func="SelfCognitionProcessor", init_args=json.dumps({"model_name": "A", "model_author": "B"}))
    m = items(d)[1]["messages"]
    assert [x["role"] for x in m] == ["system", "user", "assistant"]
    assert m[2]["content"] == "I am A by B, 1." and m[1]["content"] == "q1 A", m
    assert "set_template" in do(d, "encode", 400)
    do(d, "set_template", template_cls="Template", truncation_strategy="right", max_length=20)
    do(d, "encode")
    got = items(d)
    for f in got:
        check_feature(f)
        assert f["length"] == 20 and f["messages"][0]["role"] == "system"
    # columns instead of rows; slices; a slice that goes past the end wraps
    cols = {"a": [1, 2, 3], "b": ["x", "y", "z"]}
    d = create("dataset", "Dataset", dataset_meta=meta(data=cols))
    assert items(d) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
    for s in (range(2), range(1, 8, 2), range(2, -1, -1), [0, 0, 4], range(5, 5), ()):
        d = create("dataset", "Dataset", dataset_meta=meta(data=cols, data_slice=s))
        assert [x["a"] for x in items(d)] == [i % 3 + 1 for i in s], s
    for s in (range(0, -3, -1), range(-2, 2), [-1], ["x"]):
        assert "counted from 0" in create("dataset", "Dataset", 400, dataset_meta=meta(data=cols, data_slice=s))
    d = create("dataset", "Dataset")
    assert "add_dataset" in do(d, "__len__", 400)


def mixing():
    a = create("dataset", "Dataset", dataset_meta=meta(data=[{"i": i} for i in range(5)]))
    do(a, "add_dataset", dataset_meta=meta(data=[{"i": 10 + i} for i in range(3)]))
    assert "mix_dataset" in do(a, "__len__", 400)
    assert "mix_dataset" in do(a, "encode", 400)
    do(a, "mix_dataset", interleave=True)
    assert [x["i"] for x in items(a)] == [0, 10, 1, 11, 2, 12]
    do(a, "mix_dataset", interleave=False)
    assert [x["i"] for x in items(a)] == [0, 1, 2, 3, 4, 10, 11, 12]
    do(a, "filter", filter_func="has", init_args={"key": "i"})
    assert do(a, "__len__") == 8
    d = create("dataset", "Dataset", dataset_meta=meta(data=rows(3) + rows(3)))
    do(d, "map", preprocess_func="SelfCognitionProcessor", init_args={}, remove_columns=["nothing"])
    do(d, "filter", filter_func="DedupFilter")
    assert do(d, "__len__") == 3
    do(d, "filter", filter_func="length", init_args={"max": 3}, num_proc=2)
    assert do(d, "__len__") == 0
    # what cannot be encoded goes
    d = create("dataset", "Dataset", dataset_meta=meta(data=[{"messages": 3}] + [{"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]))
    do(d, "set_template", template_func="Template")
    assert "row 0" in do(d, "encode", 400)
    do(d, "check")
    assert do(d, "__len__") == 1
    do(d, "encode")


def loader():
    d = encoded(7)
    all_ = items(d)
    l = create("dataloader", "DataLoader", dataset=d, batch_size=3, num_workers=2)
    assert do(l, "__len__") == 3
    assert "__iter__" in do(l, "__next__", 400)
    got = drain(l)
    assert [len(b) for b in got] == [3, 3, 1] and sum(got, []) == all_
    assert do(l, "get_state") == {"consumed_train_samples": 9}
    l = create("dataloader", "DataLoader", dataset=d, batch_size=3, drop_last=True, shuffle=True, seed=7)
    assert do(l, "__len__") == 2
    one, two = drain(l), drain(l)
    assert [len(b) for b in one] == [3, 3] and one != two
    ids = [f["input_ids"] for f in sum(one, [])]
    assert all(i in [f["input_ids"] for f in all_] for i in ids)
    # the same seed, the same order; resumed in the middle of the second epoch
    l = create("dataloader", "DataLoader", dataset=d, batch_size=3, drop_last=True, shuffle=True, seed=7)
    do(l, "resume_from_checkpoint", consumed_train_samples=9)
    assert do(l, "get_state") == {"consumed_train_samples": 9}
    assert drain(l) == two[1:] and drain(l) != two[1:]
    l = create("dataloader", "DataLoader", dataset=d, batch_size=3, min_batch_size=2)
    assert [len(b) for b in drain(l)] == [3, 3]
    do(l, "skip_consumed_samples", consumed_train_samples=3)
    assert sum(drain(l), []) == all_[3:6]
    # rectangles
    do(l, "set_processor", processor_cls="InputProcessor")
    (b,) = drain(l)[0]
    w = max(f["length"] for f in all_[:3])
    for i, f in enumerate(all_[:3]):
        pad = w - f["length"]
        assert b["input_ids"][i] == f["input_ids"] + [0] * pad and b["labels"][i] == f["labels"] + [-100] * pad
        assert b["attention_mask"][i] == [1] * f["length"] + [0] * pad
        assert b["position_ids"][i] == f["position_ids"] + [-1] * pad
    p = create("processor", "InputProcessor", padding_free=True, framework="transformers", device_mesh=None)
    (j,) = do(p, "__call__", inputs=all_[:2])
    assert j["input_ids"] == [all_[0]["input_ids"] + all_[1]["input_ids"]] and "attention_mask" not in j
    assert j["position_ids"] == [all_[0]["position_ids"] + all_[1]["position_ids"]]
    assert "input_ids" in do(p, "__call__", 400, inputs=[{"messages": []}])
    assert "dataset" in create("dataloader", "DataLoader", 400, batch_size=2, dataset=p)
    assert "batch_size" in create("dataloader", "DataLoader", 400, dataset=d)


def kinds():
    d = encoded(6, "LazyDataset")
    assert do(d, "__len__") == 6 and check_feature(do(d, "__getitem__", idx=3))
    it = dataset(4, "IterableDataset")
    assert "no length" in do(it, "__len__", 400) and "by number" in do(it, "__getitem__", 400, idx=0)
    assert drain(it) == rows(4) and drain(it) == rows(4)
    p = encoded(9, "PackingDataset")
    flat = [check_feature(f) for f in items(encoded(9))]
    assert "pack_dataset" in do(p, "__len__", 400)
    do(p, "pack_dataset")
    packed = items(p)
    assert len(packed) < 9 and all(len(f["input_ids"]) <= 256 for f in packed)
    assert sorted(n for f in packed for n in f["length"]) == sorted(f["length"] for f in flat)
    for f in packed:
        assert f["position_ids"] == [i for n in f["length"] for i in range(n)]
        starts = [0]
        for n in f["length"]:
            starts.append(starts[-1] + n)
        for a, b in zip(starts, starts[1:]):
            assert any(x["input_ids"] == f["input_ids"][a:b] and x["labels"] == f["labels"][a:b] for x in flat)
    # a packed row is joined, not padded
    q = create("processor", "InputProcessor")
    (j,) = do(q, "__call__", inputs=packed[:1])
    assert j["input_ids"] == [packed[0]["input_ids"]] and "attention_mask" not in j
    p = encoded(9, "IterablePackingDataset")
    assert drain(p) == packed
    assert "PackingDataset" in do(d, "pack_dataset", 400)


def classes():
    t = create("template", "Template", max_length=64, truncation_strategy="left")
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}], "k": 1}
    f = do(t, "encode", trajectory=chat)
    assert check_feature(f)["k"] == 1
    g = do(t, "batch_encode", trajectories=[chat, chat], add_generation_prompt=True)
    assert len(g) == 2 and set(g[0]["labels"]) == {-100} and g[0]["length"] > f["length"]
    text = do(t, "decode", token_ids=f["input_ids"])
    assert "Hi" in text and "Ho" in text
    do(t, "decode", 400, token_ids=[10 ** 12])
    d = dataset(2)
    p = create("preprocessor", "SelfCognitionProcessor", model_name="Z", model_author="Y")
    assert do(p, "__call__", rows=rows(1))[0]["messages"][2]["content"] == "I am Z by Y, 0."
    do(d, "map", preprocess_func=p)
    assert items(d)[1]["messages"][1]["content"] == "q1 Z"
    do(d, "set_template", template_func=t)
    do(d, "encode")
    assert all(x["length"] <= 64 for x in items(d))
    def mapped(func, row, **init):
        d = create("dataset", "Dataset", dataset_meta=meta(data=[row]))
        do(d, "map", preprocess_func=func, init_args=init)
        return items(d)[0]
    r = mapped("GSM8KProcessor", {"question": "1+1?", "answer": "so #### 1,002"}, add_assistant=True, system="S")
    assert r["user_data"] == [["ground_truth", "1002"]] and len(r["messages"]) == 3, r
    r = mapped("AlpacaProcessor", {"instruction": "I", "input": "N", "output": "O"})
    assert [m["content"] for m in r["messages"]] == ["I\nN", "O"]
    r = mapped("CompetitionMathGRPOProcessor", {"problem": "p", "solution": "s"})
    assert r["user_data"] == [["solution", "s"]]
    r = mapped("CountdownProcessor", {"nums": [1, 2], "target": 3})
    assert "1, 2" in r["messages"][-1]["content"]
    d = create("dataset", "Dataset", dataset_meta=meta(data=[{"prompt": "p", "answer_zh": "good", "answer_en": "bad"}]))
    do(d, "map", preprocess_func="EmojiDPOProcessor")
    do(d, "set_template", template_func="Template")
    do(d, "encode")
    (x,) = items(d)
    assert check_feature(x["positive"]) and check_feature(x["negative"])
    say = lambda s, truth=None: {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": s}],
                                 **({"user_data": [["ground_truth", truth]]} if truth else {})}
    r = create("reward", "GSM8KAccuracyReward")
    assert do(r, "__call__", trajectories=[say("\\boxed{7}", "7"), say("no", "7"), say("#### 7", "8")]) == [1.0, 0.0, 0.0]
    assert do(r, "__call__", trajectories=[say("\\boxed{7}")], ground_truths=[say("x", "7")]) == [1.0]
    r = create("reward", "MathReward")
    assert do(r, "__call__", trajectories=[say("\\boxed{1/2}")], ground_truths=[say("\\boxed{0.5}")]) == [1.0]
    r = create("reward", "FormatReward")
    assert do(r, "__call__", trajectories=[say("<think>a</think><answer>b</answer>"), say("x")]) == [1.0, 0.0]


def refusals():
    assert "NoSuch" in create("dataset", "NoSuch", 400)
    assert "NoSuch" in create("reward", "NoSuch", 400)
    assert "code" in create("reward", "code", 400)
    assert "Invalid processor type" in create("weight_loader", "X", 400)
    d = dataset()
    for f in ("create", "__class__", "__init__", "_load_dataset", "eval", "", "set_processor", "__call__"):
        assert "has no function" in do(d, f, 400)
    assert "NoSuchProcessor" in do(d, "map", 400, preprocess_func="NoSuchProcessor")
    assert "os.system" in do(d, "map", 400, preprocess_func="os.system")
    assert "nonsense" in do(d, "map", 400, preprocess_func="AlpacaProcessor", nonsense=1)
    assert "nonsense" in do(d, "map", 400, preprocess_func="SelfCognitionProcessor", init_args={"nonsense": 1})
    assert "row 0" in do(d, "map", 400, preprocess_func="AlpacaProcessor")
    assert items(d) == rows(5)                  # a call that fails changes nothing
    assert "other/model" in do(d, "set_template", 404, template_func="Template", model_id="ms://other/model")
    assert "truncation_strategy" in do(d, "set_template", 400, template_func="Template", truncation_strategy="x")
    assert "max_length" in do(d, "set_template", 400, template_func="Template", max_length=-1)
    assert "DeepseekV4Template" in do(d, "set_template", 400, template_func="DeepseekV4Template")
    assert "images" in do(d, "cast_column", 400, column="image", decode=True)
    assert do(d, "cast_column", column="image", decode=False) is None
    for bad in ("x", [], {}, 7):
        assert expect(400, "POST", BASE + "call", {"processor_id": d, "function": bad if bad != {} else None})
    expect(400, "POST", BASE + "create", b"{")
    expect(400, "POST", BASE + "create", {"processor_type": "dataset"})
    expect(404, "POST", BASE + "call", {"processor_id": "pid:" + "0" * 32, "function": "__len__"})
    expect(404, "POST", BASE + "call", {"processor_id": d[:-1], "function": "__len__"})
    expect(405, "GET", BASE + "call")
    r = serve_client.expect(400, "POST", BASE + "call", {"processor_id": d, "function": "__len__"})
    assert "x-request-id" in r.json["detail"]
    assert "index" not in do(d, "__getitem__", 400)
    for bad in (3, "x", [1], {"a": 1}, {"a": [1], "b": []}):
        create("dataset", "Dataset", 400, dataset_meta=meta(data=bad))
    create("dataset", "Dataset", 400, dataset_meta="not json")
    create("dataset", "Dataset", 400, dataset_meta=json.dumps({"_TWINKLE_TYPE_": "LoraConfig", "dataset_id": "x"}))


def no_data():
    for bad in ("rows.jsonl", "/etc/passwd", "ms://swift/self-cognition", "hf://a/b", "a/b", "../x"):
        why = create("dataset", "Dataset", 403, dataset_meta=meta(bad))
        assert "--data" in why and "root:" not in why, why


def isolation():
    a = dataset()
    other = dict(key="tml-other")
    assert do(a, "__len__", 404, **other) == do("pid:" + "1" * 32, "__len__", 404, **other)
    b = create("dataset", "Dataset", dataset_meta=meta(data=rows(2)), **other)
    assert "no such object" in create("dataloader", "DataLoader", 404, dataset=b, batch_size=1)
    assert "no such object" in do(a, "map", 404, preprocess_func=b)
    made = [a]
    while len(made) < 20:
        made.append(dataset(1))
    assert "limit exceeded" in create("dataset", "Dataset", 400, dataset_meta=meta(data=rows(1)))
    assert do(b, "__len__", **other) == 2
    assert create("dataset", "Dataset", dataset_meta=meta(data=rows(1)), **other)
    sid = session(key="tml-third")
    h = dict(key="tml-third", headers={"X-Twinkle-Session-Id": sid})
    c = create("dataset", "Dataset", dataset_meta=meta(data=rows(3)), **h)
    assert do(c, "__len__", key="tml-third") == 3
    create("dataset", "Dataset", 404, dataset_meta=meta(data=rows(3)), headers={"X-Twinkle-Session-Id": sid})
    create("dataset", "Dataset", 404, dataset_meta=meta(data=rows(3)), headers={"X-Twinkle-Session-Id": "session_x"})
    expect(204, "POST", "/api/v1/sessions/%s/finish" % sid, {"reason": {"type": "success"}}, key="tml-third")
    end = time.time() + 300
    while call("POST", BASE + "call", {"processor_id": c, "function": "__len__"}, key="tml-third").status != 404:
        assert time.time() < end
        time.sleep(0.1)


def files(folder):
    """--data FOLDER, in which there are rows.jsonl, sub/more.csv and a link that leads out."""
    d = create("dataset", "Dataset", dataset_meta=meta("rows.jsonl"))
    assert items(d) == rows(4)
    d = create("dataset", "Dataset", dataset_meta=meta(folder + "/rows.jsonl", data_slice=range(1, 3)))
    assert items(d) == rows(4)[1:3]
    d = create("dataset", "Dataset", dataset_meta=meta("./sub/more.csv"))
    assert items(d) == [{"a": "1", "b": "x,y"}]
    d = create("dataset", "Dataset", dataset_meta=meta("sub"))
    assert items(d) == [{"a": "1", "b": "x,y"}]
    for bad in ("../secret.jsonl", "sub/../../secret.jsonl", "/etc/passwd", folder + "/../secret.jsonl", "link.jsonl",
                "linkdir/secret.jsonl", "nothing.jsonl", "", "-", "file:///etc/passwd", "https://127.0.0.1:1/x.jsonl"):
        r = call("POST", BASE + "create", {"processor_type": "dataset", "class_type": "Dataset",
                                           "dataset_meta": meta(bad)})
        assert r.status in (400, 403, 404) and b"geheim" not in r.body, (bad, r.status, r.body)
    assert "line 2" in create("dataset", "Dataset", 400, dataset_meta=meta("bad.jsonl")).replace(":2:", " line 2")
    # what is saved is the tenant's own
    do(d, "save_as", output_path="out/a.jsonl")
    d = create("dataset", "Dataset", dataset_meta=meta("out/a.jsonl"))
    assert items(d) == [{"a": "1", "b": "x,y"}]
    create("dataset", "Dataset", 403, dataset_meta=meta("out/a.jsonl"), key="tml-other")
    do(d, "save_as", output_path="b.csv")
    d = create("dataset", "Dataset", dataset_meta=meta("b.csv"))
    assert items(d) == [{"a": "1", "b": "x,y"}]
    for bad in ("../x.jsonl", "/tmp/x.jsonl", "a/../../x", ""):
        do(d, "save_as", 403, output_path=bad)
    assert "parquet" in do(d, "save_as", 400, output_path="x.parquet")
    d = create("dataset", "Dataset", dataset_meta=meta("rows.jsonl"))
    do(d, "save_as", output_path="seen.jsonl", mode="training")
    do(d, "__getitem__", idx=2)
    do(d, "__getitem__", idx=0)
    do(d, "flush_save")
    do(d, "flush_save")
    d = create("dataset", "Dataset", dataset_meta=meta("seen.jsonl"))
    assert items(d) == [rows(4)[2], rows(4)[0]]


def hub():
    d = create("dataset", "Dataset", dataset_meta=meta("ms://swift/self", data_slice=range(1)))
    assert items(d) == [{"query": "who"}]
    d = create("dataset", "Dataset", dataset_meta=meta("swift/self"))
    assert do(d, "__len__") == 2
    for bad in ("ms://other/self", "hf://swift/self"):
        assert "--data" in create("dataset", "Dataset", 403, dataset_meta=meta(bad))
    create("dataset", "Dataset", 404, dataset_meta=meta("ms://swift/none"))


def big():
    """A long map does not hold up the server, nor another tenant's short calls."""
    many = create("dataset", "Dataset", dataset_meta=meta(data=rows(20000)))
    small = create("dataset", "Dataset", dataset_meta=meta(data=rows(1)), key="tml-other")
    do(many, "map", preprocess_func="SelfCognitionProcessor", init_args={})
    do(many, "set_template", template_func="Template")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        long_ = pool.submit(lambda: do(many, "encode"))
        n = 0
        while not long_.done():
            assert do(small, "__len__", key="tml-other") == 1
            assert get("healthz") == {"status": "ok"}
            n += 1
        assert long_.result() is None and n > 2, n
    assert do(many, "__len__") == 20000
    # calls of one object are done in order
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        l = create("dataloader", "DataLoader", dataset=many, batch_size=10)
        do(l, "__iter__")
        got = [f.result() for f in [pool.submit(do, l, "__next__") for _ in range(40)]]
    assert sorted(b[0]["messages"][1]["content"] for b in got) == sorted(
        "q%d twinkle robot" % (10 * i) for i in range(40))


def equal(folder):
    """What tw-preprocess | tw-encode gives, row by row."""
    d = create("dataset", "Dataset", dataset_meta=meta("identity.jsonl"))
    do(d, "map", preprocess_func="SelfCognitionProcessor", init_args={"model_name": "Twinkle", "model_author": "MS"})
    do(d, "set_template", template_func="Template", max_length=512)
    do(d, "encode")
    ours = subprocess.run("tw-preprocess self-cognition,name=Twinkle,author=MS %s/identity.jsonl | "
                          "tw-encode -m tiny --max-length 512 --format jsonl" % folder, shell=True, check=True,
                          stdout=subprocess.PIPE).stdout.splitlines()
    got = items(d)
    assert len(ours) == len(got) > 10
    for line, f in zip(ours, got):
        x = json.loads(line)
        w = x.get("weights", [1] * len(x["tokens"]))
        assert f["input_ids"] == x["tokens"]
        assert f["labels"] == [t if v else -100 for t, v in zip(x["tokens"][1:], w[1:])] + [-100]


def outlive(n):
    """N 0 makes objects and is in the middle of their loops; 1, after kill -9, goes on; 2, again."""
    if n == 0:
        sid = session()
        h = {"X-Twinkle-Session-Id": sid}
        p = create("preprocessor", "SelfCognitionProcessor", headers=h, model_name="Tw", model_author="Me")
        d = create("dataset", "Dataset", headers=h, dataset_meta=meta(data=rows(11)))
        do(d, "map", preprocess_func=p)
        do(d, "set_template", template_func="Template", model_id="ms://tiny", max_length=256)
        do(d, "encode", add_generation_prompt=False)
        do(d, "nosuch", 400)
        l = create("dataloader", "DataLoader", headers=h, dataset=d, batch_size=2, shuffle=True)
        do(l, "set_processor", processor_cls="InputProcessor")
        r = create("reward", "GSM8KAccuracyReward")
        packs = create("dataset", "IterablePackingDataset", dataset_meta=meta(data=rows(9)))
        do(packs, "set_template", template_func="Template", model_id="ms://tiny", max_length=128)
        gone = create("template", "Template", headers={"X-Twinkle-Session-Id": session()}, model_id="ms://tiny")
        want = [drain(l) for _ in range(2)]
        assert want[0] != want[1]
        twin = create("dataloader", "DataLoader", headers=h, dataset=d, batch_size=2, shuffle=True)
        do(twin, "set_processor", processor_cls="InputProcessor")
        do(twin, "__iter__")
        assert [do(twin, "__next__") for _ in range(3)] == want[0][:3]
        do(d, "__iter__")
        it = [do(d, "__next__") for _ in range(4)]
        json.dump([sid, p, d, l, r, twin, want, it, items(d)], open("ids", "w"))
        return
    sid, p, d, l, r, twin, want, it, all = json.load(open("ids"))
    assert items(d) == all
    if n == 1:
        assert do(twin, "__next__") == want[0][3]
        assert do(d, "__next__") == all[4]
        return
    assert [do(twin, "__next__") for _ in range(2)] == want[0][4:]
    assert drain(twin) == want[1]
    assert do(d, "__next__") == all[5]
    assert do(l, "get_state")["consumed_train_samples"] == 24
    assert do(r, "__call__", trajectories=[], ground_truths=[]) == []
    other = create("dataset", "Dataset", dataset_meta=meta(data=rows(2)))
    do(other, "map", preprocess_func=p)
    serve_client.expect(204, "POST", "/api/v1/sessions/%s/finish" % sid, {"reason": {"type": "success"}})
    eventually(lambda: "ended" in str(call("POST", BASE + "call", {"processor_id": d, "function": "__len__"}).body))
    assert len(items(other)) == 2
