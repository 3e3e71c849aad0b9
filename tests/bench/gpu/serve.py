#!/usr/bin/env python3
"""serve.py MODEL [DEVICE] - what merging tenants brings: tw-serve on one device, many adapters at once and one after
the other, in one run. MODEL is a folder, or the config.json of one with random weights, which is made first (torch,
transformers).

Prints tokens a second of one tenant and of eight that bring as much together; of eight that bring 64 and 512 tokens
each, merged and in turn; of sampling over one adapter and over eight; how long a snapshot for sampling takes; how long
256 more tenants take to come, and 64 of them to come back, from disk; and the memory of the base alone, with eight
adapters, and with 64 at work of 264 registered. TW_BUILD is the build folder. PEER=1 has PEFT first, which
trains eight adapters one after the other (needs torch, transformers and peft)."""
import itertools, json, multiprocessing, os, statistics, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
build = os.environ.get("TW_BUILD", here + "/../../../build")
model, device = sys.argv[1], (sys.argv[2:] + ["cuda"])[0]
VOCAB, LONG = int(os.environ.get("VOCAB", 150000)), int(os.environ.get("SEQUENCE", 2048))
def peer(folder):
    subprocess.run([sys.executable, here + "/serve_peer.py", model, str(LONG if os.environ.get("PEER") else 0)] + folder, check=True)


if model.endswith(".json"):
    where = tempfile.TemporaryDirectory()
    peer([where.name])
    model = where.name
elif os.environ.get("PEER"):
    peer([])
server = subprocess.Popen([build + "/bin/tw-serve", "-m", model, "--name", "tiny", "--listen", "127.0.0.1:0",
                           "--device", device, "--max-adapters", "64", "--max-rank", "16", "--max-model-len", str(max(LONG, 512))],
                          stdout=subprocess.PIPE, text=True)
started = time.monotonic()
os.environ["URL"] = server.stdout.readline().split()[-1]
print(f"up after {time.monotonic() - started:.1f} s", flush=True)
sys.path.insert(0, here + "/../..")
from serve_client import *


class Tenant:
    def __init__(self, n):
        self.key = "tml-t%d" % n
        self.con = connect(600)
        self.sid = session(key=self.key)
        self.model = create(self.sid, rank=16, key=self.key)
        self.seq, self.snaps = 0, 0

    def send(self, what, body):
        self.seq += 1
        body = body.replace(b'"seq_id": 0', b'"seq_id": %d' % self.seq)
        r = call("POST", "/api/v1/" + what, body, key=self.key, con=self.con, headers={"Content-Type": "application/json"})
        assert r.status == 200, (r.status, r.body[:300])
        return r.json["request_id"]

    def bodies(self, sequences, length):
        r = random.Random(self.key)
        data = [datum([r.randrange(1, VOCAB) for _ in range(length)]) for _ in range(sequences)]
        fb = {"forward_backward_input": {"data": data, "loss_fn": "cross_entropy", "loss_fn_config": {}},
              "model_id": self.model, "seq_id": 0}
        step = {"adam_params": {"learning_rate": 1e-4}, "model_id": self.model, "seq_id": 0, "type": "optim_step"}
        return json.dumps(fb).encode(), json.dumps(step).encode()

    def train(self, steps, sequences, length):
        fb, step = self.bodies(sequences, length)
        sent = [self.send(*what) for _ in range(steps) for what in (("forward_backward", fb), ("optim_step", step))]
        for rid in sent:
            r = wait(rid, key=self.key, con=self.con)
            assert "error" not in r, r

    def snapshot(self):
        self.seq, self.snaps = self.seq + 1, self.snaps + 1
        return sampler(self.model, self.seq, self.snaps - 1, key=self.key)


class Apart:
    """A tenant in a process of its own, so that no interpreter is what is measured."""
    def __init__(self, n):
        self.key = "tml-t%d" % n
        self.end, there = multiprocessing.Pipe()
        if not os.fork():
            t = Tenant(n)
            there.send(None)
            for name, arg in iter(there.recv, None):
                there.send(getattr(t, name)(*arg))
            os._exit(0)
        assert self.end.recv() is None

    def __getattr__(self, name):
        return lambda *arg: (self.end.send((name, arg)), self.end.recv())[1]


