"""Preferences on a server, by a loss of one's own: DPO as a function of log-probabilities.

    tw-serve -m tiny --state state &
    TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-me python3 dpo.py

forward_backward_custom() asks the server for log-probabilities, calls the function here, and sends the derivative by each
back as the weight of a cross-entropy: that is all a server needs to know of a loss. The reference is a sampler of the base.
Needs: pip install tinker jinja2 torch.
"""
import os

import tinker
import torch
from tinker import types

BETA = 0.1


def pair(tokenizer, a, b):
    """Two replies to one question: the short one is chosen, the long one rejected."""
    ask = [{"role": "user", "content": f"What is {a} + {b}?"}]
    prompt = tokenizer.apply_chat_template(ask, add_generation_prompt=True, tokenize=True, return_dict=False)
    said = f"{a + b}", f"Let me think. {a} and {b} together make {a + b}."
    data = []
    for text in said:
        whole = tokenizer.apply_chat_template(ask + [{"role": "assistant", "content": text}], tokenize=True,
                                              return_dict=False)
        weights = [0.0] * (len(prompt) - 1) + [1.0] * (len(whole) - len(prompt))
        data.append((whole, weights))
    return data


def main():
    service = tinker.ServiceClient()
    base = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base, rank=8, seed=1).result()
    reference = service.create_sampling_client(base_model=base).result()
    tokenizer = training.get_tokenizer()
    pairs = [pair(tokenizer, 2 + i % 7, 3 + i % 5) for i in range(16)]
    flat = [d for p in pairs for d in p]
    data = [types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={
        "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1]),
        "weights": types.TensorData(data=weights, dtype="float32", shape=[len(weights)])}) for tokens, weights in flat]
    known = [reference.compute_logprobs(types.ModelInput.from_ints(tokens)) for tokens, _ in flat]
    ref = [sum(w * lp for w, lp in zip(weights, k.result()[1:])) for (_, weights), k in zip(flat, known)]
    mask = [torch.tensor(weights) for _, weights in flat]

    def dpo(data, logprobs):
        gain = [(lp * m).sum() - r for lp, m, r in zip(logprobs, mask, ref)]
        margin = torch.stack([gain[i] - gain[i + 1] for i in range(0, len(gain), 2)])
        loss = -torch.nn.functional.logsigmoid(BETA * margin).mean()
        return loss, {"right": (margin > 0).float().mean().item(), "margin": margin.mean().item()}

    for step in range(int(os.environ.get("STEPS", 8))):
        done = training.forward_backward_custom(data, dpo).result()
        training.optim_step(types.AdamParams(learning_rate=5e-4)).result()
        m = done.metrics
        print(f"step {step + 1:3d}  loss {m['loss:sum']:.4f}  right {m['right']:.2f}  margin {m['margin']:.2f}")


main()
