#!/usr/bin/env python3
"""shapes.py OUT [MODEL..] - folders q06 and q4, those that are named, with random weights in the shapes of Qwen3-0.6B and
4B, and tokens.jsonl, 64 sequences of 2048 random tokens. Needs torch and safetensors where one is named."""
import json, os, random, sys

SHAPES = {"q06": (1024, 3072, 28, 16, 8), "q4": (2560, 9728, 36, 32, 8)}
VOCAB = 151936


def weights(*shape):
    import torch
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    return (torch.randn(*shape, device=dev) * 0.02).to(torch.bfloat16).cpu()


def write(folder, D, I, L, heads, kv):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/config.json", "w") as f:
        json.dump(dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=VOCAB,
                hidden_size=D, intermediate_size=I, num_hidden_layers=L, num_attention_heads=heads,
                num_key_value_heads=kv, head_dim=128, hidden_act="silu", rms_norm_eps=1e-6,
                rope_theta=1000000, max_position_embeddings=40960, tie_word_embeddings=True,
                attention_bias=False, torch_dtype="bfloat16"), f)
    one = lambda n: torch.ones(n, dtype=torch.bfloat16)
    t = {"model.embed_tokens.weight": weights(VOCAB, D), "model.norm.weight": one(D)}
    for i in range(L):
        at = f"model.layers.{i}."
        for name, rows, cols in (("self_attn.q_proj", heads * 128, D), ("self_attn.k_proj", kv * 128, D),
                ("self_attn.v_proj", kv * 128, D), ("self_attn.o_proj", D, heads * 128),
                ("mlp.gate_proj", I, D), ("mlp.up_proj", I, D), ("mlp.down_proj", D, I)):
            t[at + name + ".weight"] = weights(rows, cols)
        for name, n in (("self_attn.q_norm", 128), ("self_attn.k_norm", 128), ("input_layernorm", D),
                ("post_attention_layernorm", D)):
            t[at + name + ".weight"] = one(n)
    save_file(t, f"{folder}/model.safetensors", metadata={"format": "pt"})


out = sys.argv[1]
for name in sys.argv[2:]:
    write(f"{out}/{name}", *SHAPES[name])
if not os.path.exists(f"{out}/tokens.jsonl"):
    random.seed(1)
    with open(f"{out}/tokens.jsonl", "w") as f:
        for _ in range(64):
            f.write(json.dumps({"tokens": [random.randrange(151000) for _ in range(2048)]}) + "\n")
