#!/usr/bin/env python3
"""Writes plain/ and bos/: a byte-level BPE tokenizer of 256 bytes, six merges and six special tokens,
and the same with a post-processor that puts <s> first."""
import json
import os

here = os.path.dirname(os.path.abspath(__file__))


def byte_letters():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    letters, n = {}, 0
    for b in range(256):
        if b in keep:
            letters[b] = chr(b)
        else:
            letters[b] = chr(256 + n)
            n += 1
    return letters


letters = byte_letters()
specials = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool>", "<|end|>"]
vocab = {letters[b]: b for b in range(256)}
merges = [("b", "c"), ("y", "e"), ("ye", "s"), ("o", "k"), ("t", "h"), ("th", "e")]
for a, b in merges:
    vocab[a + b] = len(vocab)
added = [{"id": len(vocab) + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
          "normalized": False, "special": s != "<tool>"} for i, s in enumerate(specials)]
bos = added[0]["id"]
post = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}}}
template = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
for name in "plain", "bos":
    os.makedirs(os.path.join(here, name), exist_ok=True)
    tok = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
           "normalizer": None,
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                             "use_regex": True},
           "post_processor": post if name == "bos" else None,
           "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                       "use_regex": True},
           "model": {"type": "BPE", "dropout": None, "unk_token": None,
                     "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                     "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                     "merges": [list(m) for m in merges]}}
    conf = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "chat_template": template}
    for file, what in ("tokenizer.json", tok), ("tokenizer_config.json", conf):
        with open(os.path.join(here, name, file), "w", encoding="utf-8") as f:
            json.dump(what, f, ensure_ascii=False, indent=None, separators=(",", ":"))
            f.write("\n")
