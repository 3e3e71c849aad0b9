#!/usr/bin/env python3
"""cpu.py - our commands beside what users would pick instead, on the CPU.

usage: cpu.py [OPTIONS] lora|full|decode|batch|prompt|start|tok ..

Needs Python with torch, transformers, peft (lora, full, prompt, start), tokenizers (tok) and
llama_cpp (decode; prompt, where --gguf is given), a SmolLM2 folder in float32 (--model) and its GGUF files in f32 and bf16 (--gguf DIR, named
*-f32.gguf and *-bf16.gguf). Both sides live in processes of their own, one peer a process; the side
that is not measured is stopped. Measurements alternate; a row holds the medians, the ratio of the
medians, the ratio of the best and the ratio of processor time (user and system), which a busy
machine disturbs less than wall time. Ratios above 1 are in our favour."""
import argparse, json, os, random, resource, shutil, signal, statistics as st, subprocess, sys
import tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
TICK = os.sysconf("SC_CLK_TCK")
LINEAR = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()


# ---- the peers: this script again, with --peer; a line in is an order, a line out its answer

def serve(answer):
    real = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": 1}), file=real, flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(answer(json.loads(line))), file=real, flush=True)


def torch_model(folder, threads, dtype, train):
    import torch, transformers
    torch.set_num_threads(threads)
    m = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype,
            attn_implementation="sdpa")
    return torch, m.train() if train else m.eval()


def peer_train(kind, dtype, folder, adapter, threads):
    import contextlib, torch
    torch, m = torch_model(folder, threads, torch.float32, True)
    if kind == "lora":
        import peft
        m = peft.PeftModel.from_pretrained(m, adapter, is_trainable=True)
    ps = [p for p in m.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(ps, lr=1e-4 if kind == "lora" else 1e-5, fused=True)

    def step(rows):
        if isinstance(rows, dict):      # what its weights are worth, without autocast's rounding
            ids = torch.tensor(rows["exact"])
            with torch.no_grad():
                return {"loss": m(input_ids=ids, labels=ids, use_cache=False).loss.item()}
        ids = torch.tensor(rows)
        cast = torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()
        with cast:
            loss = m(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        return {"loss": loss.item()}
    serve(step)


def peer_adapter(folder, out):
    import peft, torch
    torch, m = torch_model(folder, 2, torch.float32, True)
    torch.manual_seed(0)
    peft.get_peft_model(m, peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0,
            task_type="CAUSAL_LM", target_modules=LINEAR)).save_pretrained(out)


def peer_torch_prompt(dtype, folder, threads):
    import torch
    torch, m = torch_model(folder, threads, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype],
            False)

    def run(order):
        with torch.inference_mode():
            m(input_ids=torch.tensor([order["tokens"]]), use_cache=True, logits_to_keep=1)
        return {}
    serve(run)


def peer_llama(file, threads):
    import ctypes, numpy as np, llama_cpp as L
    quiet = L.llama_log_callback(lambda level, text, user: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(file.encode(), L.llama_model_default_params())
    cp = L.llama_context_default_params()
    cp.n_ctx, cp.n_batch, cp.n_ubatch = 1024, 512, 512
    cp.n_threads = cp.n_threads_batch = threads
    ctx = L.llama_init_from_model(model, cp)
    V = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))

    def feed(ids, at):
        b = L.llama_batch_init(len(ids), 0, 1)
        b.n_tokens = len(ids)
        for i, t in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = t, at + i, 1, i == len(ids) - 1
            b.seq_id[i][0] = 0
        if L.llama_decode(ctx, b):
            raise SystemExit("llama_decode failed")
        L.llama_synchronize(ctx)
        L.llama_batch_free(b)

    def run(order):
        ids, new = order["tokens"], order["new"]
        L.llama_memory_clear(L.llama_get_memory(ctx), True)
        feed(ids, 0)
        for i in range(new - 1):        # new tokens need new - 1 more steps; ours picks, too
            x = np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, -1), shape=(V,))
            feed([int(x.argmax())], len(ids) + i)
        return {}
    serve(run)


