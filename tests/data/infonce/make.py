#!/usr/bin/env python3
"""make.py - writes cases.json, groups.jsonl and train.jsonl: InfoNCE by torch, in another form than lib/nn/infonce.c.

cases.json: hidden states in groups, the loss and its gradient by the states, in float64, and the similarities
that metrics report. groups.jsonl: records of tokens; train.jsonl: loss, gradient norm and similarities of three
steps of plain SGD on them, of ../models/qwen3 by transformers. Needs torch and transformers.
"""
import json
import os
import random

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))


def settings(text):
    o = dict(temperature=0.1, use_batch="on", hard_negatives=0, mask_fake_negative="off", fake_neg_margin=0.1,
             include_qq="off", include_dd="off")
    for word in text.split(",")[1:]:
        key, value = word.split("=")
        o[key] = value if value in ("on", "off") else float(value)
    return o


def groups_of(begins, hard):
    """Row numbers: anchor, positive, negatives of each group."""
    at = [i for i, b in enumerate(begins) if b] + [len(begins)]
    out = []
    for a, b in zip(at, at[1:]):
        negatives = list(range(a + 2, b))
        if hard and negatives:
            negatives = [negatives[k % len(negatives)] for k in range(int(hard))]
        out.append([a, a + 1] + negatives)
    return out


def infonce(h, begins, text):
    """The loss, and the similarities of metrics, of states h [n, D]: dense, with masks of minus infinity."""
    o = settings(text)
    e = F.normalize(h, dim=1)
    groups = groups_of(begins, o["hard_negatives"])
    own = torch.tensor([g for g, rows in enumerate(groups) for _ in rows[1:]])
    docs = e[torch.tensor([r for rows in groups for r in rows[1:]])]
    q = e[torch.tensor([rows[0] for rows in groups])]
    p = e[torch.tensor([rows[1] for rows in groups])]
    n = torch.arange(len(groups))
    target = torch.tensor([int((own < g).sum()) for g in range(len(groups))])
    qd = q @ docs.T
    pos = qd[n, target]
    parts = [qd]
    if o["use_batch"] == "off":
        parts[0] = qd.masked_fill(own[None, :] != n[:, None], -torch.inf)
    if o["include_qq"] == "on":
        parts.append((q @ q.T).masked_fill(torch.eye(len(groups), dtype=torch.bool), -torch.inf))
    if o["mask_fake_negative"] == "on":
        most = (pos + o["fake_neg_margin"]).detach()[:, None]
        parts = [x.masked_fill(x > most, -torch.inf) for x in parts]
    if o["include_dd"] == "on":
        dd = p @ docs.T
        dd = dd.clone()
        dd[n, target] = -torch.inf
        parts.append(dd)
    loss = F.cross_entropy(torch.cat(parts, 1) / o["temperature"], target)
    qp = (q @ p.T).detach()
    off = qp[~torch.eye(len(groups), dtype=torch.bool)]
    other = qd.detach().clone()
    other[n, target] = -torch.inf
    told = {"pos_sim": qp.diag().mean().item(), "pos_sim_min": qp.diag().min().item(),
            "pos_sim_max": qp.diag().max().item(),
            "accuracy": (other.max(1).values < pos.detach()).double().mean().item()}
    if len(groups) > 1:
        told["neg_sim"] = off.mean().item()
    return loss, told


TEXTS = [
    "infonce", "infonce,temperature=0.5", "infonce,use_batch=off", "infonce,hard_negatives=1",
    "infonce,hard_negatives=3", "infonce,hard_negatives=2,use_batch=off", "infonce,mask_fake_negative=on",
    "infonce,mask_fake_negative=on,fake_neg_margin=0.01,include_qq=on", "infonce,include_qq=on",
    "infonce,include_dd=on", "infonce,include_qq=on,include_dd=on,mask_fake_negative=on,fake_neg_margin=0.3",
]
SHAPES = [[2, 2, 2], [4, 4], [3, 5, 4, 3], [3]]


def cases():
    torch.manual_seed(7)
    out = []
    for i, text in enumerate(TEXTS):
        for k, shape in enumerate(SHAPES):
            if "hard" in text and min(shape) < 3 or (i + k) % 2 and i < 2:
                continue
            begins = [int(j == 0) for n in shape for j in range(n)]
            h = torch.randn(len(begins), 5 + 6 * (k % 2)).float().double()
            h[-1] = h[0] * 2                    # as near as can be: a false negative
            h.requires_grad_()
            loss, told = infonce(h, begins, text)
            loss.backward()
            out.append(dict(text=text, begins=begins, h=h.tolist(), loss=loss.item(), dh=h.grad.tolist(), **told))
    return out


def records():
    random.seed(3)
    side = lambda: {"tokens": [random.randint(3, 199) for _ in range(random.randint(1, 9))]}
    return [dict(anchor=side(), positive=side(), negatives=[side() for _ in range(1 + i % 3)]) for i in range(9)]


def embed(model, rows):
    """Each sequence alone, so that nothing is padded."""
    return torch.stack([model.model(input_ids=torch.tensor([r])).last_hidden_state[0, -1] for r in rows])


def train(recs, text, lr=0.02, batch=3):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "../models/qwen3"), dtype=torch.float64,
                                                 attn_implementation="eager")
    steps = []
    for at in range(0, len(recs), batch):
        rows, begins = [], []
        for r in recs[at:at + batch]:
            sides = [r["anchor"], r["positive"]] + r["negatives"]
            rows += [s["tokens"] for s in sides]
            begins += [1] + [0] * (len(sides) - 1)
        model.zero_grad()
        loss, told = infonce(embed(model, rows), begins, text)
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.sqrt(sum((g ** 2).sum() for g in grads)).item()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= lr * p.grad
        steps.append(dict(loss=loss.item(), grad_norm=norm, **told))
    return dict(text=text, steps=steps)


def rounded(x):
    if isinstance(x, float):
        return float("%.9g" % x)
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    return [rounded(v) for v in x] if isinstance(x, list) else x


def main():
    with open(os.path.join(HERE, "cases.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases()) + "\n]\n")
    recs = records()
    with open(os.path.join(HERE, "groups.jsonl"), "w") as f:
        f.writelines(json.dumps(r, separators=(",", ":")) + "\n" for r in recs)
    with open(os.path.join(HERE, "train.jsonl"), "w") as f:
        f.writelines(json.dumps(rounded(train(recs, t)), separators=(",", ":")) + "\n" for t in TEXTS)


main()
