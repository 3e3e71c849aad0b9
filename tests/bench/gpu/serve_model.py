#!/usr/bin/env python3
"""serve_model.py CONFIG FOLDER - a bf16 model of that shape with random weights, as transformers writes it."""
import sys
import torch, transformers

torch.manual_seed(1)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
    m = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(sys.argv[1]))
m.save_pretrained(sys.argv[2])
