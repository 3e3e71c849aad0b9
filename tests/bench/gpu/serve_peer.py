#!/usr/bin/env python3
"""serve_peer.py MODEL LENGTH [FOLDER] - the peer of serve.py: PEFT with eight adapters on one bf16 model, a step of
each one after the other, as servers on top of it do. MODEL is a folder, or the config.json of one with random weights,
which FOLDER gets. Prints tokens a second for LENGTH, 512 and 64 tokens an adapter; LENGTH 0: makes FOLDER alone."""
import sys, time
import torch, transformers

where, long = sys.argv[1], int(sys.argv[2])
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
if where.endswith(".json"):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(dev):
        m = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(where),
                                                          attn_implementation="sdpa")
    m.save_pretrained(sys.argv[3])
else:
    m = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.bfloat16, attn_implementation="sdpa")
if not long:
    sys.exit()
import peft
m = m.to(dev).train()
config = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear")
m = peft.get_peft_model(m, config, adapter_name="a0")
for i in range(1, 8):
    m.add_adapter(f"a{i}", config)
opt = []
for i in range(8):
    m.set_adapter(f"a{i}")
    opt.append(torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-4, fused=True))
sync = torch.cuda.synchronize if dev == "cuda" else lambda: None
for length in (long, 512, 64):
    ids = torch.randint(1, m.config.vocab_size, (8, 1, length), device=dev)
    best = None
    for _ in range(4):
        sync()
        t = time.perf_counter()
        for i in range(8):
            m.set_adapter(f"a{i}")
            m(input_ids=ids[i], labels=ids[i], use_cache=False).loss.backward()
            opt[i].step()
            opt[i].zero_grad(set_to_none=True)
        sync()
        took = time.perf_counter() - t
        best = took if best is None or took < best else best
    print(f"PEFT, 8 adapters one after the other, {length} tokens each: {8 * length / best:.0f} tok/s", flush=True)
