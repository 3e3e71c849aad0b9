"""Drives a server through an official `tinker` client, of whatever version is installed: every call, every
loss, and the promises that a run rests on. tests/t7510-serve-sdk.sh runs it with each version."""
import inspect
import os
import sys
from importlib.metadata import version

import numpy as np
import tinker
from tinker import types

V = tuple(int(x) for x in version("tinker").split(".")[:2])
NEW = V >= (0, 26)
BASE = sys.argv[1]


if os.environ.get("TW_TEST_PYQWEST"):            # the client's default, which this server's config turns off
    from tinker import _client
    plain = _client.AsyncTinker.__init__

    def init(self, *a, _client_config=None, **kw):
        config = _client_config or types.ClientConfigResponse()
        plain(self, *a, _client_config=config.model_copy(update={"use_pyqwest_transport": True}), **kw)
        print("transport:", type(self._client._transport).__name__)
    _client.AsyncTinker.__init__ = init


def wait(x):
    return x.result() if hasattr(x, "result") else x


def tensor(values, dtype):
    a = np.array(values)
    return types.TensorData(data=a.flatten().tolist(), dtype=dtype, shape=list(a.shape))


def datum(tokens, **inputs):
    ints = ("target_tokens",)
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs={
        k: tensor(v, "int64" if k in ints else "float32") for k, v in inputs.items()})


TEXT = [[5, 6, 7, 8, 9, 10, 11, 12], [300, 301, 302, 303, 304], [40, 41, 42, 40, 41, 42, 40, 41, 42]]


def ce(weight=1.0):
    return [datum(t[:-1], target_tokens=t[1:], weights=[weight] * (len(t) - 1)) for t in TEXT]


def policy(q, **more):
    return [datum(t[:-1], target_tokens=t[1:], logprobs=l, advantages=[0.0] + [1.0] * (len(t) - 2),
                  **{k: [v] * (len(t) - 1) for k, v in more.items()}) for t, l in zip(TEXT, q)]


def logprobs(out):
    return [np.array(o["logprobs"].data, np.float32) for o in out.loss_fn_outputs]


def fails(f, text=""):
    try:
        wait(f())
    except Exception as e:
        assert text in str(e), e
        return
    raise AssertionError("it did not fail")


def adam(lr=1e-2):
    return types.AdamParams(learning_rate=lr, beta1=0.9, beta2=0.95, eps=1e-12)


def training(sc):
    tc = wait(sc.create_lora_training_client(base_model=BASE, rank=8, seed=7))
    info = tc.get_info()
    assert info.model_data.model_name == BASE and info.is_lora and info.lora_rank == 8, info
    first = wait(tc.forward(ce(), "cross_entropy"))
    assert first.metrics["num_tokens:sum"] == sum(len(t) - 1 for t in TEXT), first.metrics
    losses = []
    for _ in range(6):
        fb, step = tc.forward_backward(ce(), "cross_entropy"), tc.optim_step(adam())
        losses.append(wait(fb).metrics["loss:sum"])
        assert wait(step).metrics["grad_norm"] > 0
    assert losses[0] == first.metrics["loss:sum"] and losses[-1] < 0.8 * losses[0], losses
    assert np.isclose(losses[0], -sum(l.sum() for l in logprobs(first)), rtol=1e-5)
    # without a gradient a step changes nothing
    a = wait(tc.forward(ce(), "cross_entropy"))
    wait(tc.optim_step(adam(10.0)))
    b = wait(tc.forward(ce(), "cross_entropy"))
    assert all((x == y).all() for x, y in zip(logprobs(a), logprobs(b)))
    return tc


