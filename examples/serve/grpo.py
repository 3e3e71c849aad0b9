"""Reinforcement on a server: sums in unusual words, rewarded when the last number of the answer is right.

    tw-serve -m tiny --state state &
    TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-me python3 grpo.py

Each step samples from the weights of the step before (an ephemeral snapshot), rewards, centres the rewards of each
group, trains, and tells the server the mean reward, which its page draws beside the loss. Needs: pip install tinker jinja2.
"""
import json
import os
import random
import re
import urllib.request

import tinker
from tinker import types

URL = os.environ["TINKER_BASE_URL"].rstrip("/")
GROUP, PROMPTS, STEPS = 8, 16, int(os.environ.get("STEPS", 12))


def note(run, step, **values):
    """One more point of the run's curves on the server's page."""
    body = json.dumps({"step": step, "values": values}).encode()
    urllib.request.urlopen(urllib.request.Request(
        f"{URL}/api/v1/runs/{run}/points", body, {"X-API-Key": os.environ["TINKER_API_KEY"]}, method="POST"))


def datum(prompt, seq, advantage):
    n = len(prompt) - 1
    tokens = prompt + list(seq.tokens)
    vec = lambda v, t: types.TensorData(data=v, dtype=t, shape=[len(v)])
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={
        "target_tokens": vec(tokens[1:], "int64"),
        "logprobs": vec([0.0] * n + list(seq.logprobs), "float32"),
        "advantages": vec([0.0] * n + [advantage] * len(seq.tokens), "float32")})


def main():
    rng = random.Random(1)
    service = tinker.ServiceClient()
    base = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base, rank=16, seed=1).result()
    tokenizer = training.get_tokenizer()
    for step in range(STEPS):
        sampler = training.save_weights_and_get_sampling_client().result()
        asked = []
        for _ in range(PROMPTS):
            a, b = rng.randrange(10), rng.randrange(10)
            text = [{"role": "user", "content": f"Sum: {a} {b}"}]
            prompt = tokenizer.apply_chat_template(text, add_generation_prompt=True, tokenize=True, return_dict=False)
            asked.append((prompt, str(a + b), sampler.sample(
                types.ModelInput.from_ints(prompt), num_samples=GROUP,
                sampling_params=types.SamplingParams(max_tokens=24, temperature=1, seed=rng.randrange(1 << 30)))))
        data, rewards = [], []
        for prompt, right, future in asked:
            seqs = future.result().sequences
            texts = [tokenizer.decode(s.tokens, skip_special_tokens=True).strip() for s in seqs]
            got = [float(re.findall(r"\d+", t)[-1:] == [right]) for t in texts]
            mean = sum(got) / GROUP
            rewards += got
            if max(got) > min(got):         # a group whose rewards are all alike teaches nothing
                data += [datum(prompt, s, (r - mean) / GROUP) for s, r in zip(seqs, got)]
        reward = sum(rewards) / len(rewards)
        print(f"step {step + 1:3d}  reward {reward:.3f}  {len(data)} of {len(rewards)} samples teach")
        if data:
            training.forward_backward(data, "importance_sampling")
            training.optim_step(types.AdamParams(learning_rate=1e-3, grad_clip_norm=1.0)).result()
        note(training.model_id, step + 1, reward=reward)


main()
