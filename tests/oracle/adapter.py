#!/usr/bin/env python3
"""adapter.py BIN MODEL.. - adapters between Twinkle and PEFT, both ways, and merged weights in
transformers: the same log-probabilities of every token. Prints a line a case; exit status 1 when
one differs by more than BOUND, or when an adapter changes nothing (it was not applied)."""
import json, os, subprocess, sys, tempfile
import torch, transformers, peft

BOUND = 1e-4            # of a log-probability
TOKENS, ROWS = 40, 3

ALL = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()
THEIRS = {              # what PEFT writes
    "all linear": dict(r=4, lora_alpha=8, target_modules="all-linear"),
    "two names": dict(r=2, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
    "a regex": dict(r=3, lora_alpha=3, target_modules=r".*\.(0|1)\.mlp\.(up|down)_proj"),
    "rslora": dict(r=4, lora_alpha=8, use_rslora=True, target_modules=ALL),
    "patterns": dict(r=4, lora_alpha=8, target_modules=ALL, rank_pattern={"q_proj": 2,
        r"layers\.0\.mlp\.up_proj": 1}, alpha_pattern={"v_proj": 32, "q_proj": 5}),
    "layers": dict(r=4, lora_alpha=8, target_modules=["o_proj"], layers_to_transform=[1],
        layers_pattern="layers"),
}
OURS = ["r=4,alpha=8", "r=2,alpha=16,targets=q_proj+v_proj", "r=4,alpha=8,rslora=on",
        "r=3,alpha=9,targets=/.*mlp.*/", "r=3,alpha=9,targets=/.*0.mlp.*/"]

# With experts: PEFT reads names of single experts' products of those types it converts; all-linear
# means routers and experts to it, and not to us.
CONVERTED = {"qwen3_moe"}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
THEIRS_MOE = {
    "experts": dict(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"],
        target_parameters=EXPERTS),
    "down alone": dict(r=2, lora_alpha=8, target_modules=["q_proj"],
        target_parameters=["experts.down_proj"]),
    "experts router ranks": dict(r=4, lora_alpha=8, target_modules=["o_proj"],
        target_parameters=EXPERTS + ["gate.weight"], rank_pattern={"down_proj": 2}),
    "layers": dict(r=4, lora_alpha=8, target_modules=["o_proj"], layers_to_transform=[1],
        layers_pattern="layers"),
    "old names": dict(r=2, lora_alpha=4, target_modules=["q_proj", "gate", "gate_proj", "up_proj",
        "down_proj"]),
}
OURS_MOE = ["r=4,alpha=8,targets=q_proj+k_proj+v_proj+o_proj", "r=3,alpha=9,targets=experts.gate_up_proj+experts.down_proj",
        "r=2,alpha=8,targets=q_proj+gate_proj+up_proj+down_proj", "r=3,alpha=6,rslora=on,targets=gate+q_proj",
        "r=3,alpha=6,targets=experts.down_proj"]


def cases(model):
    kind = json.load(open(f"{model}/config.json"))["model_type"]
    if not kind.endswith("_moe"):
        return THEIRS, OURS
    old = kind in CONVERTED
    return ({k: v for k, v in THEIRS_MOE.items() if old or k != "old names"},
            [x for x in OURS_MOE if old or "+gate_proj" not in x])


def base(model):
    return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32,
            attn_implementation="eager").eval()


def logprobs(m, rows):
    out = []
    with torch.inference_mode():
        for ids in rows:
            x = torch.tensor([ids])
            lp = m(input_ids=x).logits[0, :-1].double().log_softmax(-1)
            out.append(lp.gather(1, x[0, 1:, None])[:, 0])
    return torch.cat(out)


def score(bin, model, rows, adapter=None):
    text = "".join(json.dumps({"tokens": r}) + "\n" for r in rows)
    argv = [f"{bin}/tw-sample", "-m", model, "--score", "--dtype", "f32", "-"]
    if adapter:
        argv[1:1] = ["--adapter", adapter]
    out = subprocess.run(argv, input=text, text=True, capture_output=True)
    if out.returncode:
        raise SystemExit(out.stderr)
    return torch.tensor([x for line in out.stdout.splitlines()
            for x in json.loads(line)["logprobs"][1:]], dtype=torch.float64)


class Cases:
    def __init__(self):
        self.bad = self.n = 0

    def check(self, name, a, b, plain):
        worst, moved = (a - b).abs().max().item(), (b - plain).abs().max().item()
        ok = worst <= BOUND and moved > 100 * BOUND
        self.n += 1
        self.bad += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name}: differ by {worst:.1e}, the adapter moves "
              f"{moved:.2g}", flush=True)


def train(bin, model, run, rows, *what):
    text = "".join(json.dumps({"tokens": r}) + "\n" for r in rows)
    subprocess.run([f"{bin}/tw-train", "-q", "-m", model, *what, "--lr", "2e-2", "--epochs", "4",
        "--batch", "1", "--dtype", "f32", "-o", run, "-"], check=True, text=True, input=text)


def theirs_to_ours(c, bin, model, rows, plain, work):
    for name, conf in cases(model)[0].items():
        torch.manual_seed(len(name))
        m = peft.get_peft_model(base(model), peft.LoraConfig(task_type="CAUSAL_LM",
            init_lora_weights=False, **conf)).eval()
        out = f"{work}/theirs-{name.replace(' ', '-')}"
        m.save_pretrained(out)
        c.check(f"{model}: PEFT's {name}", score(bin, model, rows, out), logprobs(m, rows), plain)
        if name in ("layers", "patterns", "experts router ranks"):
            run = f"{out}-run"
            train(bin, model, run, rows, "--adapter", out)
            m = peft.PeftModel.from_pretrained(base(model), f"{run}/latest").eval()
            c.check(f"{model}: PEFT's {name}, trained on by us, in PEFT",
                    score(bin, model, rows, run), logprobs(m, rows), plain)


def ours_to_theirs(c, bin, model, rows, plain, work):
    for i, lora in enumerate(cases(model)[1]):
        run, merged = f"{work}/run{i}", f"{work}/merged{i}"
        train(bin, model, run, rows, "--lora", lora)
        want = score(bin, model, rows, run)
        m = peft.PeftModel.from_pretrained(base(model), f"{run}/latest").eval()
        c.check(f"{model}: ours, {lora}, in PEFT", want, logprobs(m, rows), plain)
        subprocess.run([f"{bin}/tw-train", "-q", "--merge", "-m", model, "--adapter", run, "--dtype",
            "f32", "-o", merged], check=True)
        c.check(f"{model}: ours, {lora}, merged, in transformers", want,
                logprobs(base(merged), rows), plain)


def main():
    bin, models = sys.argv[1], sys.argv[2:]
    c = Cases()
    transformers.utils.logging.disable_progress_bar()
    for model in models:
        V = json.load(open(f"{model}/config.json"))["vocab_size"]
        g = torch.Generator().manual_seed(7)
        rows = torch.randint(0, V, (ROWS, TOKENS), generator=g).tolist()
        plain = logprobs(base(model), rows)
        with tempfile.TemporaryDirectory() as work:
            theirs_to_ours(c, bin, model, rows, plain, work)
            ours_to_theirs(c, bin, model, rows, plain, work)
    print(f"{c.n - c.bad} of {c.n} cases agree")
    return 1 if c.bad else 0


sys.exit(main())
