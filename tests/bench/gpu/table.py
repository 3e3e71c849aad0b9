#!/usr/bin/env python3
"""table.py - reads what train.sh, decode.sh or families.sh print, line by line, passes it on, and ends with a table:
ours beside the peers that ran in the same section, with their ratios. A model's FLOPs a token are the same for all, so
MFU of a peer is ours by the ratio."""
import re, sys

OURS = re.compile(r"ours (.*): (\d+) tok/s, ([\d.]+) GB \(step 1 [\d.]+, planned ([\d.]+)\), MFU ([\d.]+)")
PEER = re.compile(r"(hf|liger) (.*?) *: (\d+) tok/s, ([\d.]+) GB")
MIXED = re.compile(r"one adapter (\d+) tok/s, (\d+) mixed (\d+) tok/s \(([\d.]+)\)")
DECODE = re.compile(r"batch (\d+)  adapters (\d+)  (\w+)  [\d.]+ s  (\d+) tok/s  steps (\d+) tok/s")
START = re.compile(r"start (.*), s: (.*)")
OTHER = re.compile(r"transformers (\S+) (\w+)  batch (\d+)  [\d.]+ s  (\d+) tok/s")


def beside(rate, peers, mfu=None):
    cells = []
    for name, r, gb in peers:
        more = [f"{gb} GB"] if gb else []
        more += [f"MFU {mfu * r / rate:.2f}"] if mfu else []
        cells.append(f"{name} {r:,} tok/s" + (f" ({', '.join(more)})" if more else "") + f": **{rate / r:.2f}**")
    return "; ".join(cells)


section, rows, train, decode = "", [], [], []


def end_section():
    """Each line of ours with the peers of its section; of decoding, those of its batch."""
    peers = [p[1:] for p in train if p[0] == "peer"]
    for line in train:
        if line[0] == "ours":
            _, what, rate, gb, planned, mfu = line
            rows.append((f"{section}: {what}", f"{rate:,} tok/s", f"{gb} GB ({planned} planned)" if gb else "",
                         f"{mfu:.2f}" if mfu else "", beside(rate, peers, mfu)))
    for line in decode:
        if line[0] == "ours":
            _, batch, what, rate, steps = line
            same = [p[2:] for p in decode if p[0] == "peer" and p[1] == batch and what == "greedy"]
            rows.append((f"{section}: batch {batch}, {what}", f"{rate:,} tok/s ({steps:,} of steps)", "", "",
                         beside(rate, same)))
    train.clear(), decode.clear()


for text in sys.stdin:
    print(text, end="", flush=True)
    if text.startswith("== "):
        end_section()
        section = re.split(r"[,:]", text[3:].strip())[0] + (" decoding" if "decoding" in text else "")
    elif m := OURS.match(text):
        train.append(("ours", m[1], int(m[2]), m[3], m[4], float(m[5])))
    elif m := PEER.match(text):
        train.append(("peer", f"{m[1]} {m[2]}", int(m[3]), m[4]))
    elif m := MIXED.match(text):
        if m[2] == "1":
            train.append(("ours", "one adapter", int(m[1]), None, None, None))
        else:
            rows.append((f"{section}: {m[2]} adapters in a batch", f"{int(m[3]):,} tok/s", "", "",
                         f"one adapter {int(m[1]):,} tok/s: **{m[4]}**"))
    elif m := START.match(text):
        rows.append((f"start, {m[1]}", m[2] + " s", "", "", ""))
    elif m := DECODE.match(text):
        kind = m[3] if m[2] == "0" else f"{m[3]}, {m[2]} adapters"
        decode.append(("ours", m[1], kind, int(m[4]), int(m[5])))
    elif m := OTHER.match(text):
        decode.append(("peer", m[3], f"transformers {m[1]} {m[2]}", int(m[4]), None))
end_section()
print("\n| job | ours | memory | MFU | peers: ours is so many times as fast |\n|---|---|---|---|---|")
for r in rows:
    print("| " + " | ".join(r) + " |")