def peer_tok(folder, files):
    """A thread, medians of 7 passes after one; the result is freed outside the time."""
    from tokenizers import Tokenizer
    docs = [json.loads(x)["text"] for f in files for x in open(f)]
    size, tok, took = sum(len(x.encode()) for x in docs), Tokenizer.from_file(
            f"{folder}/tokenizer.json"), []
    for i in range(8):
        t = time.process_time()
        out = tok.encode_batch(docs, add_special_tokens=False)
        took.append(time.process_time() - t)
        del out
    print(size / st.median(took[1:]) / 1e6)


def peer_start(folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tok = AutoTokenizer.from_pretrained(folder)
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        m(input_ids=tok("Hello", return_tensors="pt").input_ids)
    print(json.dumps({"ready": 1}), flush=True)


# ---- the measuring side

class Side:
    """A process that answers orders; stopped while the other side is measured."""

    def __init__(self, a, argv, answers=None):
        env = dict(os.environ, OMP_NUM_THREADS=str(a.threads), TOKENIZERS_PARALLELISM="false")
        for v in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
            env.pop(v, None)
        nice = (lambda: os.setpriority(os.PRIO_PROCESS, 0, a.nice)) if a.nice else None
        self.p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=env, preexec_fn=nice)
        # the command may want its first record before it opens the pipe of its answers
        self.out = open(os.open(answers, os.O_RDWR)) if answers else self.p.stdout

    def line(self):
        x = self.out.readline()
        if not x:
            raise SystemExit("a process ended early: " + " ".join(self.p.args))
        return json.loads(x)

    def stop(self):
        os.kill(self.p.pid, signal.SIGSTOP)

    def cpu(self):
        f = open(f"/proc/{self.p.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / TICK

    def peak(self):
        for x in open(f"/proc/{self.p.pid}/status"):
            if x.startswith("VmHWM"):
                return int(x.split()[1]) / 2**20

    def ask(self, text, n=1, until=None):
        os.kill(self.p.pid, signal.SIGCONT)
        c, t = self.cpu(), time.perf_counter()
        self.p.stdin.write(text)
        self.p.stdin.flush()
        got = []
        while len(got) < n:
            x = self.line()
            if not until or x.get("event") == until:
                got.append(x)
        t, c = time.perf_counter() - t, self.cpu() - c
        self.stop()
        return t, c, got

    def end(self):
        os.kill(self.p.pid, signal.SIGCONT)
        self.p.stdin.close()
        self.p.terminate()
        self.p.wait()


def peer(a, *argv):
    s = Side(a, [sys.executable, os.path.abspath(__file__), "--peer", *map(str, argv)])
    s.line()
    s.stop()
    return s


def tw_sample(a, dtype, new, batch):
    return Side(a, [f"{a.bin}/tw-sample", "-m", a.model, "--dtype", dtype, "--threads",
            str(a.threads), "--temperature", "0", "--ignore-eos", "--max-tokens", str(new),
            "--max-batch", str(batch), "-"])


def tokens(r, n):
    return [r.randrange(17, 49152) for _ in range(n)]


ROWS = []


def row(name, peer_name, ours, theirs, bar, unit, work=1, extra=""):
    """OURS and THEIRS: lists of (wall, processor) seconds for WORK units."""
    med = lambda x, k: st.median(y[k] for y in x)
    best = lambda x: min(y[0] for y in x)
    show = (lambda s: f"{s:.3f} s") if unit == "s" else (lambda s: f"{work / s:.1f} {unit}")
    r = med(theirs, 0) / med(ours, 0)
    ROWS.append(f"| {name} | {show(med(ours, 0))} ({show(best(ours))}) | {peer_name} "
            f"{show(med(theirs, 0))} ({show(best(theirs))}) | **{r:.2f}** | "
            f"{best(theirs) / best(ours):.2f} | {med(theirs, 1) / max(med(ours, 1), 1e-9):.2f} | "
            f">= {bar} | {extra} |")
    print(ROWS[-1], flush=True)


def lost(pairs):
    d = [abs(x - y) for x, y in pairs]
    print("losses, ours and the peer's:", " ".join(f"{x:.4f} {y:.4f}" for x, y in pairs),
            file=sys.stderr)
    return f"differ by {d[0]:.1e} at first, then by <= {max(d):.1e}"


def do_train(a, kind):
    if kind == "lora" and not os.path.exists(f"{a.work}/adapter"):
        subprocess.run([sys.executable, os.path.abspath(__file__), "--peer", "adapter", a.model,
                f"{a.work}/adapter"], check=True, stdout=2)
    for dtype in a.dtype:
        run, fifo = f"{a.work}/run", f"{a.work}/metrics"
        shutil.rmtree(run, ignore_errors=True)
        if os.path.exists(fifo):
            os.unlink(fifo)
        os.mkfifo(fifo)
        what = ["--adapter", f"{a.work}/adapter"] if kind == "lora" else []
        ours = Side(a, [f"{a.bin}/tw-train", "-m", a.model, "-o", run, "--dtype", dtype, "--lr",
                "1e-4" if kind == "lora" else "1e-5", "--clip", "0", "--decay-on", "all",
                "--shuffle", "off", "--batch", "4", "--threads", str(a.threads), "--metrics", fifo,
                "-q", *what, *a.train_args.split(), "-"], fifo)
        theirs = peer(a, "train", kind, dtype, a.model, f"{a.work}/adapter", a.threads)
        r, t, losses, o, p = random.Random(1), [], [], [], []
        for i in range(-a.warm, a.runs):
            batch = [tokens(r, 512) for _ in range(4)]
            text = "".join(json.dumps({"tokens": x}) + "\n" for x in batch)
            # PEFT adds an adapter's small part to bf16 sums, which lose it: its own loss lags
            z = theirs.ask(json.dumps({"exact": batch}) + "\n") if kind == "lora" and \
                    dtype == "bf16" else None
            x, y = ours.ask(text, 1, "step"), theirs.ask(json.dumps(batch) + "\n")
            losses.append((x[2][0]["loss"], (z or y)[2][0]["loss"]))
            if i >= 0:
                o.append(x[:2])
                p.append(y[:2])
        mem = ours.peak(), theirs.peak()
        ours.end()
        theirs.end()
        row(f"{kind} step 4 x 512 {dtype}", "torch", o, p, 1.4 if dtype == "f32" else 2, "s",
                extra=f"losses {lost(losses)}; memory {mem[0]:.2f} GiB of "
                f"{mem[1]:.2f} GiB: {mem[0] / mem[1]:.2f}")


def do_decode(a):
    for dtype in a.dtype:
        ours, theirs = tw_sample(a, dtype, 128, 1), peer(a, "llama", f"{a.gguf}/smol-{dtype}.gguf",
                a.threads)
        r, o, p = random.Random(2), [], []
        for i in range(-1, a.runs):
            ids = tokens(r, 1)
            x = ours.ask(json.dumps({"tokens": ids}) + "\n")
            y = theirs.ask(json.dumps({"tokens": ids, "new": 128}) + "\n")
            if i >= 0:
                o.append(x[:2])
                p.append(y[:2])
        ours.end()
        theirs.end()
        row(f"decode 1 sequence {dtype}", "llama.cpp", o, p, 1.0 if dtype == "f32" else 1.2,
                "tok/s", 128)


def do_batch(a):
    for dtype in a.dtype:
        one, many = tw_sample(a, dtype, 128, 1), tw_sample(a, dtype, 128, 16)
        r, o, p = random.Random(3), [], []
        for i in range(-1, a.runs):
            ids = [json.dumps({"tokens": tokens(r, 1)}) + "\n" for _ in range(16)]
            x, y = many.ask("".join(ids), 16), one.ask(ids[0])
            if i >= 0:
                o.append((x[0] / 16, x[1] / 16))
                p.append(y[:2])
        one.end()
        many.end()
        row(f"decode 16 sequences {dtype}", "ours, 1 sequence", o, p, 4, "tok/s", 128)


def do_prompt(a):
    for dtype in a.dtype:
        ours = tw_sample(a, dtype, 1, 1)
        llama = a.gguf and peer(a, "llama", f"{a.gguf}/smol-{dtype}.gguf", a.threads)
        torch = peer(a, "torch-prompt", dtype, a.model, a.threads)
        r, o, p, q = random.Random(4), [], [], []
        for i in range(-2, a.runs):
            ids = tokens(r, 512)
            order = json.dumps({"tokens": ids, "new": 1}) + "\n"
            x, z = ours.ask(json.dumps({"tokens": ids}) + "\n"), torch.ask(order)
            y = llama.ask(order) if llama else None
            if i >= 0:
                o.append(x[:2])
                p.append(y and y[:2])
                q.append(z[:2])
        for s in filter(None, (ours, llama, torch)):
            s.end()
        for name, x in (("llama.cpp", p), ("torch", q)):
            if name == "llama.cpp" and not llama:
                continue
            row(f"prompt of 512 {dtype}", name, o, x, 1.1 if dtype == "f32" else 3, "tok/s", 512)


def once(a, argv, text):
    c = resource.getrusage(resource.RUSAGE_CHILDREN)
    t = time.perf_counter()
    s = Side(a, argv)
    s.p.stdin.write(text)
    s.p.stdin.close()
    s.line()
    t = time.perf_counter() - t
    s.p.wait()
    d = resource.getrusage(resource.RUSAGE_CHILDREN)
    return t, d.ru_utime + d.ru_stime - c.ru_utime - c.ru_stime


def do_start(a):
    for dtype in a.dtype:
        o, p = [], []
        for i in range(-1, a.runs):
            x = once(a, [f"{a.bin}/tw-sample", "-m", a.model, "--dtype", dtype, "--threads",
                    str(a.threads), "--temperature", "0", "--max-tokens", "1", "-"],
                    '{"prompt":"Hello"}\n')
            y = once(a, [sys.executable, os.path.abspath(__file__), "--peer", "start", a.model], "")
            if i >= 0:
                o.append(x)
                p.append(y)
        row(f"start to the end of the first forward pass {dtype}", "transformers f32", o, p,
                "10 (0.3 s)", "s")


def do_tok(a):
    env = dict(os.environ, TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    o, p = [], []
    for i in range(3):
        out = subprocess.run([f"{a.bin}/../bench/tok", a.model, *a.text], check=True, text=True,
                capture_output=True).stdout
        o.append(float(out.split("encode ")[1].split()[0]))
        out = subprocess.run([sys.executable, os.path.abspath(__file__), "--peer", "tok", a.model,
                *a.text], check=True, text=True, capture_output=True, env=env).stdout
        p.append(float(out))
    ROWS.append(f"| tokenize, a core | {st.median(o):.1f} MB/s ({max(o):.1f}) | tokenizers "
            f"{st.median(p):.1f} MB/s ({max(p):.1f}) | **{st.median(o) / st.median(p):.1f}** | "
            f"{max(o) / max(p):.1f} | | >= 4 | |")
    print(ROWS[-1], flush=True)


def peers(argv):
    kind, rest = argv[0], argv[1:]
    if kind == "train":
        peer_train(*rest[:4], int(rest[4]))
    elif kind == "adapter":
        peer_adapter(*rest)
    elif kind == "torch-prompt":
        peer_torch_prompt(rest[0], rest[1], int(rest[2]))
    elif kind == "llama":
        peer_llama(rest[0], int(rest[1]))
    elif kind == "tok":
        peer_tok(rest[0], rest[1:])
    elif kind == "start":
        peer_start(*rest)


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peers(sys.argv[2:])
    ap = argparse.ArgumentParser(description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", nargs="+",
            choices="lora full decode batch prompt start tok".split())
    ap.add_argument("--bin", default=f"{HERE}/../../build/bin")
    ap.add_argument("--model", required=True)
    ap.add_argument("--text", nargs="+", help="of tok: JSONL files with `text`")
    ap.add_argument("--gguf")
    ap.add_argument("--dtype", nargs="+", default=["f32", "bf16"], choices=["f32", "bf16"])
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--runs", type=int, default=7)
    ap.add_argument("--warm", type=int, default=1, help="training steps before the measured ones")
    ap.add_argument("--nice", type=int, default=0, help="e.g. -15 on a machine that others use")
    ap.add_argument("--train-args", default="", help="more options for tw-train")
    a = ap.parse_args()
    a.work = tempfile.mkdtemp()
    try:
        for w in a.what:
            do_train(a, w) if w in ("lora", "full") else globals()[f"do_{w}"](a)
    finally:
        shutil.rmtree(a.work)
    print("\n| what | ours: median (best) | peer: median (best) | ratio | of the best | "
            "of processor time | bar | |\n|---|---|---|---|---|---|---|---|")
    print("\n".join(ROWS))


main()