def other_losses(tc):
    lp = logprobs(wait(tc.forward(ce(), "cross_entropy")))
    adv = sum(len(t) - 2 for t in TEXT)
    for name in ("importance_sampling", "ppo", "cispo", "dro"):
        r = wait(tc.forward_backward(policy([l.tolist() for l in lp]), name))
        want = -sum(l[1:].sum() for l in lp) if name in ("cispo", "dro") else -adv
        assert np.isclose(r.metrics["loss:sum"], want, rtol=1e-5), (name, r.metrics, want)
        assert all((x == y).all() for x, y in zip(logprobs(r), lp)), name
    r = wait(tc.forward_backward(policy([(l - 1).tolist() for l in lp]), "ppo", {"clip_high_threshold": 2.0}))
    assert np.isclose(r.metrics["loss:sum"], -2 * adv, rtol=1e-5), r.metrics
    if V >= (0, 25):
        r = wait(tc.forward_backward(policy([(l - 0.1).tolist() for l in lp], sequence_ratio_mask=1.0), "gspo",
                                     {"clip_high_threshold": 2.0}))
        assert np.isclose(r.metrics["loss:sum"], -adv * np.exp(0.1), rtol=1e-5), r.metrics
    # many targets a position
    many = [datum(t[:-1], target_tokens=[[x, (x + 1) % 100] for x in t[1:]],
                  weights=[[1.0, 0.5]] * (len(t) - 1)) for t in TEXT]
    r = wait(tc.forward(many, "cross_entropy"))
    for o, l in zip(r.loss_fn_outputs, lp):
        k = np.array(o["logprobs"].data, np.float32).reshape(-1, 2)
        assert k.shape[0] == len(l) and np.allclose(k[:, 0], l, atol=1e-5)
    fails(lambda: tc.forward_backward(ce(), "no_such_loss"))
    fails(lambda: tc.forward_backward([datum([1, 2], target_tokens=[1, 10 ** 6], weights=[1.0, 1.0])],
                                      "cross_entropy"), "target_tokens")
    fails(lambda: tc.forward_backward([datum([1, 2], target_tokens=[1, 2], weights=[1.0, float("nan")])],
                                      "cross_entropy"))         # some versions refuse it themselves
    if NEW:
        fails(lambda: tc.forward_backward(policy([l.tolist() for l in lp]), "stable_reinforce"), "provenance")
    wait(tc.optim_step(adam(0.0)))
    custom(tc)


def custom(tc):
    try:
        import torch
    except ImportError:
        print("no torch: forward_backward_custom is not tried")
        return
    plain = wait(tc.forward_backward(ce(), "cross_entropy"))
    want = wait(tc.optim_step(adam(0.0))).metrics["grad_norm"]

    def loss(data, lp):
        total = -sum(x.sum() for x in lp)
        return total, {"mine": float(total)}

    data = [datum(t[:-1], target_tokens=t[1:]) if NEW else datum(t[:-1], target_tokens=t[1:],
            weights=[1.0] * (len(t) - 1)) for t in TEXT]
    r = wait(tc.forward_backward_custom(data, loss))
    assert np.isclose(r.metrics["mine"], plain.metrics["loss:sum"], rtol=1e-5), r.metrics
    got = wait(tc.optim_step(adam(0.0))).metrics["grad_norm"]
    assert np.isclose(got, want, rtol=1e-4), (got, want)


def checkpoints(sc, tc):
    path = wait(tc.save_state("ck")).path
    assert path.startswith("tinker://") and path.endswith("/weights/ck"), path
    fails(lambda: tc.save_state("ck"), "")
    fails(lambda: tc.save_state("../x"), "")

    def step(c):
        wait(c.forward_backward(ce(), "cross_entropy"))
        wait(c.optim_step(adam()))
        return logprobs(wait(c.forward(ce(), "cross_entropy")))
    on = wait(sc.create_training_client_from_state_with_optimizer(path))
    off = wait(sc.create_training_client_from_state(path))
    a, b, c = step(tc), step(on), step(off)
    assert all((x == y).all() for x, y in zip(a, b))
    assert any((x != y).any() for x, y in zip(a, c))
    back = wait(sc.create_lora_training_client(base_model=BASE, rank=8, seed=1))
    wait(back.load_state_with_optimizer(path))
    assert all((x == y).all() for x, y in zip(a, step(back)))
    return path


