#!/usr/bin/env python3
"""Makes the tokenizer of the built-in model: byte-level BPE of 2,048 tokens in Qwen's form.

usage: tokenizer.py OUT_DIR TEXT_FILE..   (needs the PyPI package tokenizers; run once, the result is
kept in share/models/tiny)"""
import json
import sys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
{%- else %}
{{- message.content + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

out, files = sys.argv[1], sys.argv[2:]
tok = Tokenizer(models.BPE(byte_fallback=False, fuse_unk=False))
tok.normalizer = normalizers.NFC()
tok.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
tok.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
# Ids that carry the most meaning for training tools come first: end of text, then the turn marks.
tok.train(files, trainers.BpeTrainer(vocab_size=2048, special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL],
                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
tok.save(f"{out}/tokenizer.json", pretty=False)
json.dump({"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "add_prefix_space": False, "bos_token": None,
           "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "model_max_length": 1024,
           "clean_up_tokenization_spaces": False,
           "added_tokens_decoder": {str(tok.token_to_id(s)): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                                                              "single_word": False, "special": True} for s in SPECIAL}},
          open(f"{out}/tokenizer_config.json", "w"), indent=2)
open(f"{out}/chat_template.jinja", "w").write(TEMPLATE)
