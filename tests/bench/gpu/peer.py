#!/usr/bin/env python3
"""peer.py MODEL hf|liger lora|full SEQUENCES [recompute] - a training step of 2048-token sequences as
users of transformers and PEFT have it, with or without Liger's kernels: bf16 weights, sdpa, fused
AdamW, clipping; experts by grouped products, with adapters of their own; flash-linear-attention where it
is installed. MODEL is a folder, or the config.json of one with random weights. Prints tokens a second
(median of six steps after three) and the memory taken."""
import os, statistics, sys, time

if os.environ.get("PEER_CONFIGS"):      # Triton's kernels try only so many of their forms: minutes less
    import triton
    tune, most = triton.autotune, int(os.environ["PEER_CONFIGS"])
    triton.autotune = lambda configs, *a, **k: tune(configs[::max(1, len(configs) // most)][:most], *a, **k)
import torch, transformers

if os.environ.get("PEER_ANYWAY"):       # for its time alone: fla knows of wrong gradients with some versions of Triton
    import fla.ops.common.chunk_o
    fla.ops.common.chunk_o.TRITON_ABOVE_3_7_1 = True

folder, how, kind, n = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
cfg = transformers.AutoConfig.from_pretrained(folder)
moe = any(getattr(cfg, k, None) for k in ("num_experts", "n_routed_experts"))
if how == "liger":
    import liger_kernel.transformers as lk
    name = cfg.model_type.removesuffix("_text")
    for rope in (True, False):  # not all families have their rotation
        try:
            getattr(lk, "apply_liger_kernel_to_" + name)(rope=rope, swiglu=True, rms_norm=True,
                    cross_entropy=False, fused_linear_cross_entropy=True)
            break
        except NotImplementedError:
            pass
more = dict(experts_implementation="grouped_mm") if moe else {}
if folder.endswith(".json"):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        m = transformers.AutoModelForCausalLM.from_config(cfg, attn_implementation="sdpa", **more)
    m = m.train()
else:
    m = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16,
            attn_implementation="sdpa", **more).cuda().train()
if "recompute" in sys.argv:
    m.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
if kind == "lora":
    import peft
    m = peft.get_peft_model(m, peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0,
            target_modules="all-linear", target_parameters=["mlp.experts.gate_up_proj",
            "mlp.experts.down_proj"] if moe else None))
    if "recompute" in sys.argv:
        m.enable_input_require_grads()
params = [p for p in m.parameters() if p.requires_grad]
opt = torch.optim.AdamW(params, lr=1e-5, fused=True)
ids = torch.randint(0, min(151000, cfg.vocab_size), (n, 2048), device="cuda")
times = []
for i in range(9):
    torch.cuda.synchronize()
    t = time.perf_counter()
    loss = m(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - t)
free, total = torch.cuda.mem_get_info()
print(f"{how} {kind} {' '.join(sys.argv[5:])}: {n * 2048 / statistics.median(times[3:]):.0f} tok/s, "
        f"{(total - free) / 1e9:.1f} GB, loss {loss.item():.4f}")
