#!/usr/bin/env python3
"""Makes expected.json: losses before each of eight steps of torch.optim.Muon, and after the last, of the
checkpoints in ../models; usage: make.py [bf16]. Needs torch, transformers, peft. Matrices inside the layers
(each expert's by itself) and LoRA's are Muon's, the rest AdamW's, at one learning rate. The iteration is
torch's own, in float32 in place of bfloat16 (with the argument: as it is, to see what that changes)."""
import inspect, json, os, sys, torch, transformers
from peft import PeftModel
from safetensors.torch import load_file
import torch.optim._muon as M

HERE = os.path.dirname(os.path.abspath(__file__))
if 'bf16' not in sys.argv:
    text = inspect.getsource(M._zeropower_via_newtonschulz)
    assert text.count('torch.bfloat16') == 1
    exec(text.replace('torch.bfloat16', 'torch.float32'), M.__dict__)
SCALE = {'rms': 'match_rms_adamw', 'original': 'original', 'spectral': 'spectral_unclamped'}
CASES = [('llama', False, 'rms', dict(lr=4e-3)), ('qwen3', False, 'original', dict(lr=4e-3)),
         ('qwen2', False, 'spectral', dict(lr=4e-3, nesterov=False, momentum=0.9, ns_steps=3)),
         ('qwen3_moe', False, 'rms', dict(lr=2e-3)), ('qwen3_5', False, 'rms', dict(lr=1e-3)),
         ('llama', True, 'rms', dict(lr=4e-3))]


def losses(name, lora, scale, kw):
    d = os.path.join(HERE, '..', 'models', name)
    m = transformers.AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation='eager')
    if lora:
        m = PeftModel.from_pretrained(m, os.path.join(d, 'adapter'), is_trainable=True)
    e = load_file(os.path.join(d, 'expected.safetensors'))
    ids, labels = e['input_ids'].long(), e['labels'].long()
    ps = [(n, p) for n, p in m.named_parameters() if p.requires_grad]
    inner = [p for n, p in ps if p.ndim > 1 and ('.layers.' in n) and 'conv1d' not in n]
    mine = {id(p) for p in inner}
    kw = dict(dict(momentum=0.95, nesterov=True, ns_steps=5), **kw)
    rest = [p for n, p in ps if id(p) not in mine]
    adam = torch.optim.AdamW(rest, lr=kw['lr'], weight_decay=0.01) if rest else None
    buf = [torch.zeros_like(p) for p in inner]
    each = lambda ts: [x for t in ts for x in (t if t.ndim == 3 else [t])]
    out = []
    for step in range(9):
        m.zero_grad()
        l = torch.nn.functional.cross_entropy(m(input_ids=ids).logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(),
                                              ignore_index=-100)
        out.append(l.item())
        if step == 8:
            return out
        l.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in ps], 1.0)
        with torch.no_grad():
            M.muon(each(p.data for p in inner), each(p.grad for p in inner), each(buf), weight_decay=0.01,
                   ns_coefficients=(3.4445, -4.7750, 2.0315), eps=1e-7, adjust_lr_fn=SCALE[scale], has_complex=False, **kw)
        if adam:
            adam.step()


res = []
for name, lora, scale, kw in CASES:
    r = dict(model=name, lora=lora, scale=scale, **kw, losses=losses(name, lora, scale, kw))
    print(r)
    res.append(r)
if 'bf16' not in sys.argv:
    with open(os.path.join(HERE, 'expected.json'), 'w') as f:
        f.write('[' + ',\n '.join(json.dumps(r) for r in res) + ']\n')
