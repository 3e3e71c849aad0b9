#!/usr/bin/env python3
"""decode.py - the peers of decode.sh: transformers' generate, greedy, random weights, bf16.
usage: decode.py CONFIG.json PROMPT NEW MODE BATCH ..    MODE: plain, or static (compiled static cache)"""
import sys
import time

import torch
import transformers

config, prompt, new, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
cfg = transformers.AutoConfig.from_pretrained(config)
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.AutoModelForCausalLM.from_config(cfg, attn_implementation="sdpa").eval()
more = {"cache_implementation": "static"} if mode == "static" else {}
for batch in map(int, sys.argv[5:]):
    ids = torch.randint(cfg.vocab_size, (batch, prompt), device="cuda")
    best = None
    for i in range(3 if mode == "static" else 2):
        torch.cuda.synchronize()
        t0 = time.time()
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
                           min_new_tokens=new, max_new_tokens=new, **more)
        torch.cuda.synchronize()
        t = time.time() - t0
        best = t if i and (best is None or t < best) else best
    print(f"transformers {transformers.__version__} {mode}  batch {batch}  {best:.3f} s  "
          f"{batch * new / best:.0f} tok/s", flush=True)
