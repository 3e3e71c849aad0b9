#!/bin/sh
# OpenAI's interface: what it answers is what tw-sample says, whole and as a stream.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

ask_oai() { ask "from serve_oai import *
$1"; }

test_case 'a greedy chat says what tw-sample says; a stream says the same in pieces' '
	serve_start
	echo "{\"messages\":[{\"role\":\"user\",\"content\":\"Who are you?\"}]}" |
	    tw-sample -q -m tiny --temperature 0 --max-tokens 40 --dtype f32 >want.jsonl
	ask_oai "
want = json.loads(open(\"want.jsonl\").readline())
text = want[\"messages\"][-1][\"content\"]
a = oai(\"chat/completions\", messages=user(\"Who are you?\"), temperature=0, max_tokens=40)
c = a[\"choices\"][0]
assert a[\"object\"] == \"chat.completion\" and c[\"message\"] == {\"role\": \"assistant\", \"content\": text}, (a, text)
assert c[\"finish_reason\"] == \"stop\" and a[\"usage\"][\"total_tokens\"] == sum(a[\"usage\"][k] for k in (\"prompt_tokens\", \"completion_tokens\"))
parts = [{\"type\": \"text\", \"text\": \"Who \"}, {\"type\": \"text\", \"text\": \"are you?\"}]
b = oai(\"chat/completions\", messages=[{\"role\": \"user\", \"content\": parts}], temperature=0, max_completion_tokens=40)
assert b[\"choices\"] == a[\"choices\"]
s = stream(\"chat/completions\", messages=user(\"Who are you?\"), temperature=0, max_tokens=40, stream_options={\"include_usage\": True})
assert s[0][\"choices\"][0][\"delta\"][\"role\"] == \"assistant\" and len(s) > 5
assert \"\".join(x[\"choices\"][0][\"delta\"].get(\"content\", \"\") for x in s[:-1]) == text
assert s[-2][\"choices\"][0][\"finish_reason\"] == \"stop\" and not s[-1][\"choices\"]
assert s[-1][\"usage\"].pop(\"prompt_tokens_details\")[\"cached_tokens\"] == a[\"usage\"][\"prompt_tokens\"] - 1
assert s[-1][\"usage\"] == a[\"usage\"]
"
'
test_case 'completions: texts and token ids, echo, stops, seeds, several prompts and samples' '
	serve_start
	ask_oai "
a = oai(\"completions\", prompt=\"The sun\", temperature=0, max_tokens=12)
t = a[\"choices\"][0][\"text\"]
assert a[\"object\"] == \"text_completion\" and a[\"choices\"][0][\"finish_reason\"] == \"length\"
assert oai(\"completions\", prompt=\"The sun\", temperature=0, max_tokens=12, echo=True)[\"choices\"][0][\"text\"] == \"The sun\" + t
s = stream(\"completions\", prompt=\"The sun\", temperature=0, max_tokens=12, echo=True)
assert \"\".join(x[\"choices\"][0][\"text\"] for x in s) == \"The sun\" + t
word = t.split()[1]
cut = oai(\"completions\", prompt=\"The sun\", temperature=0, max_tokens=12, stop=word)[\"choices\"][0]
assert cut[\"text\"] == t[:t.index(word)] and cut[\"finish_reason\"] == \"stop\"
s = stream(\"completions\", prompt=\"The sun\", temperature=0, max_tokens=12, stop=[word])
assert \"\".join(x[\"choices\"][0][\"text\"] for x in s) == cut[\"text\"]
m = oai(\"completions\", prompt=[\"The sun\", \"A dog\"], n=3, seed=5, max_tokens=9)
texts = [c[\"text\"] for c in m[\"choices\"]]
assert [c[\"index\"] for c in m[\"choices\"]] == list(range(6)) and len(set(texts)) == 6
assert [c[\"text\"] for c in oai(\"completions\", prompt=[\"The sun\", \"A dog\"], n=3, seed=5, max_tokens=9)[\"choices\"]] == texts
assert [c[\"text\"] for c in oai(\"completions\", prompt=\"The sun\", n=1, seed=5, max_tokens=9)[\"choices\"]] == texts[:1]
ids = oai(\"completions\", prompt=[5, 6, 7], temperature=0, max_tokens=3)
assert ids[\"usage\"] == {\"prompt_tokens\": 3, \"completion_tokens\": 3, \"total_tokens\": 6}
"
'
test_case 'log-probabilities: of what was said, best first, and of both forms alike' '
	serve_start
	ask_oai "
a = oai(\"chat/completions\", messages=user(\"Hi\"), temperature=0, max_tokens=6, logprobs=True, top_logprobs=3)
c = a[\"choices\"][0]
l = c[\"logprobs\"][\"content\"]
assert len(l) == a[\"usage\"][\"completion_tokens\"]
for x in l:
    assert bytes(x[\"bytes\"]).decode() == x[\"token\"] and len(x[\"top_logprobs\"]) == 3
    assert x[\"top_logprobs\"][0][\"logprob\"] == x[\"logprob\"] and x[\"top_logprobs\"][0][\"token\"] == x[\"token\"]
    assert x[\"top_logprobs\"][0][\"logprob\"] >= x[\"top_logprobs\"][1][\"logprob\"] >= x[\"top_logprobs\"][2][\"logprob\"]
b = oai(\"completions\", prompt=\"The sun\", temperature=0, max_tokens=6, logprobs=2)[\"choices\"][0]
l = b[\"logprobs\"]
assert \"\".join(l[\"tokens\"]) == b[\"text\"] and l[\"text_offset\"][0] == 0 and len(l[\"top_logprobs\"][0]) == 2
assert all(x <= 0 for x in l[\"token_logprobs\"])
"
'
test_case 'what is not known is refused by name; the server goes on' '
	serve_start
	ask_oai "
def bad(status, word, path=\"chat/completions\", **kw):
    kw = {\"messages\": user(\"a\"), **kw} if path == \"chat/completions\" else kw
    m = oai(path, status, **kw)[\"error\"][\"message\"]
    assert word in m, m
bad(404, \"not served\", model=\"gpt-9\")
bad(404, \"no such checkpoint\", model=\"tinker://x:train:0/sampler_weights/a\")
bad(400, \"surprise\", surprise=1)
bad(400, \"temperature\", temperature=-1)
bad(400, \"top_p\", top_p=0)
bad(400, \"not in [1\", n=0)
bad(400, \"logit_bias\", logit_bias={\"5\": 1})
bad(400, \"response_format\", response_format={\"type\": \"json_object\"})
bad(400, \"tool_choice\", tools=[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], tool_choice=\"required\")
bad(400, \"another type\", messages=[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"x\"}}]}])
bad(400, \"context\", max_tokens=100000)
bad(400, \"messages\", messages=[])
bad(400, \"prompt\", path=\"completions\")
bad(400, \"not a token\", path=\"completions\", prompt=[99999999])
bad(400, \"top_logprobs\", top_logprobs=2)
r = call(\"POST\", \"/v1/chat/completions\", \"{\")
assert r.status == 400 and r.json[\"error\"]
assert call(\"POST\", \"/v1/chat/completions\", {}, key=None).status == 401
oai(\"chat/completions\", messages=user(\"a\"), max_tokens=1, response_format={\"type\": \"text\"}, user=\"u\", logit_bias=None)
"
'
test_case 'a client that goes away frees the device' '
	serve_start
	ask_oai "
body = json.dumps({\"model\": \"tiny\", \"prompt\": \"a\", \"n\": 512, \"max_tokens\": 900, \"ignore_eos\": True}).encode()
s = raw()
s.sendall(b\"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-API-Key: tml-test\r\nContent-Length: %d\r\n\r\n\" % len(body) + body)
eventually(lambda: metric(\"tw_engine_running_samples\") > 0)
s.close()
oai(\"completions\", prompt=\"b\", max_tokens=4)
eventually(lambda: metric(\"tw_engine_running_samples\") == 0)
assert metric(\"tw_tokens_sampled_total\") < 512 * 450
"
'
test_case 'an adapter by the path of its sampler; its tenant alone may use it until it is published' '
	serve_start
	ask_oai "
m = create(session())
for i in range(4):
    wait(fb(m, 2 * i + 1, tokens=(5, 6, 7, 8, 9, 10)))
    wait(step(m, 2 * i + 2, lr=2e-2))
path = wait(save(m, 9, \"s1\", \"save_weights_for_sampler\"))[\"path\"]
ids = [x[\"id\"] for x in call(\"GET\", \"/v1/models\").json[\"data\"]]
assert ids == [\"tiny\", path], ids
base = oai(\"completions\", prompt=[5, 6, 7], temperature=0, max_tokens=3, logprobs=0)[\"choices\"][0]
mine = oai(\"completions\", model=path, prompt=[5, 6, 7], temperature=0, max_tokens=3, logprobs=0)[\"choices\"][0]
assert mine[\"text\"] != base[\"text\"], (mine, base)
expect_oai(404, \"completions\", {\"model\": path, \"prompt\": \"a\"}, key=\"tml-other\")
expect(204, \"POST\", \"/api/v1/training_runs/%s/checkpoints/sampler_weights/s1/publish\" % m)
expect_oai(200, \"completions\", {\"model\": path, \"prompt\": \"a\", \"max_tokens\": 2}, key=\"tml-other\")
"
'
test_done
