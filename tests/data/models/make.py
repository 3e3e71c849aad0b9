#!/usr/bin/env python3
"""Makes CASES in this folder: usage: make.py [OUT [CASE..]]
or, of a folder that is there, AdamW's steps again with another eps: make.py OUT --eps EPS CASE
Needs torch, transformers, peft. The form is that of README.md; the other folders were made likewise."""
import json, os, sys, torch, transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
B, N, V = 2, 80, 96
BASE = dict(vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LINEAR = dict(BASE, num_hidden_layers=3, head_dim=16, layer_types=['linear_attention'] * 2 + ['full_attention'],
              linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
              linear_conv_kernel_dim=4, attn_output_gate=True, partial_rotary_factor=0.5,
              rope_parameters=dict(rope_type='default', rope_theta=10000.0, partial_rotary_factor=0.5))
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=16)
CASES = {
    'llama-bias': (transformers.LlamaConfig, dict(BASE, attention_bias=True, mlp_bias=True, hidden_act='silu',
        rope_parameters=dict(rope_type='linear', factor=4.0, rope_theta=10000.0))),
    'qwen2-window': (transformers.Qwen2Config, dict(BASE, use_sliding_window=True, sliding_window=16,
        max_window_layers=1, tie_word_embeddings=True)),
    'qwen3_5': (transformers.Qwen3_5TextConfig, dict(LINEAR, tie_word_embeddings=True)),
    'qwen3_5_moe': (transformers.Qwen3_5MoeTextConfig, dict(LINEAR, **MOE)),
    'qwen3_next': (transformers.Qwen3NextConfig, dict(LINEAR, **MOE, norm_topk_prob=True)),
}
LORA = dict(r=4, lora_alpha=6, use_rslora=True, target_modules=['q_proj', 'o_proj', 'up_proj'],
            rank_pattern={'up_proj': 2}, alpha_pattern={'layers.1.self_attn.o_proj': 9})
LORA_LINEAR = dict(r=4, lora_alpha=6, target_modules=['q_proj', 'k_proj', 'v_proj', 'o_proj', 'in_proj_qkv', 'in_proj_z',
                   'in_proj_b', 'in_proj_a', 'in_proj_qkvz', 'in_proj_ba', 'out_proj', 'shared_expert_gate'])


def old_spelling(path):
    """config.json as releases before 5 wrote it."""
    c = json.load(open(path))
    r = c.pop('rope_parameters')
    c['rope_theta'] = r.pop('rope_theta')
    c['rope_scaling'] = {'type': r.pop('rope_type'), **r}
    c['torch_dtype'] = c.pop('dtype')
    json.dump(c, open(path, 'w'), indent=2)


def logprobs(logits, ids):
    return torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]


def loss_of(m, ids, labels):
    logits = m(input_ids=ids).logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1), ignore_index=-100)


def adamw(m, ids, labels, lr, betas, wd, clip, last, eps):
    ps = [p for p in m.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(ps, lr=lr, betas=betas, eps=eps, weight_decay=wd)
    losses, norms = [], []
    for _ in range(8):
        opt.zero_grad()
        l = loss_of(m, ids, labels)
        l.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(ps, clip or 1e30).item())
        losses.append(l.item())
        opt.step()
    if last:
        losses.append(loss_of(m, ids, labels).item())
    return dict(lr=lr, betas=betas, eps=eps, weight_decay=wd, clip=clip, losses=losses, grad_norms=norms)


