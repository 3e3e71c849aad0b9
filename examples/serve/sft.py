"""Supervised fine-tuning on a server: an adapter that says who it is.

    tw-serve -m tiny --state state &
    TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-me python3 sft.py [DATA.json]

DATA holds rows {"instruction": question, "output": answer} with {{name}} and {{author}} to be filled in. Needs: pip
install tinker jinja2. The loss is summed over tokens, as everywhere in this interface: the learning rate does not care, Adam
divides it out.
"""
import json
import os
import sys

import tinker
from tinker import types


def datum(tokenizer, messages):
    """The conversation as tokens, and a weight of 1 on what the assistant says."""
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=True, return_dict=False)
    whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    weights = [0.0] * len(prompt) + [1.0] * (len(whole) - len(prompt))
    return types.Datum(model_input=types.ModelInput.from_ints(whole[:-1]), loss_fn_inputs={
        "target_tokens": types.TensorData(data=whole[1:], dtype="int64", shape=[len(whole) - 1]),
        "weights": types.TensorData(data=weights[1:], dtype="float32", shape=[len(whole) - 1])})


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    rows = json.load(open(sys.argv[1] if len(sys.argv) > 1 else here + "/../data/identity.json"))
    service = tinker.ServiceClient()
    base = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base, rank=8, seed=1).result()
    tokenizer = training.get_tokenizer()
    data = []
    for row in rows:
        text = row["output"].replace("{{name}}", "Sparkle").replace("{{author}}", "the night shift")
        data.append(datum(tokenizer, [{"role": "user", "content": row["instruction"]},
                                      {"role": "assistant", "content": text}]))

    batch, steps = 16, int(os.environ.get("STEPS", 24))
    for step in range(steps):
        part = [data[(step * batch + i) % len(data)] for i in range(batch)]
        # Both are on their way before either is done: the server never waits for us.
        loss = training.forward_backward(part, "cross_entropy")
        done = training.optim_step(types.AdamParams(learning_rate=2e-3 * (1 - step / steps)))
        tokens = sum(sum(d.loss_fn_inputs["weights"].data) for d in part)
        print(f"step {step + 1:3d}  loss {loss.result().metrics['loss:sum'] / tokens:.4f}")
        done.result()

    sampler = training.save_weights_and_get_sampling_client(name="sft").result()
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Who are you?"}], add_generation_prompt=True,
                                           tokenize=True, return_dict=False)
    out = sampler.sample(types.ModelInput.from_ints(prompt), num_samples=1,
                         sampling_params=types.SamplingParams(max_tokens=40, temperature=0)).result()
    print(tokenizer.decode(out.sequences[0].tokens, skip_special_tokens=True))


main()
