"""Four tenants at once on one copy of a model: fine-tuning, plain text, reinforcement, log-probabilities.

    tw-serve -m tiny --state state &
    TINKER_BASE_URL=http://127.0.0.1:8000 python3 tenants.py

Each has a key, and so its own sessions, adapters and quota. The server merges their steps; each one's numbers are those
it would have had alone, to the bit on a CPU. Needs: pip install tinker jinja2.
"""
import os
import random
import threading
import time

import tinker
from tinker import types

STEPS = int(os.environ.get("STEPS", 8))
said = {}


def vec(values, dtype):
    return types.TensorData(data=values, dtype=dtype, shape=[len(values)])


def text_datum(tokens, first=1):
    weights = [0.0 if i + 1 < first else 1.0 for i in range(len(tokens) - 1)]
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={
        "target_tokens": vec(tokens[1:], "int64"), "weights": vec(weights, "float32")})


def client(name):
    service = tinker.ServiceClient(api_key="tml-" + name)
    base = tinker.RestClient(api_key="tml-" + name).get_server_capabilities().result().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base, rank=8, seed=3).result()
    return service, base, training, training.get_tokenizer()


def train(training, data, lr=1e-3):
    losses = []
    for _ in range(STEPS):
        loss = training.forward_backward(data, "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=lr)).result()
        losses.append(loss.result().metrics["loss:sum"])
    return losses


def sft(name):
    _, _, training, tok = client(name)
    chat = [{"role": "user", "content": "What do you like?"}, {"role": "assistant", "content": "Pipes and small tools."}]
    prompt = tok.apply_chat_template(chat[:1], add_generation_prompt=True, tokenize=True, return_dict=False)
    whole = tok.apply_chat_template(chat, tokenize=True, return_dict=False)
    losses = train(training, [text_datum(whole, len(prompt))])
    said[name] = losses[0], losses[-1], f"loss {losses[0]:.2f} -> {losses[-1]:.2f}"


def pretrain(name):
    _, _, training, tok = client(name)
    text = "A pipe joins two programs: what the first one writes is what the second one reads. "
    losses = train(training, [text_datum(tok.encode(text * 3))])
    said[name] = losses[0], losses[-1], f"loss {losses[0]:.2f} -> {losses[-1]:.2f}"


def grpo(name):
    _, _, training, tok = client(name)
    rng, first, last = random.Random(2), 0, 0
    for step in range(STEPS):
        sampler = training.save_weights_and_get_sampling_client().result()
        prompt = tok.encode("The word is")
        seqs = sampler.sample(types.ModelInput.from_ints(prompt), num_samples=32,
                              sampling_params=types.SamplingParams(max_tokens=8, seed=rng.randrange(999))).result().sequences
        got = [float(sum("e" in tok.decode([t]) for t in s.tokens)) / len(s.tokens) for s in seqs]   # likes the letter e
        mean = sum(got) / len(got)
        first, last = (mean, mean) if not step else (first, mean)
        n = len(prompt) - 1
        data = [types.Datum(model_input=types.ModelInput.from_ints((prompt + list(s.tokens))[:-1]), loss_fn_inputs={
            "target_tokens": vec((prompt + list(s.tokens))[1:], "int64"),
            "logprobs": vec([0.0] * n + list(s.logprobs), "float32"),
            "advantages": vec([0.0] * n + [r - mean] * len(s.tokens), "float32")}) for s, r in zip(seqs, got)]
        training.forward_backward(data, "importance_sampling")
        training.optim_step(types.AdamParams(learning_rate=3e-3, grad_clip_norm=1.0)).result()
    said[name] = -first, -last, f"reward {first:.2f} -> {last:.2f}"


def scores(name):
    service, base, _, tok = client(name)
    sampler = service.create_sampling_client(base_model=base).result()
    first = None
    for _ in range(STEPS):
        lp = sampler.compute_logprobs(types.ModelInput.from_ints(tok.encode("The sun is hot."))).result()
        first = first or lp
        assert lp == first, "the base has not changed, and neighbours change nothing"
    said[name] = 1, 0, f"{len(lp)} log-probabilities, the same {STEPS} times"


def main():
    jobs = {"anna": sft, "ben": pretrain, "cleo": grpo, "dan": scores}
    t0 = time.time()
    threads = [threading.Thread(target=f, args=(name,)) for name, f in jobs.items()]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for name, f in jobs.items():
        assert name in said and said[name][1] < said[name][0], (name, said.get(name))
        print(f"{name:5s} {f.__name__:9s} {said[name][2]}")
    print(f"all four in {time.time() - t0:.1f} s")


main()