def make(name, cls, kw):
    torch.manual_seed(7)
    out = os.path.join(OUT, name)
    m = transformers.AutoModelForCausalLM.from_config(cls(**kw), attn_implementation='eager').float().eval()
    linear = 'linear_num_key_heads' in kw
    # Normalised q and k: rounding alone turns the sign of small gradients, and moves a router's choice.
    eps, lr = (1e-2, 2e-4) if linear else (1e-8, 2e-3)
    for n, p in m.named_parameters():       # large enough that every part matters
        scale = 0.2 if 'norm' in n else 0.5 if any(x in n for x in ('A_log', 'dt_bias', 'conv1d')) else 0.18 if linear else 0.25
        centred = linear and not n.endswith('linear_attn.norm.weight')
        p.data = scale * torch.randn_like(p) + (1 if 'norm' in n and not centred else 0)
    m.save_pretrained(out)
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(3, V, (B, N), generator=g)
    labels = torch.where(torch.rand(B, N, generator=g) < 0.3, -100, ids)
    t = dict(input_ids=ids.int(), labels=labels.int())
    logits = m(input_ids=ids).logits
    t['logits'], t['logprobs'] = logits.detach(), logprobs(logits, ids).detach()
    t['logprobs_row1_first70'] = logprobs(m(input_ids=ids[1:, :70]).logits, ids[1:, :70]).detach()
    loss = loss_of(m, ids, labels)
    loss.backward()
    for n, p in m.named_parameters():
        t['grad.' + n] = p.grad.clone()
    e = dict(loss=loss.item(), transformers=transformers.__version__, torch=torch.__version__,
             n_params=sum(p.numel() for p in m.parameters()),
             grad_norm=torch.cat([p.grad.flatten() for p in m.parameters()]).norm().item())
    prompt = ids[0, :12].tolist()
    x, toks, lps = torch.tensor([prompt]), [], []
    with torch.no_grad():
        for _ in range(80):
            l = torch.log_softmax(m(input_ids=x).logits[0, -1], -1)
            toks.append(int(l.argmax()))
            lps.append(l.max().item())
            x = torch.cat([x, torch.tensor([[toks[-1]]])], 1)
    e.update(greedy_prompt=prompt, greedy_tokens=toks, greedy_logprobs=lps)
    m.zero_grad()
    e['adamw'] = adamw(m, ids, labels, lr, [0.9, 0.95], 0.01, 1.0, True, eps)

    m = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation='eager')
    pm = get_peft_model(m, LoraConfig(**(LORA_LINEAR if linear else LORA)))
    for n, p in pm.named_parameters():
        if 'lora_' in n:
            p.data = (0.1 if linear else 0.2) * torch.randn(p.shape, generator=g)
    pm.save_pretrained(os.path.join(out, 'adapter'))
    os.remove(os.path.join(out, 'adapter', 'README.md'))
    t['lora.logprobs'] = logprobs(pm(input_ids=ids).logits, ids).detach()
    loss = loss_of(pm, ids, labels)
    loss.backward()
    for n, p in pm.named_parameters():
        if p.requires_grad:
            t['lora_grad.' + n.replace('.default', '')] = p.grad.clone()
    e['lora_loss'] = loss.item()
    e['lora_adamw'] = adamw(pm, ids, labels, 2.5 * lr, [0.9, 0.999], 0.0, None, False, eps)
    del e['lora_adamw']['grad_norms']
    save_file({k: v.contiguous() for k, v in t.items()}, os.path.join(out, 'expected.safetensors'))
    json.dump(e, open(os.path.join(out, 'expected.json'), 'w'), indent=1)
    for junk in ('generation_config.json',):
        if os.path.exists(os.path.join(out, junk)):
            os.remove(os.path.join(out, junk))
    if 'bias' in name:
        old_spelling(os.path.join(out, 'config.json'))


def steps_again(out, eps):
    e = json.load(open(os.path.join(out, 'expected.json')))
    t = load_file(os.path.join(out, 'expected.safetensors'))
    m = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation='eager')
    a = e['adamw']
    e['adamw'] = adamw(m, t['input_ids'].long(), t['labels'].long(), a['lr'], a['betas'], a['weight_decay'], a['clip'],
                       True, eps)
    json.dump(e, open(os.path.join(out, 'expected.json'), 'w'), indent=1)


if '--eps' in sys.argv[2:]:
    steps_again(os.path.join(OUT, sys.argv[4]), float(sys.argv[3]))
    sys.exit()
for name, (cls, kw) in CASES.items():
    if len(sys.argv) < 3 or name in sys.argv[2:]:
        make(name, cls, kw)
