"""Reinforcement with twinkle_client: sums in unusual words, rewarded when the last number of the answer is right.

    tw-serve -m tiny --state state &
    TWINKLE_SERVER_URL=http://127.0.0.1:8000 TWINKLE_SERVER_TOKEN=me python3 twinkle_grpo.py

Each step saves the adapter for sampling, samples a group of answers to each prompt, rewards them here, and trains
on what was sampled: the sampler's own features, log-probabilities as old_logps, rewards centred over their group.
Needs: pip install twinkle-kit.
"""
import os
import random
import re

from peft import LoraConfig
from twinkle_client import init_twinkle_client
from twinkle_client.model import MultiLoraTransformersModel
from twinkle_client.sampler import vLLMSampler

GROUP, PROMPTS, STEPS = 8, 16, int(os.environ.get("STEPS", 12))


def reward(text, want):
    numbers = re.findall(r"-?\d+", text)
    return float(bool(numbers) and int(numbers[-1]) == want)


def centred(rewards):
    """GRPO's advantages of one group."""
    mean = sum(rewards) / len(rewards)
    spread = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
    return [(r - mean) / (spread + 1e-8) for r in rewards]


def main():
    rng = random.Random(1)
    client = init_twinkle_client()
    base = client.get_server_capabilities().supported_models[0].model_name
    model = MultiLoraTransformersModel(model_id=base)
    model.add_adapter_to_model("grpo", LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    model.set_template("Template")
    model.set_processor("InputProcessor")
    model.set_loss("GRPOLoss", epsilon=0.2, beta=0.0)
    model.set_optimizer("Adam", lr=1e-3)
    model.add_metric("GRPOMetric", epsilon=0.2)
    sampler = vLLMSampler(model_id=base)
    sampler.set_template("Template")
    for step in range(STEPS):
        pairs = [(rng.randrange(10), rng.randrange(10)) for _ in range(PROMPTS)]
        asked = [{"messages": [{"role": "user", "content": f"Sum: {a} {b}"}]} for a, b in pairs]
        uri = model.save("sampler", is_sampler=True).twinkle_path
        answers = sampler.sample(asked, {"max_tokens": 24, "temperature": 1.0, "logprobs": 1}, adapter_uri=uri,
                                 num_samples=GROUP)
        inputs, old, advantages, rewards = [], [], [], []
        for (a, b), answer in zip(pairs, answers):
            got = [reward(s.new_input_feature["messages"][-1]["content"], a + b) for s in answer.sequences]
            rewards += got
            if len(set(got)) == 1:
                continue                # nothing to learn from a group that is all alike
            for s, adv in zip(answer.sequences, centred(got)):
                inputs.append({k: s.new_input_feature[k] for k in ("input_ids", "labels")})
                old.append([lp[0][1] for lp in s.logprobs])
                advantages.append(adv)
        told = {}
        if inputs:
            out = model.forward_backward(inputs=inputs, advantages=advantages, old_logps=old)
            model.clip_grad_and_step()
            told = model.calculate_metric(is_training=True).result
            told["loss"] = out.result["loss"]
        print(f"step {step + 1:3d}  reward {sum(rewards) / len(rewards):.3f}  loss {told.get('loss', 0):.4f}  "
              f"ratio {told.get('train/token_ratio_max', 1):.5f}", flush=True)
    client.close()


main()
