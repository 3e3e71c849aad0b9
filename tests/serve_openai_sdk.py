"""The official openai client against tw-serve: serve_openai_sdk.py URL MODEL"""
import sys

import openai

url, model = sys.argv[1:]
c = openai.OpenAI(base_url=url + "/v1", api_key="tml-x", max_retries=0)
assert c.models.list().data[0].id == model

say = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Who are you?"}]
a = c.chat.completions.create(model=model, messages=say, temperature=0, max_tokens=40, logprobs=True, top_logprobs=2)
text = a.choices[0].message.content
assert text and a.choices[0].finish_reason in ("stop", "length")
assert a.usage.completion_tokens == len(a.choices[0].logprobs.content)
assert len(a.choices[0].logprobs.content[0].top_logprobs) == 2

got, last = "", None
for x in c.chat.completions.create(model=model, messages=say, temperature=0, max_tokens=40, stream=True,
                                   stream_options={"include_usage": True}):
    if x.choices:
        got += x.choices[0].delta.content or ""
        last = x.choices[0].finish_reason or last
    else:
        assert x.usage.total_tokens == a.usage.total_tokens
assert got == text and last == a.choices[0].finish_reason, (got, text)

tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
t = c.chat.completions.create(model=model, messages=say, tools=tools, tool_choice="auto", max_tokens=8)
assert t.choices[0].message.role == "assistant"
list(c.chat.completions.create(model=model, messages=say, tools=tools, max_tokens=8, stream=True))

m = c.completions.create(model=model, prompt=["One", "Two"], n=2, max_tokens=5, seed=7, stop=["."])
assert len(m.choices) == 4 and {x.index for x in m.choices} == {0, 1, 2, 3}
assert "".join(x.choices[0].text for x in c.completions.create(
    model=model, prompt="One", max_tokens=5, temperature=0, stream=True)) == c.completions.create(
    model=model, prompt="One", max_tokens=5, temperature=0).choices[0].text

for kind, kw in ((openai.NotFoundError, {"model": "other"}), (openai.BadRequestError, {"temperature": -1}),
                 (openai.BadRequestError, {"extra_body": {"surprise": 1}})):
    try:
        c.chat.completions.create(**{"model": model, "messages": say, **kw})
    except kind as e:
        assert e.message
    else:
        raise AssertionError(kw)
print("all well")