def samples(sc, tc):
    prompt = types.ModelInput.from_ints(TEXT[0][:4])
    greedy = types.SamplingParams(max_tokens=4, temperature=0.0)
    free = types.SamplingParams(max_tokens=6, temperature=1.0, seed=3)
    named = wait(tc.save_weights_for_sampler("s1")).path
    assert named.endswith("/sampler_weights/s1"), named
    by_path = wait(sc.create_sampling_client(model_path=named))
    frozen = wait(tc.save_weights_and_get_sampling_client())
    base = wait(sc.create_sampling_client(base_model=BASE))
    r = wait(frozen.sample(prompt, num_samples=1, sampling_params=greedy))
    assert r.sequences[0].tokens == TEXT[0][4:8], r
    r = wait(frozen.sample(prompt, num_samples=5, sampling_params=free))
    assert len(r.sequences) == 5 and len({tuple(s.tokens) for s in r.sequences}) > 1
    assert all(len(s.logprobs) == len(s.tokens) > 0 for s in r.sequences)
    one = wait(by_path.sample(prompt, num_samples=1, sampling_params=free))
    assert one.sequences[0].tokens == r.sequences[0].tokens
    assert wait(base.sample(prompt, num_samples=1, sampling_params=greedy)).sequences[0].tokens != TEXT[0][4:8]
    # what the sampler says of a prompt is what training says of it
    lp = logprobs(wait(tc.forward(ce(), "cross_entropy")))
    for t, l in zip(TEXT, lp):
        got = wait(frozen.compute_logprobs(types.ModelInput.from_ints(t)))
        assert got[0] is None and np.allclose(got[1:], l, atol=1e-5)
    top = wait(frozen.sample(prompt, num_samples=1, sampling_params=greedy, include_prompt_logprobs=True,
                             topk_prompt_logprobs=3))
    assert len(top.prompt_logprobs) == 4
    assert [r is None or len(r) for r in top.topk_prompt_logprobs] == [True, 3, 3, 3], top.topk_prompt_logprobs
    before = wait(frozen.sample(prompt, num_samples=3, sampling_params=free))
    for _ in range(3):
        tc.forward_backward(ce(-1.0), "cross_entropy")
        s = tc.optim_step(adam())
    wait(s)
    after = wait(frozen.sample(prompt, num_samples=3, sampling_params=free))
    assert [s.tokens for s in before.sequences] == [s.tokens for s in after.sequences]
    assert [s.logprobs for s in before.sequences] == [s.logprobs for s in after.sequences]
    stop = TEXT[0][5]
    r = wait(frozen.sample(prompt, num_samples=1, sampling_params=types.SamplingParams(max_tokens=4,
             temperature=0.0, stop=[stop])))
    assert r.sequences[0].tokens == TEXT[0][4:6] and r.sequences[0].stop_reason == "stop", r
    fails(lambda: frozen.sample(prompt, num_samples=1, sampling_params=types.SamplingParams(max_tokens=10 ** 6)),
          "context window")
    if NEW:
        newer(tc, frozen, prompt)


def newer(tc, sampler, prompt):
    """What 0.38 added."""
    p = types.SamplingParams(max_tokens=3, temperature=1.0, seed=1)
    names = inspect.signature(sampler.sample).parameters
    assert "topk_sample_logprobs" in names or "topk_sample_logprobs" in str(names), names
    r = wait(sampler.sample(prompt, num_samples=2, sampling_params=p, topk_sample_logprobs=2))
    for s in r.sequences:
        assert s.sequence_id
        assert len(s.topk_logprobs if hasattr(s, "topk_logprobs") else s.topk_sampled_logprobs) == len(s.tokens)


def rest(sc, tc, path):
    rc = sc.create_rest_client()
    run = path.split("/")[2]
    runs = wait(rc.list_training_runs())
    assert run in [r.training_run_id for r in runs.training_runs]
    kinds = {c.checkpoint_id for c in wait(rc.list_checkpoints(run)).checkpoints}
    assert {"weights/ck", "sampler_weights/s1"} <= kinds, kinds
    caps = sc.get_server_capabilities()
    assert BASE in [m.model_name for m in caps.supported_models]
    wait(rc.publish_checkpoint_from_tinker_path(path))
    wait(rc.unpublish_checkpoint_from_tinker_path(path))
    wait(rc.delete_checkpoint_from_tinker_path(path))
    assert "weights/ck" not in {c.checkpoint_id for c in wait(rc.list_checkpoints(run)).checkpoints}


def main():
    sc = tinker.ServiceClient(base_url=os.environ["TINKER_BASE_URL"])
    tc = training(sc)
    print("training: well")
    other_losses(tc)
    print("losses: well")
    path = checkpoints(sc, tc)
    print("checkpoints: well")
    tc = training(sc)
    samples(sc, tc)
    print("samples: well")
    tc = None
    tc2 = wait(sc.create_lora_training_client(base_model=BASE, rank=4))
    path = wait(tc2.save_state("ck")).path
    wait(tc2.save_weights_for_sampler("s1"))
    rest(sc, tc2, path)
    print("rest: well")


main()