def together(work):
    with concurrent.futures.ThreadPoolExecutor(len(work)) as all:
        t = time.monotonic()
        for x in [all.submit(w) for w in work]:
            x.result()
        return time.monotonic() - t


def rate(tenants, steps, sequences, length, merged=True):
    for t in tenants:
        t.train(1, sequences, length)
    work = [lambda t=t: t.train(steps, sequences, length) for t in tenants]
    took = together(work) if merged else sum(together([w]) for w in work)
    return len(tenants) * steps * sequences * length / took


def ratio(name, a, b, runs=int(os.environ.get("RUNS", 3))):
    """Medians of both, in turns, after one of each: adapters are loaded, and steps recorded, in the first."""
    x, y = [], []
    a(), b()
    for _ in range(runs):
        x.append(a()), y.append(b())
        print(f"  {time.monotonic() - started:.0f} s: {x[-1]:.0f}, {y[-1]:.0f}", file=sys.stderr, flush=True)
    x, y = statistics.median(x), statistics.median(y)
    print(f"{name}: {x:.0f} against {y:.0f} tok/s, {x / y:.3f}", flush=True)


numbers = itertools.count()             # one that was there before has the answer that was there before
def sampling(sessions, requests=32, prompt=128, new=192):
    def one(i):
        t, s = sessions[i % len(sessions)]
        r = random.Random(i)
        body = sample_body(s, next(numbers), prompt=[r.randrange(1, VOCAB) for _ in range(prompt)], tokens=new)
        got = wait(post("asample", body, key=t.key)["request_id"], key=t.key)
        made.append(len(got["sequences"][0]["tokens"]))
    made = []
    took = together([lambda i=i: one(i) for i in range(requests)])
    return sum(made) / took


def memory():
    return get("overview")["server"]["memory"] / 2**30


base = memory()
STEPS = int(os.environ.get("STEPS", 8))
few = [Apart(i) for i in range(8)]
one = few[:1]
ratio("8 tenants with 1 sequence each against 1 with 8", lambda: rate(few, STEPS, 1, LONG), lambda: rate(one, STEPS, 8, LONG))
for n in (64, 512):
    ratio(f"8 tenants with {n} tokens each, merged against one after the other",
          lambda: rate(few, 4 * STEPS, 1, n), lambda: rate(few, 4 * STEPS, 1, n, merged=False))
snaps = [(t, t.snapshot()) for t in few]
ratio("32 requests over 8 adapters against 1", lambda: sampling(snaps), lambda: sampling(snaps[:1]))
took = []
for i in range(100):
    t = time.monotonic()
    few[i % 8].snapshot()
    took.append(time.monotonic() - t)
print(f"snapshot for sampling, as a client sees it: median {1e3 * statistics.median(took):.1f} ms, "
      f"p99 {1e3 * sorted(took)[98]:.1f} ms")
few_memory, t = memory(), time.monotonic()
crowd = []
for i in range(256):
    crowd.append(Tenant(8 + i))
    crowd[-1].train(1, 1, 64)
print(f"256 more tenants, a step of 64 tokens each as they come: {time.monotonic() - t:.1f} s", flush=True)
back = together([lambda t=t: t.train(1, 1, 64) for t in crowd[:64]])
live = together([lambda t=t: t.train(4, 1, 64) for t in crowd[:64]])
s = get("overview")["server"]
print(f"64 of them, a step each, back from disk first: {back:.1f} s; then at once: {64 * 4 * 64 / live:.0f} tok/s\n"
      f"264 adapters registered, {s['resident']} in memory, {s['swapped']} swapped: {memory():.2f} GiB; {few_memory:.2f} with 8; "
      f"{base:.2f} the base alone")
server.terminate()
assert server.wait() == 0
for t in few:
    t.end.send(None)
