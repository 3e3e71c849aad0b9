#!/usr/bin/env python3
"""A loss for tw-train --loss-exec, see tw-loss(7): a step a line in, its loss and gradient a line out.

    tw-train -m tiny --lora r=8 --loss grpo --loss-exec 'examples/loss-exec.py grpo' -o run rollouts.jsonl

cross_entropy and grpo do what the built-in losses of these names do, to the last bit; focal is one that
Twinkle does not have: (1 - p)^2 -log p, which spends less on what the model knows already.
"""
import json
import math
import sys


def cross_entropy(logp, seq, i):
    """The loss of token i and its derivative by logp, both before weight and scale."""
    return -logp, -1.0


def focal(logp, seq, i):
    p = math.exp(logp)
    return (1 - p) ** 2 * -logp, 2 * (1 - p) * p * logp - (1 - p) ** 2


def grpo(logp, seq, i, low=1 - 0.2, high=1 + 0.2):
    advantage = seq["advantage"]
    d = logp - seq["old_logprobs"][i] if "old_logprobs" in seq else 0.0
    ratio = math.exp(min(max(d, -20.0), 20.0))
    clipped = min(max(ratio, low), high)
    if ratio * advantage > clipped * advantage:     # the smaller term is the clipped one: no gradient
        return -(clipped * advantage), 0.0
    return -(ratio * advantage), -ratio * advantage if -20 <= d <= 20 else 0.0


def answer(step, loss):
    total, rows, tokens = 0.0, [], 0
    for seq in step["sequences"]:
        part, row = 0.0, []
        for i, (logp, weight) in enumerate(zip(seq["logprobs"], seq["weights"])):
            value, slope = loss(logp, seq, i)
            part += seq["scale"] * weight * value
            row.append(seq["scale"] * weight * slope)
        total += part
        rows.append(row)
        tokens += len(row)
    return {"loss": total, "dlogp": rows, "metrics": {"tokens": tokens}}


if __name__ == "__main__":
    losses = {f.__name__: f for f in (cross_entropy, focal, grpo)}
    name = sys.argv[1] if len(sys.argv) > 1 else "cross_entropy"
    if name not in losses:
        sys.exit(f"{sys.argv[0]}: no loss {name}: known are {', '.join(losses)}")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), losses[name])), flush=True)
