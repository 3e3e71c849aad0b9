"""Embeddings with twinkle_client: sentences that mean the same end up side by side, held-out ones, too.

    tw-serve -m tiny --state state &
    TWINKLE_SERVER_URL=http://127.0.0.1:8000 TWINKLE_SERVER_TOKEN=me python3 twinkle_embed.py

A group is an anchor (labels 1), its positive and, where there are, negatives (labels 0); the groups of a call are
each other's negatives. Here the server's template makes tokens of the sentences; features with input_ids go as well.
Needs: pip install twinkle-kit.
"""
import os

from peft import LoraConfig
from twinkle_client import init_twinkle_client
from twinkle_client.model import MultiLoraTransformersModel

BATCH, STEPS = 24, int(os.environ.get("STEPS", 16))
ADJECTIVES = "red blue green old new small big cold warm soft hard dark".split()
NOUNS = "house car dog cat tree river book chair lamp door boat bird".split()


def side(text, anchor):
    return {"messages": [{"role": "user", "content": text}], "labels": [int(anchor)]}


def group(adjective, noun):
    return [side(f"I see a {adjective} {noun}.", True), side(f"The {noun} over there is {adjective}.", False)]


def find(model, groups):
    """The share of anchors whose own positive is the nearest of all."""
    e = model.forward_only(inputs=sum(groups, []), task="embedding").result["embeddings"]
    anchors, positives = e[0::2], e[1::2]
    like = [[sum(x * y for x, y in zip(a, p)) for p in positives] for a in anchors]
    return sum(max(range(len(row)), key=row.__getitem__) == i for i, row in enumerate(like)) / len(like)


def main():
    client = init_twinkle_client()
    model = MultiLoraTransformersModel(model_id=client.get_server_capabilities().supported_models[0].model_name)
    model.add_adapter_to_model("embed", LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    model.set_template("Template", use_chat_template=False)
    model.set_processor("InputProcessor")
    model.set_loss("InfonceLoss", temperature=0.07, use_batch=True)
    model.set_optimizer("Adam", lr=3e-3)
    model.add_metric("EmbeddingMetric", is_training=True)
    pairs = [(i, k) for i in range(12) for k in range(12)]
    held = [group(ADJECTIVES[i], NOUNS[k]) for i, k in pairs if (i * 5 + k * 3) % 7 < 2]
    rest = [group(ADJECTIVES[i], NOUNS[k]) for i, k in pairs if (i * 5 + k * 3) % 7 >= 2]
    print(f"before: {find(model, held):.2f} of {len(held)} find their own", flush=True)
    for step in range(STEPS):
        batch = [rest[(step * BATCH + i) * 29 % len(rest)] for i in range(BATCH)]
        model.forward_backward(inputs=sum(batch, []), task="embedding")
        model.clip_grad_and_step()
        told = model.calculate_metric(is_training=True).result
        print(f"step {step + 1:3d}  loss {told['loss']}  own {told['pos_sim']}  others {told['neg_sim']}", flush=True)
    print(f"after: {find(model, held):.2f} of {len(held)} find their own")


if __name__ == "__main__":
    main()
